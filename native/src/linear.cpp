#include "kt/linear.h"

#include <algorithm>

#include "kt/prefill.h"

namespace kt {
namespace {

enum Slot : size_t { kPrepared, kRowPointers, kWide, kTile, kRow, kDecoded };

constexpr size_t kTileFloats = kRowsPerTask * kPanelsPerTask * kPanelRows;

}  // namespace

Linear::Linear(Pool& pool, const Kernels& kernels, const StoredMatrix& stored, const float* bias)
    : pool_(pool),
      kernels_(kernels),
      weight_(panel_shape(kernels, stored)),
      bias_(bias ? std::vector<float>(bias, bias + stored.rows) : std::vector<float>()) {
    Pool::Lease lease(pool_);
    memory_ = lease.weights(weight_.bytes(), 0, 1);
    pack(lease, kernels_, stored, weight_, memory_.data());
    weight_.panels = memory_.data();
}

void Linear::forward(const void* x, Dtype dtype, size_t tokens, void* y) const {
    Pool::Lease lease(pool_);
    const bool tiled = tokens >= kernels_.prefill_from(weight_.format);
    for (size_t first = 0; first < tokens; first += kRowsPerChunk) {
        const Rows rows{x, y, dtype, first, std::min(kRowsPerChunk, tokens - first)};
        tiled ? prefill(lease, rows) : direct(lease, rows);
    }
}

void Linear::direct(Pool::Lease& lease, const Rows& call) const {
    const FormatEntry& format = kernels_.formats[weight_.format];
    const PrepareFn prepare = kernels_.prepare[static_cast<size_t>(format.info->policy)];
    const size_t threads = static_cast<size_t>(lease.threads());
    const size_t row_bytes = prepared_bytes(format.info->policy, weight_.cols);
    uint8_t* const prepared = lease.scratch<uint8_t>(kPrepared, call.count * row_bytes);
    const uint8_t** const rows = lease.scratch<const uint8_t*>(kRowPointers, call.count);
    float* const wide = lease.scratch<float>(kWide, threads * weight_.cols);
    float* const tiles = lease.scratch<float>(kTile, threads * kTileFloats);

    const size_t panels = weight_.panel_count();
    const size_t block = panels_per_task(panels, weight_.panel_bytes, lease.threads());
    const size_t row_tasks = divide_up(call.count, kRowsPerTask);
    Phase preparing(call.count), multiplying(row_tasks * divide_up(panels, block));

    const auto prepare_row = [&](const Worker& worker, size_t m) {
        float* const scratch = wide + worker.index * weight_.cols;
        rows[m] = prepared + m * row_bytes;
        prepare(row_f32(call.x, call.dtype, call.first + m, weight_.cols, scratch), 0, weight_.cols,
                prepared + m * row_bytes);
    };
    const auto multiply = [&](const Worker& worker, size_t task) {
        float* const tile = tiles + worker.index * kTileFloats;
        const size_t m = task % row_tasks * kRowsPerTask, p = task / row_tasks * block;
        const size_t height = std::min(kRowsPerTask, call.count - m), width = std::min(block, panels - p);
        format.matmul({weight_.panels + p * weight_.panel_bytes, weight_.panel_bytes, width, weight_.cols,
                       rows + m, height, tile, width * kPanelRows});
        finish(call, m, height, p, width, tile);
    };
    lease.parallel(
        [&](const Worker& worker) {
            preparing.run(worker, [&](size_t m, size_t) { prepare_row(worker, m); });
            multiplying.run(worker, [&](size_t task, size_t) { multiply(worker, task); });
        },
        weight_.bytes() * call.count);
}

void Linear::prefill(Pool::Lease& lease, const Rows& call) const {
    const Prefill& path = kernels_.prefill;
    const size_t threads = static_cast<size_t>(lease.threads());
    const size_t cols = weight_.cols, row_bytes = prepared_bytes(Policy::kBf16, cols);
    Tiles tiles = tile_shape(path, call.count, cols);
    tiles.data = lease.scratch<uint8_t>(kPrepared, tiles.total_bytes());
    float* const wide = lease.scratch<float>(kWide, threads * cols);
    uint8_t* const rows = lease.scratch<uint8_t>(kRow, threads * row_bytes);
    float* const outs = lease.scratch<float>(kTile, threads * kPrefillFloats);
    uint16_t* const decoded = lease.scratch<uint16_t>(kDecoded, threads * kDecodedValues);

    const size_t panels = weight_.panel_count(), height = tiles_per_task(tiles);
    const size_t row_tasks = divide_up(tiles.count, height);
    const size_t block = prefill_width(panels, row_tasks, lease.threads());
    const size_t column_tasks = divide_up(panels, block);
    Phase gathering(tiles.count), multiplying(row_tasks * column_tasks);

    const auto gather_tile = [&](const Worker& worker, size_t t) {
        float* const scratch = wide + worker.index * cols;
        uint8_t* const row = rows + worker.index * row_bytes;
        const size_t end = std::min(call.count, (t + 1) * tiles.rows);
        for (size_t m = t * tiles.rows; m < end; ++m) {
            const float* const x = row_f32(call.x, call.dtype, call.first + m, cols, scratch);
            kernels_.prepare[static_cast<size_t>(Policy::kBf16)](x, 0, cols, row);
            gather(path, tiles, row, 0, cols, m);
        }
        if (end < call.count) return;
        std::fill_n(row, row_bytes, uint8_t{0});
        fill_up(path, tiles, row, 0, cols, call.count);
    };
    const auto multiply = [&](const Worker& worker, size_t task) {
        float* const out = outs + worker.index * kPrefillFloats;
        // the rows of one task stay in a core's cache for its next one
        const size_t t = task / column_tasks * height, p = task % column_tasks * block;
        const size_t width = std::min(block, panels - p), first = t * tiles.rows;
        kt::prefill(kernels_, weight_, p, width, tiles, t, std::min(height, tiles.count - t),
                    decoded + worker.index * kDecodedValues, out);
        finish(call, first, std::min(height * tiles.rows, call.count - first), p, width, out);
    };
    lease.parallel([&](const Worker& worker) {
        gathering.run(worker, [&](size_t t, size_t) { gather_tile(worker, t); });
        multiplying.run(worker, [&](size_t task, size_t) { multiply(worker, task); });
    });
}

// Adds the bias and writes a tile of results: rows first .. first + count - 1 of the chunk, columns of
// panels panel .. panel + width - 1.
void Linear::finish(const Rows& rows, size_t first, size_t count, size_t panel, size_t width,
                    float* tile) const {
    const size_t stride = width * kPanelRows, column = panel * kPanelRows;
    const size_t columns = std::min(stride, weight_.rows - column);
    for (size_t i = 0; i < count; ++i) {
        float* const out = tile + i * stride;
        for (size_t j = 0; j < columns && !bias_.empty(); ++j) out[j] += bias_[column + j];
        write_row(out, columns, rows.dtype, rows.y, (rows.first + first + i) * weight_.rows + column);
    }
}

}  // namespace kt
