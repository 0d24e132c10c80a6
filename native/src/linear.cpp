#include "kt/linear.h"

#include <algorithm>

#include "kt/prefill.h"

namespace kt {
namespace {

enum Slot : size_t { kPrepared, kRowPointers, kWide, kTile, kRow, kDecoded };

constexpr size_t kTileFloats = kRowsPerTask * kPanelsPerTask * kPanelRows;

// Each part's tasks in as many runs, of the same number as far as it goes.
std::vector<size_t> in_lanes(const std::vector<size_t>& begins, size_t lanes) {
    std::vector<size_t> out;
    for (size_t p = 0; p + 1 < begins.size(); ++p) {
        const size_t count = begins[p + 1] - begins[p];
        for (size_t l = 0; l < lanes; ++l) out.push_back(begins[p] + count * l / lanes);
    }
    out.push_back(begins.back());
    return out;
}

}  // namespace

Linear::Linear(Pool& pool, const Kernels& kernels, const StoredMatrix& stored, const float* bias)
    : pool_(pool),
      kernels_(kernels),
      format_(stored.format),
      rows_(stored.rows),
      cols_(stored.cols),
      bias_(bias ? std::vector<float>(bias, bias + stored.rows) : std::vector<float>()) {
    Pool::Lease lease(pool_);
    begins_ = lease.split(divide_up(rows_, kPanelRows));
    parts_.resize(begins_.size() - 1);
    std::vector<Packing> jobs;
    std::vector<size_t> job_begins{0};
    for (size_t p = 0; p < parts_.size(); ++p) {
        Part& part = parts_[p];
        part.weight = panel_shape(kernels, stored, begins_[p], begins_[p + 1]);
        part.memory = lease.weights(part.weight.bytes(), p, parts_.size());
        part.weight.panels = part.memory.data();
        jobs.push_back(
            {&stored, begins_[p], part.weight.panel_count(), part.memory.data(), part.weight.stride});
        job_begins.push_back(jobs.size());
    }
    pack(lease, kernels_, jobs, job_begins);
}

size_t Linear::bytes() const {
    size_t total = 0;
    for (const Part& part : parts_) total += part.weight.bytes();
    return total;
}

std::vector<size_t> Linear::task_begins(size_t block, size_t row_tasks) const {
    std::vector<size_t> begins{0};
    for (const Part& part : parts_) {
        begins.push_back(begins.back() + divide_up(part.weight.panel_count(), block) * row_tasks);
    }
    return begins;
}

void Linear::forward(const void* x, Dtype dtype, size_t tokens, void* y) const {
    Pool::Lease lease(pool_);
    const bool tiled = tokens >= kernels_.prefill_from(format_);
    for (size_t first = 0; first < tokens; first += kRowsPerChunk) {
        const Rows rows{x, y, dtype, first, std::min(kRowsPerChunk, tokens - first)};
        tiled ? prefill(lease, rows) : direct(lease, rows);
    }
}

void Linear::direct(Pool::Lease& lease, const Rows& call) const {
    const FormatEntry& format = kernels_.formats[format_];
    const PrepareFn prepare = kernels_.prepare[static_cast<size_t>(format.info->policy)];
    const size_t threads = static_cast<size_t>(lease.threads());
    const size_t row_bytes = prepared_bytes(format.info->policy, cols_);
    uint8_t* const prepared = lease.scratch<uint8_t>(kPrepared, call.count * row_bytes);
    const uint8_t** const rows = lease.scratch<const uint8_t*>(kRowPointers, call.count);
    float* const wide = lease.scratch<float>(kWide, threads * cols_);
    float* const tiles = lease.scratch<float>(kTile, threads * kTileFloats);

    const size_t block = panels_per_task(begins_.back(), parts_.front().weight.panel_bytes, lease.threads());
    const size_t row_tasks = divide_up(call.count, kRowsPerTask);
    const std::vector<size_t> begins = task_begins(block, row_tasks);
    const size_t lanes = lease.lanes(parts_.size());
    Phase preparing(call.count), multiplying;
    multiplying.set(in_lanes(begins, lanes), false, lanes);

    const auto prepare_row = [&](const Worker& worker, size_t m) {
        float* const scratch = wide + worker.index * cols_;
        rows[m] = prepared + m * row_bytes;
        prepare(row_f32(call.x, call.dtype, call.first + m, cols_, scratch), 0, cols_,
                prepared + m * row_bytes);
    };
    const auto multiply = [&](const Worker& worker, size_t task, size_t n) {
        const size_t part = n / lanes;
        float* const tile = tiles + worker.index * kTileFloats;
        const PanelMatrix& weight = parts_[part].weight;
        const size_t at = task - begins[part];
        const size_t m = at % row_tasks * kRowsPerTask, p = at / row_tasks * block;
        const size_t height = std::min(kRowsPerTask, call.count - m);
        const size_t width = std::min(block, weight.panel_count() - p);
        format.matmul({weight.panels + p * weight.stride, weight.panel_bytes, width, cols_, rows + m, height,
                       tile, width * kPanelRows});
        finish(call, m, height, (begins_[part] + p) * kPanelRows, width * kPanelRows, tile);
    };
    lease.parallel(
        [&](const Worker& worker) {
            preparing.run(worker, [&](size_t m, size_t) { prepare_row(worker, m); });
            multiplying.run(worker, [&](size_t task, size_t n) { multiply(worker, task, n); });
        },
        bytes() * call.count);
}

void Linear::prefill(Pool::Lease& lease, const Rows& call) const {
    const Prefill& path = kernels_.prefill;
    const size_t threads = static_cast<size_t>(lease.threads());
    const size_t cols = cols_, row_bytes = prepared_bytes(Policy::kBf16, cols);
    Tiles tiles = tile_shape(path, call.count, cols);
    tiles.data = lease.scratch<uint8_t>(kPrepared, tiles.total_bytes());
    float* const wide = lease.scratch<float>(kWide, threads * cols);
    uint8_t* const rows = lease.scratch<uint8_t>(kRow, threads * row_bytes);
    float* const outs = lease.scratch<float>(kTile, threads * kPrefillFloats);
    uint16_t* const decoded = lease.scratch<uint16_t>(kDecoded, threads * kDecodedValues);

    const size_t height = tiles_per_task(tiles), row_tasks = divide_up(tiles.count, height);
    const size_t block = prefill_width(begins_.back(), row_tasks, lease.threads());
    const std::vector<size_t> begins = task_begins(block, row_tasks);
    Phase gathering(tiles.count), multiplying;
    multiplying.set(begins);

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
    const auto multiply = [&](const Worker& worker, size_t task, size_t part) {
        float* const out = outs + worker.index * kPrefillFloats;
        const PanelMatrix& weight = parts_[part].weight;
        // the rows of one task stay in a core's cache for its next one
        const size_t column_tasks = divide_up(weight.panel_count(), block), at = task - begins[part];
        const size_t t = at / column_tasks * height, p = at % column_tasks * block;
        const size_t width = std::min(block, weight.panel_count() - p), first = t * tiles.rows;
        kt::prefill(kernels_, weight, p, width, tiles, t, std::min(height, tiles.count - t),
                    decoded + worker.index * kDecodedValues, out);
        finish(call, first, std::min(height * tiles.rows, call.count - first),
               (begins_[part] + p) * kPanelRows, width * kPanelRows, out);
    };
    lease.parallel([&](const Worker& worker) {
        gathering.run(worker, [&](size_t t, size_t) { gather_tile(worker, t); });
        multiplying.run(worker, [&](size_t task, size_t part) { multiply(worker, task, part); });
    });
}

// Adds the bias and writes a tile of results: rows first .. first + count - 1 of the chunk, `stride` columns
// from `column` on.
void Linear::finish(const Rows& rows, size_t first, size_t count, size_t column, size_t stride,
                    float* tile) const {
    const size_t columns = std::min(stride, rows_ - column);
    for (size_t i = 0; i < count; ++i) {
        float* const out = tile + i * stride;
        for (size_t j = 0; j < columns && !bias_.empty(); ++j) out[j] += bias_[column + j];
        write_row(out, columns, rows.dtype, rows.y, (rows.first + first + i) * rows_ + column);
    }
}

}  // namespace kt
