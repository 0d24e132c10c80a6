// AVX-512 F, BW, DQ, VL (Skylake-X and later).
#include "kernels/simd_avx512_floats-inl.h"
#include "kernels/table-inl.h"

#include "kernels/layer/lanes_avx512-inl.h"

#include "kernels/layer/layer-inl.h"

#include "kernels/grids-inl.h"

namespace kt {
extern const KernelTable kt_table_avx512;
constexpr KernelTable kt_table_avx512 = with_grids(
    with_training(with_activations(with_layer(make_full_table("avx512", vector_prefill), layer_ops))));
}  // namespace kt
