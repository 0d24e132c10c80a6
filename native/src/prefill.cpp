#include "kt/prefill.h"

#include <algorithm>

namespace kt {

Tiles tile_shape(const Prefill& prefill, size_t rows, size_t cols) {
    Tiles tiles;
    const size_t least = divide_up(rows, prefill.max_tile_rows);
    tiles.rows = divide_up(rows, least);
    tiles.count = divide_up(rows, tiles.rows);
    tiles.bytes = divide_up(cols, kGroup) * kGroup * prefill.value_bytes * tiles.rows;
    return tiles;
}

void gather(const Prefill& prefill, const Tiles& tiles, const uint8_t* row, size_t begin, size_t end,
            size_t index) {
    prefill.gather(row, begin, end, tiles.rows, index % tiles.rows,
                   tiles.data + index / tiles.rows * tiles.bytes);
}

void fill_up(const Prefill& prefill, const Tiles& tiles, const uint8_t* zeros, size_t begin, size_t end,
             size_t rows) {
    for (size_t index = rows; index < tiles.rows * tiles.count; ++index) {
        gather(prefill, tiles, zeros, begin, end, index);
    }
}

size_t tiles_per_task(const Tiles& tiles) {
    const size_t most = std::max<size_t>(kPrefillRows / tiles.rows, 1);
    return divide_up(tiles.count, divide_up(tiles.count, most));
}

size_t prefill_width(size_t panels, size_t row_tasks, int threads) {
    const size_t width = panels * row_tasks / (4 * static_cast<size_t>(threads));
    return std::clamp<size_t>(width / 2 * 2, 2, kPrefillPanels);
}

void prefill(const Kernels& kernels, const PanelMatrix& weight, size_t panel, size_t width,
             const Tiles& tiles, size_t tile, size_t count, uint16_t* scratch, float* out,
             const PanelMatrix* second) {
    const size_t all = second ? 2 * width : width, at = panel * weight.stride;
    kernels.prefill.matmul({.panels = weight.panels + at,
                            .more = second ? second->panels + at : nullptr,
                            .split = width,
                            .panel_bytes = weight.panel_bytes,
                            .panel_stride = weight.stride,
                            .panel_count = all,
                            .k = weight.cols,
                            .unpack = kernels.formats[weight.format].unpack,
                            .tiles = tiles.data + tile * tiles.bytes,
                            .tile_bytes = tiles.bytes,
                            .tile_count = count,
                            .tile_rows = tiles.rows,
                            .scratch = scratch,
                            .out = out,
                            .out_stride = all * kPanelRows});
}

}  // namespace kt
