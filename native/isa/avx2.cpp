// AVX2, FMA, F16C.
#include "kernels/simd_avx2_floats-inl.h"
#include "kernels/table-inl.h"

namespace kt {
extern const KernelTable kt_table_avx2;
constexpr KernelTable kt_table_avx2 = make_full_table("avx2", vector_prefill);
}  // namespace kt
