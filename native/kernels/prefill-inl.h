// The prefill kernel of the vector tiers, against the sixteen-lane names of simd_*-inl.h: up to kTilePanels
// panels times kTileRows rows of accumulators, weights loaded once for all rows, activations broadcast from
// a tile that is contiguous in the order of use (rows of their own, 4 KiB apart, would share cache sets).
//
// Sums run over K in the order of BF16's matmul and pass through float32 memory between blocks, so both
// paths give the same bits for bfloat16 weights.
#pragma once

#include "block-inl.h"

namespace kt {
namespace {

// Two decoded panels of as many columns (16 KiB) and a tile's share of them fit in a cache of 32 KiB.
constexpr size_t kVectorColumns = 256;

// A step takes what one 32-bit lane holds: a pair of bfloat16, or one value widened to float32. Tiles are
// [K / step][rows] of it.
#ifdef KT_BF16
constexpr size_t kStepsPerPair = 1;

KT_INLINE Pairs load_step(const uint16_t* pairs, size_t) {
    return load_pairs(pairs);
}

KT_INLINE F32x16 add_step(const F32x16& sum, const Pairs& w, const uint8_t* activation) {
    return dot_pairs(sum, w, activation);
}
#else
constexpr size_t kStepsPerPair = 2;

KT_INLINE F32x16 load_step(const uint16_t* pairs, size_t step) {
    const Pairs w = load_pairs(pairs);
    return step ? w.odd : w.even;
}

KT_INLINE F32x16 add_step(const F32x16& sum, const F32x16& w, const uint8_t* activation) {
    return multiply_add(w, load_as<float>(activation), sum);
}
#endif

inline void gather(const uint8_t* row, size_t begin, size_t end, size_t tile_rows, size_t index,
                   uint8_t* tile) {
    tile += 4 * (begin / 2 * kStepsPerPair * tile_rows + index);
    for (size_t i = begin; i < end; i += 2) {
        const uint32_t pair = load_as<uint32_t>(row + 2 * i);
        store_as(tile, kStepsPerPair == 1 ? pair : pair << 16);
        tile += 4 * tile_rows;
        if (kStepsPerPair == 1) continue;
        store_as(tile, pair & 0xffff0000);
        tile += 4 * tile_rows;
    }
}

// P panels times one tile of R rows, over one block of K.
template <int P, int R>
void tile_block(const uint16_t* const* weights, size_t pairs, const uint8_t* tile, bool first, float* out,
                size_t stride) {
    const uint16_t* w[P];
    F32x16 sum[P][R];
    KT_UNROLL for (int p = 0; p < P; ++p) {
        w[p] = weights[p];
        KT_UNROLL for (int r = 0; r < R; ++r) {
            sum[p][r] = first ? zero_f32() : load_f32(out + r * stride + kPanelRows * p);
        }
    }
    for (size_t i = 0; i < pairs; ++i) {
        KT_UNROLL for (size_t step = 0; step < kStepsPerPair; ++step) {
            decltype(load_step(w[0], step)) values[P];
            KT_UNROLL for (int p = 0; p < P; ++p) values[p] = load_step(w[p] + 2 * kPanelRows * i, step);
            KT_UNROLL for (int r = 0; r < R; ++r) {
                KT_UNROLL for (int p = 0; p < P; ++p) {
                    sum[p][r] = add_step(sum[p][r], values[p], tile + 4 * r);
                }
            }
            tile += 4 * R;
        }
    }
    KT_UNROLL for (int p = 0; p < P; ++p) {
        KT_UNROLL for (int r = 0; r < R; ++r) store(out + r * stride + kPanelRows * p, sum[p][r]);
    }
}

template <int P, int R>
void tile_blocks(const PrefillArgs& a, size_t panel, const uint16_t* const* weights, size_t begin,
                 size_t count) {
    if constexpr (R > 0) {
        if (a.tile_rows != R) return tile_blocks<P, R - 1>(a, panel, weights, begin, count);
        for (size_t t = 0; t < a.tile_count; ++t) {
            const uint8_t* const tile = a.tiles + t * a.tile_bytes + 4 * R * (begin / 2 * kStepsPerPair);
            tile_block<P, R>(weights, (count + 1) / 2, tile, begin == 0,
                             a.out + t * R * a.out_stride + kPanelRows * panel, a.out_stride);
        }
    }
}

inline void prefill(const PrefillArgs& a) {
    for_each_block<kVectorColumns, kTilePanels, 2>(
        a, [&a](size_t panel, size_t panels, const uint16_t* const* weights, size_t begin, size_t count) {
            if constexpr (kTilePanels == 2) {
                if (panels == 2) return tile_blocks<2, kTileRows>(a, panel, weights, begin, count);
            }
            tile_blocks<1, kTileRows>(a, panel, weights, begin, count);
        });
}

// Faster for formats that take long to decode alone: with_prefill_from; see docs/kernels.md.
constexpr Prefill vector_prefill{gather, prefill, kTileRows, 2 * kStepsPerPair, true, {}};

}  // namespace
}  // namespace kt
