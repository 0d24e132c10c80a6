// AVX-512 BF16, with VBMI: vdpbf16ps for every format with bfloat16 activations, byte permutes for E4M3.
#define KT_BF16
#define KT_VBMI
#include "kernels/simd_avx512_floats-inl.h"
#include "kernels/table-inl.h"

#include "kernels/layer/lanes_avx512-inl.h"

#include "kernels/layer/layer-inl.h"

namespace kt {
extern const KernelTable kt_table_avx512_bf16;
constexpr KernelTable kt_table_avx512_bf16 =
    with_layer(make_table(
                   "avx512_bf16", [](Policy p) { return p == Policy::kBf16; }, Formats{}, vector_prefill),
               {.attend_bf16 = attend<Bf16Cache>});
}  // namespace kt
