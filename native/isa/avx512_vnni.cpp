// AVX-512 VNNI: vpdpbusd for every format with int8 activations.
#define KT_VNNI
#include "kernels/simd_avx512-inl.h"
#include "kernels/simd_avx512_blocks-inl.h"
#include "kernels/table-inl.h"

namespace kt {
extern const KernelTable kt_table_avx512_vnni;
constexpr KernelTable kt_table_avx512_vnni =
    make_table("avx512_vnni", [](auto format) { return format.info.policy == Policy::kInt8; }, Formats{});
}  // namespace kt
