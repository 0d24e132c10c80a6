// AVX-512 VBMI, with VNNI: grid formats by byte permutes.
#define KT_VNNI
#define KT_VBMI
#include "kernels/simd_avx512-inl.h"
#include "kernels/simd_avx512_blocks-inl.h"
#include "kernels/table-inl.h"

namespace kt {
extern const KernelTable kt_table_avx512_vbmi;
constexpr KernelTable kt_table_avx512_vbmi =
    make_table("avx512_vbmi", []<class F>(F) { return requires { F::kRecord; }; }, Formats{});
}  // namespace kt
