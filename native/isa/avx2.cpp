// AVX2, FMA, F16C.
#include "kernels/simd_avx2_floats-inl.h"
#include "kernels/table-inl.h"

#include "kernels/layer/lanes_avx2-inl.h"

#include "kernels/layer/layer-inl.h"

#include "kernels/grids-inl.h"

namespace kt {
namespace {

// What takes long to decode is decoded once for all rows. GFLOP/s of the direct path and of this on one core
// of a Zen 3 EPYC, 2048 x 2048, at 16, 64 and 512 rows: FP8_BLOCK 25 27, 27 46, 25 55; MXFP8 31 33, 32 49, 31
// 52; IQ3_S 13 22, 13 40, 8 45; IQ2_XXS 24 27, 25 44, 31 50; IQ1_S 19 24, 20 41, 26 49; IQ4_K 30 26, 31 34,
// 47 52.
using Grids = List<IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S>;
using Fp8 = List<FP8_BLOCK, FP8_CHANNEL, MXFP8>;

// FP8's direct path is exact, so it stays until the other is much faster: as many rows as with tiles.
constexpr uint32_t kFromGrids = 16, kFromFp8 = 40, kFromIq4K = 64;

constexpr KernelTable all = make_full_table("avx2", vector_prefill);
constexpr KernelTable slow = with_prefill_from(with_prefill_from(all, kFromGrids, Grids{}), kFromFp8, Fp8{});
constexpr KernelTable products = with_prefill_from(slow, kFromIq4K, List<IQ4_K>{});

}  // namespace

extern const KernelTable kt_table_avx2;
constexpr KernelTable kt_table_avx2 =
    with_grids(with_training(with_activations(with_layer(products, layer_ops))));
}  // namespace kt
