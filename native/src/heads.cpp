#include "kt/heads.h"

#include <algorithm>
#include <stdexcept>

namespace kt {
namespace {

enum Slot : size_t { kPrepared, kWide, kTile };

// Rows of a task: they pass a head's panels together.
constexpr size_t kRows = 32;

uint8_t* row_at(const HeadRows& rows, Dtype dtype, size_t token, size_t head) {
    const size_t item = dtype == Dtype::kBf16 ? 2 : 4;
    return static_cast<uint8_t*>(rows.data) + item * (token * rows.token_stride + head * rows.head_stride);
}

}  // namespace

HeadLinear::HeadLinear(Pool& pool, const Kernels& kernels, const std::vector<StoredMatrix>& heads)
    : pool_(pool), kernels_(kernels) {
    if (heads.empty()) throw std::invalid_argument("expected at least one head");
    const PanelMatrix shape = panel_shape(kernels, heads[0], 0, divide_up(heads[0].rows, kPanelRows));
    for (const StoredMatrix& head : heads) {
        if (head.format != shape.format || head.rows != shape.rows || head.cols != shape.cols) {
            throw std::invalid_argument("the weights of all heads must have one format and shape");
        }
    }
    Pool::Lease lease(pool_);
    memory_ = lease.weights(heads.size() * shape.bytes(), 0, 1);
    weights_.assign(heads.size(), shape);
    std::vector<Packing> jobs;
    for (size_t h = 0; h < heads.size(); ++h) {
        uint8_t* const panels = memory_.data() + h * shape.bytes();
        jobs.push_back({&heads[h], 0, shape.panel_count(), panels, shape.stride});
        weights_[h].panels = panels;
    }
    pack(lease, kernels_, jobs, std::vector<size_t>{0, jobs.size()});
}

void HeadLinear::forward(Pool::Lease& lease, const HeadRows& x, Dtype dtype, size_t tokens,
                         const HeadRows& y) const {
    const PanelMatrix& shape = weights_[0];
    const FormatEntry& format = kernels_.formats[shape.format];
    const PrepareFn prepare = kernels_.prepare[static_cast<size_t>(format.info->policy)];
    const size_t threads = static_cast<size_t>(lease.threads()), width = shape.panel_count() * kPanelRows;
    const size_t row_bytes = prepared_bytes(format.info->policy, shape.cols);
    uint8_t* const prepared = lease.scratch<uint8_t>(kPrepared, threads * kRows * row_bytes);
    float* const wide = lease.scratch<float>(kWide, threads * shape.cols);
    float* const tiles = lease.scratch<float>(kTile, threads * kRows * width);
    const size_t blocks = divide_up(tokens, kRows);
    Phase multiplying(heads() * blocks);
    const auto multiply = [&](const Worker& worker, size_t task) {
        const size_t thread = static_cast<size_t>(worker.index), head = task / blocks;
        const size_t first = task % blocks * kRows, count = std::min(kRows, tokens - first);
        float* const out = tiles + thread * kRows * width;
        const uint8_t* rows[kRows];
        for (size_t i = 0; i < count; ++i) {
            uint8_t* const row = prepared + (thread * kRows + i) * row_bytes;
            prepare(
                row_f32(row_at(x, dtype, first + i, head), dtype, 0, shape.cols, wide + thread * shape.cols),
                0, shape.cols, row);
            rows[i] = row;
        }
        format.matmul({weights_[head].panels, shape.panel_bytes, shape.panel_count(), shape.cols, rows, count,
                       out, width, kernels_.asks});
        for (size_t i = 0; i < count; ++i) {
            write_row(out + i * width, shape.rows, dtype, row_at(y, dtype, first + i, head), 0);
        }
    };
    lease.parallel(
        [&](const Worker& worker) {
            multiplying.run(worker, [&](size_t task, size_t) { multiply(worker, task); });
        },
        bytes() * tokens);
}

}  // namespace kt
