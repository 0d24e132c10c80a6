// AVX-512 VBMI, with VNNI: byte permutes decode E4M3 (bfloat16 activations are widened to float32) and grid
// formats.
#define KT_VNNI
#define KT_VBMI
#include "kernels/simd_avx512_floats-inl.h"
#include "kernels/table-inl.h"

namespace kt {
extern const KernelTable kt_table_avx512_vbmi;
constexpr KernelTable kt_table_avx512_vbmi =
    make_table("avx512_vbmi", [](Policy p) { return p == Policy::kBf16; }, Formats{});
}  // namespace kt
