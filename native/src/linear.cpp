#include "kt/linear.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kt/prefill.h"

namespace kt {
namespace {

enum Slot : size_t {
    kWide,
    kTile,
    kRow,
    kDecoded,
    kTiles,
    kBegins,
    kFirsts,
    kLaneBegins,
    kPrepared,
    kRowPointers = kPrepared + kPolicies
};

constexpr size_t kPieceBytes = size_t{1} << 26;
constexpr size_t kTileFloats = kRowsPerTask * kPanelsPerTask * kPanelRows;

// Each part's tasks in as many runs, of the same number as far as it goes.
std::span<const size_t> in_lanes(Pool::Lease& lease, std::span<const size_t> begins, size_t lanes) {
    const size_t parts = begins.size() - 1;
    size_t* const out = lease.scratch<size_t>(kLaneBegins, parts * lanes + 1);
    for (size_t p = 0; p < parts; ++p) {
        const size_t count = begins[p + 1] - begins[p];
        for (size_t l = 0; l < lanes; ++l) out[p * lanes + l] = begins[p] + count * l / lanes;
    }
    out[parts * lanes] = begins.back();
    return {out, parts * lanes + 1};
}

}  // namespace

Linear::Linear(Pool& pool, const Kernels& kernels, const StoredMatrix& stored, const float* bias,
               const std::function<void()>& between)
    : pool_(pool),
      kernels_(kernels),
      format_(stored.format),
      rows_(stored.rows),
      cols_(stored.cols),
      bias_(bias ? std::vector<float>(bias, bias + stored.rows) : std::vector<float>()) {
    {
        Pool::Lease lease(pool_);
        begins_ = lease.split(divide_up(rows_, kPanelRows));
        parts_.resize(begins_.size() - 1);
        for (size_t p = 0; p < parts_.size(); ++p) {
            Part& part = parts_[p];
            part.weight = panel_shape(kernels, stored, begins_[p], begins_[p + 1]);
            part.memory = lease.weights(part.weight.bytes(), p, parts_.size());
            part.weight.panels = part.memory.data();
        }
    }
    const size_t pieces = std::max<size_t>(1, divide_up(bytes(), kPieceBytes));
    for (size_t piece = 0; piece < pieces; ++piece) {
        pack_piece(stored, piece, pieces);
        if (between && piece + 1 < pieces) between();
    }
}

void Linear::pack_piece(const StoredMatrix& stored, size_t piece, size_t pieces) {
    std::vector<Packing> jobs;
    std::vector<size_t> job_begins{0};
    for (size_t p = 0; p < parts_.size(); ++p) {
        const Part& part = parts_[p];
        const size_t count = part.weight.panel_count(), stride = part.weight.stride;
        const size_t begin = count * piece / pieces, end = count * (piece + 1) / pieces;
        jobs.push_back(
            {&stored, begins_[p] + begin, end - begin, part.memory.data() + begin * stride, stride});
        job_begins.push_back(jobs.size());
    }
    Pool::Lease lease(pool_);
    pack(lease, kernels_, jobs, job_begins);
}

size_t Linear::bytes() const {
    size_t total = 0;
    for (const Part& part : parts_) total += part.weight.bytes();
    return total;
}

// The products of one call by the direct path: rows are prepared once for each rounding, and a part's tasks
// are those of the first weight, of the second, ...
struct Linear::Products {
    std::span<const Target> targets;
    size_t count;                 // rows
    size_t blocks[kMostTargets];  // panels of a task
    size_t row_tasks;
    size_t parts;
    size_t* begins;  // of the parts' tasks, and the end
    size_t* firsts;  // [parts][targets]: first task of each weight

    Products(Pool::Lease& lease, std::span<const Target> to, size_t rows)
        : targets(to),
          count(rows),
          row_tasks(divide_up(rows, kRowsPerTask)),
          parts(to[0].linear->parts_.size()) {
        size_t panels = 0;
        for (const Target& target : targets) panels += target.linear->begins_.back();
        for (size_t i = 0; i < targets.size(); ++i) {
            const size_t bytes = targets[i].linear->parts_.front().weight.panel_bytes;
            blocks[i] = panels_per_task(panels, bytes, lease.threads());
        }
        begins = lease.scratch<size_t>(kBegins, parts + 1);
        firsts = lease.scratch<size_t>(kFirsts, parts * targets.size());
        size_t task = 0;
        for (size_t p = 0; p < parts; ++p) {
            begins[p] = task;
            for (size_t i = 0; i < targets.size(); ++i) {
                firsts[p * targets.size() + i] = task;
                const size_t all = targets[i].linear->parts_[p].weight.panel_count();
                task += divide_up(all, blocks[i]) * row_tasks;
            }
        }
        begins[parts] = task;
    }

    // Which weight a task of a part belongs to.
    size_t target(size_t task, size_t part) const {
        const size_t* const first = firsts + part * targets.size();
        return static_cast<size_t>(std::upper_bound(first, first + targets.size(), task) - first - 1);
    }

    void multiply(size_t task, size_t part, const uint8_t* const* const* rows, float* tile) const {
        const size_t i = target(task, part);
        const Linear& linear = *targets[i].linear;
        const PanelMatrix& weight = linear.parts_[part].weight;
        const size_t at = task - firsts[part * targets.size() + i];
        const size_t m = at % row_tasks * kRowsPerTask, p = at / row_tasks * blocks[i];
        const size_t height = std::min(kRowsPerTask, count - m);
        const size_t width = std::min(blocks[i], weight.panel_count() - p);
        linear.format().matmul({weight.panels + p * weight.stride, weight.panel_bytes, width, linear.cols_,
                                rows[linear.policy()] + m, height, tile, width * kPanelRows,
                                linear.kernels_.asks});
        linear.finish(targets[i], m, height, (linear.begins_[part] + p) * kPanelRows, width * kPanelRows,
                      tile);
    }
};

void Linear::forward(const void* x, Dtype dtype, size_t tokens, void* y) const {
    struct Plain {
        const void* x;
        Dtype dtype;
        size_t cols;
    } const plain{x, dtype, cols_};
    const RowSource source{[](const void* context, size_t row, float* scratch) {
                               const Plain& from = *static_cast<const Plain*>(context);
                               return row_f32(from.x, from.dtype, row, from.cols, scratch);
                           },
                           &plain};
    const Target target{this, y, rows_, dtype};
    Pool::Lease lease(pool_);
    forward(lease, {&target, 1}, source, tokens);
}

void Linear::forward(Pool::Lease& lease, std::span<const Target> targets, const RowSource& source,
                     size_t tokens) {
    if (targets.empty() || targets.size() > kMostTargets) {
        throw std::invalid_argument("expected 1 to " + std::to_string(kMostTargets) + " weights");
    }
    for (const Target& target : targets) {
        const Linear &linear = *target.linear, &first = *targets[0].linear;
        if (linear.cols_ != first.cols_ || linear.parts_.size() != first.parts_.size()) {
            throw std::invalid_argument("weights of one call need the same columns and groups of threads");
        }
        if (target.add && target.dtype != Dtype::kF32) {
            throw std::invalid_argument("results are added to float32 alone");
        }
    }
    for (size_t first = 0; first < tokens; first += kRowsPerChunk) {
        const Rows rows{source, first, std::min(kRowsPerChunk, tokens - first)};
        Target left[kMostTargets];
        size_t count = 0;
        for (Target target : targets) {
            const size_t item = target.dtype == Dtype::kBf16 ? 2 : 4;
            target.y = static_cast<uint8_t*>(target.y) + item * first * target.stride;
            if (tokens >= target.linear->kernels_.prefill_from(target.linear->format_)) {
                target.linear->prefill(lease, target, rows);
            } else {
                left[count++] = target;
            }
        }
        if (count) direct(lease, {left, count}, rows);
    }
}

void Linear::direct(Pool::Lease& lease, std::span<const Target> targets, const Rows& call) {
    const size_t threads = static_cast<size_t>(lease.threads()), cols = targets[0].linear->cols_;
    uint8_t* prepared[kPolicies] = {};
    const uint8_t** rows[kPolicies] = {};
    PrepareFn prepare[kPolicies] = {};
    size_t strides[kPolicies] = {}, bytes = 0;
    for (const Target& target : targets) {
        const size_t i = target.linear->policy();
        bytes += target.linear->bytes();
        if (prepare[i]) continue;
        prepare[i] = target.linear->kernels_.prepare[i];
        strides[i] = prepared_bytes(static_cast<Policy>(i), cols);
        prepared[i] = lease.scratch<uint8_t>(kPrepared + i, call.count * strides[i]);
        rows[i] = lease.scratch<const uint8_t*>(kRowPointers + i, call.count);
    }
    float* const wide = lease.scratch<float>(kWide, threads * cols);
    float* const tiles = lease.scratch<float>(kTile, threads * kTileFloats);
    const Products products(lease, targets, call.count);
    const size_t lanes = lease.lanes(products.parts);
    Phase preparing(call.count), multiplying;
    multiplying.set(in_lanes(lease, {products.begins, products.parts + 1}, lanes), false, lanes);
    const auto prepare_row = [&](const Worker& worker, size_t m) {
        const float* const x =
            call.source.make(call.source.context, call.first + m, wide + worker.index * cols);
        for (size_t i = 0; i < kPolicies; ++i) {
            if (!prepare[i]) continue;
            rows[i][m] = prepared[i] + m * strides[i];
            prepare[i](x, 0, cols, prepared[i] + m * strides[i]);
        }
    };
    lease.parallel(
        [&](const Worker& worker) {
            preparing.run(worker, [&](size_t m, size_t) { prepare_row(worker, m); });
            multiplying.run(worker, [&](size_t task, size_t n) {
                products.multiply(task, n / lanes, rows, tiles + worker.index * kTileFloats);
            });
        },
        bytes * call.count);
}

void Linear::prefill(Pool::Lease& lease, const Target& to, const Rows& call) const {
    const Prefill& path = kernels_.prefill;
    const size_t threads = static_cast<size_t>(lease.threads());
    const size_t cols = cols_, row_bytes = prepared_bytes(Policy::kBf16, cols);
    Tiles tiles = tile_shape(path, call.count, cols);
    tiles.data = lease.scratch<uint8_t>(kTiles, tiles.total_bytes());
    float* const wide = lease.scratch<float>(kWide, threads * cols);
    uint8_t* const rows = lease.scratch<uint8_t>(kRow, threads * row_bytes);
    float* const outs = lease.scratch<float>(kTile, threads * kPrefillFloats);
    uint16_t* const decoded = lease.scratch<uint16_t>(kDecoded, threads * kDecodedValues);

    const size_t height = tiles_per_task(tiles), row_tasks = divide_up(tiles.count, height);
    const size_t block = prefill_width(begins_.back(), row_tasks, lease.threads());
    size_t* const begins = lease.scratch<size_t>(kBegins, parts_.size() + 1);
    begins[0] = 0;
    for (size_t p = 0; p < parts_.size(); ++p) {
        begins[p + 1] = begins[p] + divide_up(parts_[p].weight.panel_count(), block) * row_tasks;
    }
    Phase gathering(tiles.count), multiplying;
    multiplying.set({begins, parts_.size() + 1});

    const auto gather_tile = [&](const Worker& worker, size_t t) {
        float* const scratch = wide + worker.index * cols;
        uint8_t* const row = rows + worker.index * row_bytes;
        const size_t end = std::min(call.count, (t + 1) * tiles.rows);
        for (size_t m = t * tiles.rows; m < end; ++m) {
            const float* const x = call.source.make(call.source.context, call.first + m, scratch);
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
        finish(to, first, std::min(height * tiles.rows, call.count - first), (begins_[part] + p) * kPanelRows,
               width * kPanelRows, out);
    };
    lease.parallel([&](const Worker& worker) {
        gathering.run(worker, [&](size_t t, size_t) { gather_tile(worker, t); });
        multiplying.run(worker, [&](size_t task, size_t part) { multiply(worker, task, part); });
    });
}

void Linear::finish(const Target& to, size_t row, size_t count, size_t column, size_t stride,
                    float* tile) const {
    const size_t columns = std::min(stride, rows_ - column);
    for (size_t i = 0; i < count; ++i) {
        float* const out = tile + i * stride;
        for (size_t j = 0; j < columns && !bias_.empty(); ++j) out[j] += bias_[column + j];
        const size_t offset = (row + i) * to.stride + column;
        to.add ? add_row(out, columns, to.y, offset) : write_row(out, columns, to.dtype, to.y, offset);
    }
}

}  // namespace kt
