// AVX-512 F, BW, DQ, VL (Skylake-X and later).
#include "kernels/simd_avx512_floats-inl.h"
#include "kernels/table-inl.h"

namespace kt {
extern const KernelTable kt_table_avx512;
constexpr KernelTable kt_table_avx512 = make_full_table("avx512", vector_prefill);
}  // namespace kt
