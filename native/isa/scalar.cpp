// Plain C++ for any CPU; the reference for every other tier.
#include "kernels/simd_scalar_floats-inl.h"
#include "kernels/table-inl.h"

namespace kt {
extern const KernelTable kt_table_scalar;
constexpr KernelTable kt_table_scalar = make_full_table("scalar", vector_prefill);
}  // namespace kt
