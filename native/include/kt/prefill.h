// The prefill path's rows and products, common to Linear and Experts.
#pragma once

#include "kt/matrix.h"

namespace kt {

// Rows that lie in tiles, as the tier's prefill kernel reads them. Heights are even: 33 rows are three tiles
// of 11 and not two of 16 and one of 1. Rows after the last are zeros.
struct Tiles {
    size_t rows = 0;   // of a tile
    size_t count = 0;  // of tiles
    size_t bytes = 0;  // of a tile
    uint8_t* data = nullptr;

    size_t total_bytes() const { return count * bytes; }
};

Tiles tile_shape(const Prefill& prefill, size_t rows, size_t cols);

// Puts columns begin .. end - 1 of row `index`, prepared by kBf16, into its tile.
void gather(const Prefill& prefill, const Tiles& tiles, const uint8_t* row, size_t begin, size_t end,
            size_t index);

// Zeros in columns begin .. end - 1 of the places after `rows` in the last tile. zeros: end of them,
// bfloat16.
void fill_up(const Prefill& prefill, const Tiles& tiles, const uint8_t* zeros, size_t begin, size_t end,
             size_t rows);

// Limits of one task: 256 rows by 8 panels of results and a block of those rows' columns are 256 KiB, which
// a core's cache holds. Rows are tiles of at most 16, so the largest task has no more than 256.
constexpr size_t kPrefillRows = 256;
constexpr size_t kPrefillPanels = 8;
constexpr size_t kPrefillFloats = kPrefillRows * kPrefillPanels * kPanelRows;
constexpr size_t kDecodedValues = kBlockPanels * kPanelRows * kBlockColumns;

// Tiles of a task, and panels: even, so that a task's part of the next product is whole int8 groups.
size_t tiles_per_task(const Tiles& tiles);
size_t prefill_width(size_t panels, size_t row_tasks, int threads);

// Tiles tile .. tile + count - 1 times panels panel .. panel + width - 1; out [count * tiles.rows][16 *
// width]. With a second weight of the same shape and format: times its panels too, in one pass over the rows;
// out [count * tiles.rows][2][16 * width].
void prefill(const Kernels& kernels, const PanelMatrix& weight, size_t panel, size_t width,
             const Tiles& tiles, size_t tile, size_t count, uint16_t* scratch, float* out,
             const PanelMatrix* second = nullptr);

}  // namespace kt
