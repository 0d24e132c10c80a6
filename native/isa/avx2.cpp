// AVX2, FMA, F16C.
#include "kernels/simd_avx2_floats-inl.h"
#include "kernels/table-inl.h"

#include "kernels/layer/lanes_avx2-inl.h"

#include "kernels/layer/layer-inl.h"

#include "kernels/grids-inl.h"

namespace kt {
extern const KernelTable kt_table_avx2;
constexpr KernelTable kt_table_avx2 = with_grids(
    with_training(with_activations(with_layer(make_full_table("avx2", vector_prefill), layer_ops))));
}  // namespace kt
