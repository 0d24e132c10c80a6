// The prefill kernel of AMX: 2 x 2 tiles of results, so that 4 tile loads serve 4 tile products.
//
// The including file brings the _tile_ functions: <immintrin.h>, or the tests' model of them.
//
// TDPBF16PS sums the even and the odd products of 32 columns apart, adds both and then adds that to the
// result; subnormals count as zero. So the path's bits are its own, and differ from the vector tiers' by
// rounding order; they do not depend on the height of tiles.
#pragma once

#include "block-inl.h"

namespace kt {
namespace {

constexpr size_t kTileColumns = 32;  // bfloat16 in a tile's row of 64 bytes
constexpr size_t kMaxTileRows = 16;

// Results are loaded and stored once a block, which costs more than decoded weights that leave the first
// cache: qwen3's experts (2048 x 768, 4096 tokens, BF16) on 16 threads of an Emerald Rapids Xeon 4.6 TFLOP/s
// with 256 columns, 5.1 with 1024; a 7168 x 7168 layer 6.1 and 7.1.
constexpr size_t kAmxColumns = 1024;

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles 0 to 3 are results, 4 and 5 rows, 6 and 7 weights. A product takes time by its rows, so a tile of
// few rows is cheaper, and all tiles of a call have the same height.
inline TileConfig tile_config(size_t rows) {
    TileConfig config;
    for (size_t t = 0; t < 8; ++t) {
        config.row_bytes[t] = 64;
        config.rows[t] = static_cast<uint8_t>(t < 6 ? rows : kPanelRows);
    }
    return config;
}

// A tile is [K / 32][rows][32] with zeros after column k - 1: each step is one tile register.
inline void gather_amx(const uint8_t* row, size_t begin, size_t end, size_t tile_rows, size_t index,
                       uint8_t* tile) {
    for (; begin < end; begin += kTileColumns) {
        const size_t bytes = 2 * (end - begin < kTileColumns ? end - begin : kTileColumns);
        uint8_t* const to = tile + 2 * (begin * tile_rows + index * kTileColumns);
        __builtin_memcpy(to, row + 2 * begin, bytes);
        __builtin_memset(to + bytes, 0, 64 - bytes);
    }
}

// Asks for the next block's weights, a few lines a step: memory works while the tiles do.
struct Stream {
    const uint8_t *a, *b;
    size_t lines;  // of each, in a step

    KT_INLINE void step() {
        for (size_t i = 0; i < lines; ++i, a += 64, b += 64) {
            __builtin_prefetch(a, 0, 2);
            __builtin_prefetch(b, 0, 2);
        }
    }
};

// T tiles of rows (b below a) times P panels over `steps` steps.
template <int T, int P>
void amx_block(const uint16_t* const* weights, size_t steps, const uint8_t* a, const uint8_t* b,
               size_t tile_rows, bool first, float* out, size_t stride, Stream& stream) {
    write_out(weights[0]);
    float* const below = out + tile_rows * stride;
    const size_t stride_bytes = 4 * stride;
    if (first) {
        _tile_zero(0);
        if constexpr (P == 2) _tile_zero(1);
        if constexpr (T == 2) _tile_zero(2);
        if constexpr (T == 2 && P == 2) _tile_zero(3);
    } else {
        _tile_loadd(0, out, stride_bytes);
        if constexpr (P == 2) _tile_loadd(1, out + kPanelRows, stride_bytes);
        if constexpr (T == 2) _tile_loadd(2, below, stride_bytes);
        if constexpr (T == 2 && P == 2) _tile_loadd(3, below + kPanelRows, stride_bytes);
    }
    const uint16_t *left = weights[0], *right = weights[P - 1];
    constexpr size_t kWeights = kTileColumns * kPanelRows;  // of a tile
    const size_t tile_bytes = 64 * tile_rows;
    _tile_loadd(4, a, 64);
    _tile_loadd(6, left, 64);
    if constexpr (P == 2) _tile_loadd(7, right, 64);
    if constexpr (T == 2) _tile_loadd(5, b, 64);
    // A tile of the next step is loaded as soon as this step's products have read the register: 12.4 TFLOP/s
    // on 256 rows from the caches, against 10.3 with each step's loads before its products.
    for (size_t i = 1; i < steps; ++i) {
        stream.step();
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (P == 2) _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(4, a + i * tile_bytes, 64);
        if constexpr (T == 2) _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(6, left + i * kWeights, 64);
        if constexpr (T == 2 && P == 2) _tile_dpbf16ps(3, 5, 7);
        if constexpr (P == 2) _tile_loadd(7, right + i * kWeights, 64);
        if constexpr (T == 2) _tile_loadd(5, b + i * tile_bytes, 64);
    }
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (P == 2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (T == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (T == 2 && P == 2) _tile_dpbf16ps(3, 5, 7);
    _tile_stored(0, out, stride_bytes);
    if constexpr (P == 2) _tile_stored(1, out + kPanelRows, stride_bytes);
    if constexpr (T == 2) _tile_stored(2, below, stride_bytes);
    if constexpr (T == 2 && P == 2) _tile_stored(3, below + kPanelRows, stride_bytes);
}

template <int P>
void amx_blocks(const PrefillArgs& a, size_t panel, const uint16_t* const* weights, size_t begin,
                size_t count) {
    const size_t steps = (count + kTileColumns - 1) / kTileColumns;
    const size_t all_steps = steps * ((a.tile_count + 1) / 2);
    const Ahead next = ahead<kAmxColumns>(a, panel, P, begin, count);
    Stream stream{next.at[0], next.at[1], (next.bytes / 64 + all_steps - 1) / all_steps};
    for (size_t t = 0; t < a.tile_count; t += 2) {
        const uint8_t* const tile = a.tiles + t * a.tile_bytes + 2 * begin * a.tile_rows;
        float* const out = a.out + t * a.tile_rows * a.out_stride + kPanelRows * panel;
        if (t + 1 < a.tile_count) {
            amx_block<2, P>(weights, steps, tile, tile + a.tile_bytes, a.tile_rows, begin == 0, out,
                            a.out_stride, stream);
        } else {
            amx_block<1, P>(weights, steps, tile, tile, a.tile_rows, begin == 0, out, a.out_stride, stream);
        }
    }
}

inline void prefill_amx(const PrefillArgs& a) {
    const TileConfig config = tile_config(a.tile_rows);
    write_out(&config);
    _tile_loadconfig(&config);
    for_each_block<kAmxColumns, 2, kTileColumns>(
        a, [&a](size_t panel, size_t panels, const uint16_t* const* weights, size_t begin, size_t count) {
            if (panels == 2) {
                amx_blocks<2>(a, panel, weights, begin, count);
            } else {
                amx_blocks<1>(a, panel, weights, begin, count);
            }
        });
    _tile_release();
}

}  // namespace
}  // namespace kt
