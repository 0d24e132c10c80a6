#include "kt/layer.h"

#include <algorithm>
#include <stdexcept>

namespace kt {
namespace {

enum Slot : size_t { kRows };

size_t item(Dtype dtype) {
    return dtype == Dtype::kBf16 ? 2 : 4;
}

const void* at(const void* base, Dtype dtype, size_t offset) {
    return static_cast<const uint8_t*>(base) + item(dtype) * offset;
}

// Tasks of about 16 KiB: rows of few values go together.
size_t rows_per_task(size_t size) {
    return std::max<size_t>(4096 / std::max<size_t>(size, 1), 1);
}

// Calls body(row, scratch) for rows 0 .. count - 1, scratch `floats` a thread; a row is `size` values.
template <class Body>
void for_rows(Pool::Lease& lease, size_t count, size_t size, size_t floats, Body&& body) {
    float* const scratch = lease.scratch<float>(kRows, static_cast<size_t>(lease.threads()) * floats);
    const size_t block = rows_per_task(size);
    Phase working(divide_up(count, block));
    lease.parallel(
        [&](const Worker& worker) {
            working.run(worker, [&](size_t task, size_t) {
                const size_t end = std::min((task + 1) * block, count);
                for (size_t row = task * block; row < end; ++row) {
                    body(row, scratch + static_cast<size_t>(worker.index) * floats);
                }
            });
        },
        count * size * sizeof(float));
}

}  // namespace

void rms_norm(Pool::Lease& lease, const Kernels& kernels, const NormCall& call) {
    const size_t rows = call.tokens * call.heads, size = call.size;
    for_rows(lease, rows, size, 2 * size, [&](size_t row, float* scratch) {
        const size_t token = row / call.heads, column = row % call.heads * size;
        const float* x =
            row_f32(at(call.x, call.dtype, token * call.x_stride + column), call.dtype, 0, size, scratch);
        if (call.residual) {
            const float* const before =
                row_f32(at(call.residual, call.dtype, row * size), call.dtype, 0, size, scratch + size);
            kernels.layer.combine[static_cast<size_t>(Combination::kAdd)](x, before, size, scratch);
            write_row(scratch, size, call.dtype, call.residual, row * size);
            x = scratch;
        }
        kernels.layer.norm(x, call.weight, call.offset, call.epsilon, size, scratch + size);
        write_row(scratch + size, size, call.dtype, call.y, token * call.y_stride + column);
    });
}

void rotate(Pool::Lease& lease, const Kernels& kernels, const RotateCall& call) {
    for (size_t t = 0; t < call.tokens; ++t) {
        if (call.positions[t] < 0 || static_cast<size_t>(call.positions[t]) >= call.table_rows) {
            throw std::invalid_argument("position " + std::to_string(call.positions[t]) +
                                        " is beyond the table of " + std::to_string(call.table_rows) +
                                        " rows");
        }
    }
    const size_t columns = 2 * call.pairs;
    for_rows(lease, call.tokens * call.heads, columns, columns, [&](size_t row, float* scratch) {
        const size_t token = row / call.heads;
        const size_t offset = token * call.token_stride + row % call.heads * call.size + call.first;
        const size_t angle = static_cast<size_t>(call.positions[token]) * call.pairs;
        if (call.dtype == Dtype::kF32) {
            return kernels.layer.rotate(static_cast<float*>(call.x) + offset, call.cosine + angle,
                                        call.sine + angle, call.pairs, call.interleaved);
        }
        row_f32(at(call.x, call.dtype, offset), call.dtype, 0, columns, scratch);
        kernels.layer.rotate(scratch, call.cosine + angle, call.sine + angle, call.pairs, call.interleaved);
        write_row(scratch, columns, call.dtype, call.x, offset);
    });
}

void route(Pool::Lease& lease, const Kernels& kernels, const RouteCall& call) {
    const RouteArgs& rule = call.rule;
    if (rule.experts == 0 || rule.slots == 0 || rule.slots > rule.experts) {
        throw std::invalid_argument("expected 1 to " + std::to_string(rule.experts) + " slots");
    }
    if (rule.groups == 0 || rule.experts % rule.groups || rule.top_groups == 0 ||
        rule.top_groups > rule.groups) {
        throw std::invalid_argument("groups must divide the experts, and 1 to all of them be chosen");
    }
    if (rule.group_best == 0 || rule.group_best > 2 || rule.group_best > rule.experts / rule.groups) {
        throw std::invalid_argument("a group's score is that of its best expert or of its two best");
    }
    for_rows(lease, call.tokens, rule.experts * 8, 2 * rule.experts + rule.groups,
             [&](size_t row, float* scratch) {
                 RouteArgs args = rule;
                 args.logits = call.logits + row * rule.experts;
                 args.scratch = scratch;
                 args.ids = call.ids + row * rule.slots;
                 args.weights = call.weights + row * rule.slots;
                 kernels.layer.route(args);
             });
}

void combine(Pool::Lease& lease, const Kernels& kernels, const CombineCall& call) {
    const CombineFn function = kernels.layer.combine[static_cast<size_t>(call.kind)];
    for_rows(lease, call.tokens, call.size, 3 * call.size, [&](size_t row, float* scratch) {
        const float* const a =
            row_f32(at(call.a, call.dtype, row * call.a_stride), call.dtype, 0, call.size, scratch);
        const float* const b = row_f32(at(call.b, call.dtype, row * call.b_stride), call.dtype, 0, call.size,
                                       scratch + call.size);
        float* const out = scratch + 2 * call.size;
        function(a, b, call.size, out);
        write_row(out, call.size, call.dtype, call.out, row * call.out_stride);
    });
}

}  // namespace kt
