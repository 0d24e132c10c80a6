// Plain C++ for any CPU; the reference for every other tier.
#include "kernels/simd_scalar_floats-inl.h"
#include "kernels/table-inl.h"

#include "kernels/layer/lanes_scalar-inl.h"

#include "kernels/layer/layer-inl.h"

#include "kernels/grids-inl.h"

namespace kt {
extern const KernelTable kt_table_scalar;
constexpr KernelTable kt_table_scalar = with_grids(
    with_training(with_activations(with_layer(make_full_table("scalar", vector_prefill), layer_ops))));
}  // namespace kt
