// AVX-512 BF16: vdpbf16ps for every format with bfloat16 activations.
#define KT_BF16
#include "kernels/simd_avx512-inl.h"
#include "kernels/simd_avx512_blocks-inl.h"
#include "kernels/table-inl.h"

namespace kt {
extern const KernelTable kt_table_avx512_bf16;
constexpr KernelTable kt_table_avx512_bf16 = make_table(
    "avx512_bf16", [](auto format) { return format.info.policy == Policy::kBf16; }, Formats{},
    vector_prefill);
}  // namespace kt
