#include "kt/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>

#include "kt/embedding.h"

namespace kt {
namespace {

[[noreturn]] void refuse(const std::string& why) {
    throw std::invalid_argument(why);
}

// Rows of a task where a task is little more than a copy.
constexpr size_t kRowsAtOnce = 8;

// body(row) for rows 0 .. count - 1, each of which moves `bytes`.
template <class Body>
void for_rows(Pool::Lease& lease, size_t count, size_t bytes, Body&& body) {
    Phase working(divide_up(count, kRowsAtOnce));
    lease.parallel(
        [&](const Worker& worker) {
            working.run(worker, [&](size_t task, size_t) {
                const size_t end = std::min((task + 1) * kRowsAtOnce, count);
                for (size_t row = task * kRowsAtOnce; row < end; ++row) body(row);
            });
        },
        count * bytes);
}

}  // namespace

Program::Program(Pool& pool, const Kernels& kernels, size_t max_tokens)
    : pool_(pool), kernels_(kernels), max_tokens_(max_tokens) {
    if (max_tokens == 0) refuse("a program needs room for at least one token");
}

size_t Program::bytes() const {
    size_t total = 0;
    for (const Rows& rows : rows_) total += rows.memory.bytes();
    return total;
}

size_t Program::rows(size_t width) {
    if (width == 0) refuse("a buffer needs at least one column");
    rows_.push_back({Buffer(max_tokens_ * width * sizeof(float)), width});
    std::memset(rows_.back().memory.data(), 0, max_tokens_ * width * sizeof(float));
    return rows_.size() - 1;
}

size_t Program::layer(const PageLayout& layout) {
    layout.check();
    layers_.push_back({layout});
    return layers_.size() - 1;
}

void Program::set_pages(size_t layer, uint8_t* pages, size_t count) {
    if (layer >= layers_.size()) refuse("no attention layer " + std::to_string(layer));
    layers_[layer].pages = pages;
    layers_[layer].count = count;
}

const float* Program::keep(std::span<const float> numbers) {
    if (numbers.empty()) return nullptr;
    return kept_.emplace_back(numbers.begin(), numbers.end()).data();
}

Program::Columns Program::checked(Columns at, size_t columns) const {
    if (at.buffer >= rows_.size()) refuse("no buffer " + std::to_string(at.buffer));
    const size_t width = rows_[at.buffer].width;
    if (columns > width || at.first > width - columns) {
        refuse("columns " + std::to_string(at.first) + " to " + std::to_string(at.first + columns) +
               " are not in a buffer of " + std::to_string(width));
    }
    return at;
}

float* Program::data(Columns at) const {
    return reinterpret_cast<float*>(rows_[at.buffer].memory.data()) + at.first;
}

// ---- operations ----

void Program::embed(std::string_view format, const uint8_t* table, size_t vocab, size_t stride, size_t width,
                    Columns x) {
    const DecodeFn decode = row_decoder(format);
    const FormatInfo& info = *kernels_.formats[kernels_.format(format)].info;
    if (!decode) refuse("rows of " + std::string(format) + " are not decoded here");
    if (width % info.block) refuse("a row must be whole blocks");
    checked(x, width);
    const size_t blocks = width / info.block;
    add("embed", [=, this](Run& run) {
        for (size_t t = 0; t < run.rows; ++t) {
            if (run.step.tokens[t] < 0 || static_cast<size_t>(run.step.tokens[t]) >= vocab) {
                refuse("token " + std::to_string(run.step.tokens[t]) + " does not exist");
            }
        }
        for_rows(run.lease, run.rows, width * sizeof(float), [&](size_t t) {
            const size_t token = static_cast<size_t>(run.step.tokens[t]);
            decode(table + token * stride, blocks, data(x) + t * this->stride(x));
        });
    });
}

void Program::given(size_t width, Columns x) {
    checked(x, width);
    add("embed", [=, this](Run& run) {
        if (!run.step.embedded) refuse("this program needs embedded rows");
        for (size_t t = 0; t < run.rows; ++t) {
            std::copy_n(run.step.embedded + t * width, width, data(x) + t * stride(x));
        }
    });
}

namespace {

// A source with its addresses; what makes rows for the threads of a region.
struct MadeRows {
    Program::Source::Kind kind;
    const LayerOps* ops;
    const float* x;
    const float* other;
    size_t x_stride, other_stride, keep_stride;
    const float* weight;
    float offset, epsilon;
    size_t size;
    float* keep;  // null: not wanted

    // Its rows from `row` on, made once more.
    MadeRows from_row(size_t row) const {
        MadeRows rest = *this;
        rest.x += row * x_stride;
        if (other) rest.other += row * other_stride;
        rest.keep = nullptr;
        return rest;
    }
    static const float* make(const void* context, size_t row, float* scratch) {
        const MadeRows& from = *static_cast<const MadeRows*>(context);
        const float* const x = from.x + row * from.x_stride;
        if (from.kind == Program::Source::kRows) return x;
        float* const out = from.keep ? from.keep + row * from.keep_stride : scratch;
        if (from.kind == Program::Source::kNorm) {
            from.ops->norm(x, from.weight, from.offset, from.epsilon, from.size, out);
        } else {
            const CombineFn combine = from.ops->combine[static_cast<size_t>(Combination::kSiluGate)];
            combine(x, from.other + row * from.other_stride, from.size, out);
        }
        return out;
    }
};

}  // namespace

size_t Program::linear(const Source& source, std::span<const Product> products) {
    if (products.empty() || products.size() > Linear::kMostTargets) refuse("a group has 1 to 8 products");
    const size_t size = products[0].linear->cols();
    for (const Product& product : products) {
        if (product.linear->cols() != size) refuse("products of the same rows need as many columns");
        if (product.y.buffer != kResults) checked(product.y, product.linear->rows());
    }
    if (!source.weight.empty() && source.weight.size() != size)
        refuse("a norm's weight must be as wide as its rows");
    const Columns x = checked(source.x, size);
    MadeRows from{.kind = source.kind,
                  .ops = &kernels_.layer,
                  .x = data(x),
                  .other = nullptr,
                  .x_stride = stride(x),
                  .other_stride = 0,
                  .keep_stride = 0,
                  .weight = keep(source.weight),
                  .offset = source.offset,
                  .epsilon = source.epsilon,
                  .size = size,
                  .keep = nullptr};
    if (source.kind == Source::kSiluGate) {
        from.other = data(checked(source.other, size));
        from.other_stride = stride(source.other);
    }
    if (source.keeps) {
        from.keep = data(checked(source.keep, size));
        from.keep_stride = stride(source.keep);
    }
    std::vector<Linear::Target> targets;
    for (const Product& product : products) {
        const bool results = product.y.buffer == kResults;
        targets.push_back({.linear = product.linear,
                           .y = results ? nullptr : data(product.y),
                           .stride = results ? product.linear->rows() : stride(product.y),
                           .add = product.add});
    }
    auto& shapes = shapes_.emplace_back();
    for (const Product& product : products) shapes.emplace_back(size, product.linear->rows());
    const AddedToLinear& added = added_to_linear_.emplace_back();
    const char* const kind = targets[0].y ? "linear" : "head";
    add(kind, [=, &added, this](Run& run) {
        Linear::Target now[Linear::kMostTargets];
        std::ranges::copy(targets, now);
        for (size_t i = 0; i < targets.size(); ++i) {
            if (!now[i].y) now[i].y = run.step.results;
        }
        Linear::forward(run.lease, {now, targets.size()}, {MadeRows::make, &from}, run.rows);
        for (const Stretch& rows : run.stretches) {
            const auto found = added.find(rows.adapter);
            if (found == added.end()) continue;
            Linear::Target here[Linear::kMostTargets];
            for (size_t i = 0; i < targets.size(); ++i) {
                here[i] = now[i];
                here[i].y = static_cast<float*>(now[i].y) + rows.first * now[i].stride;
            }
            const MadeRows some = from.from_row(rows.first);
            add_low_rank(run, {MadeRows::make, &some}, {here, targets.size()}, found->second, rows.count);
        }
    });
    return shapes_.size() - 1;
}

void Program::norm(Columns x, Columns y, size_t heads, size_t size, std::span<const float> weight,
                   float offset, float epsilon) {
    checked(x, heads * size);
    checked(y, heads * size);
    if (!weight.empty() && weight.size() != size) refuse("a norm's weight must be as wide as its rows");
    const float* const kept = keep(weight);
    add("norm", [=, this](Run& run) {
        rms_norm(run.lease, kernels_,
                 {data(x), stride(x), nullptr, data(y), stride(y), Dtype::kF32, kept, offset, epsilon,
                  run.rows, heads, size});
    });
}

size_t Program::table(std::span<const float> cosine, std::span<const float> sine, size_t pairs) {
    if (pairs == 0 || cosine.empty() || cosine.size() % pairs || cosine.size() != sine.size()) {
        refuse("rotary tables are two of [rows][pairs]");
    }
    tables_.push_back({keep(cosine), keep(sine), cosine.size() / pairs, pairs});
    return tables_.size() - 1;
}

void Program::rotate(Columns x, size_t heads, size_t size, size_t first, bool interleaved, size_t table) {
    if (table >= tables_.size()) refuse("no rotary table " + std::to_string(table));
    const Table turn = tables_[table];
    checked(x, heads * size);
    if (first + 2 * turn.pairs > size) refuse("a head has fewer columns than are rotated");
    add("rotate", [=, this](Run& run) {
        kt::rotate(run.lease, kernels_,
                   {data(x), stride(x), Dtype::kF32, run.rows, heads, size, first, turn.pairs, interleaved,
                    turn.cosine, turn.sine, turn.rows, run.step.positions});
    });
}

void Program::write(size_t layer, Columns keys, Columns values) {
    const PageLayout layout = layers_.at(layer).layout;
    checked(keys, layout.heads * layout.key_size);
    if (!layout.shared) checked(values, layout.heads * layout.value_size);
    add("write", [=, this](Run& run) {
        const Layer& to = layers_[layer];
        write_pages(run.lease, {layout, to.pages, to.count, run.step.slots, run.rows, data(keys),
                                layout.shared ? nullptr : data(values), Dtype::kF32, stride(keys),
                                layout.shared ? 0 : stride(values)});
    });
}

void Program::attend(size_t layer, Columns q, size_t query_heads, const Rule& rule, Columns out) {
    const PageLayout layout = layers_.at(layer).layout;
    checked(q, query_heads * layout.key_size);
    checked(out, query_heads * layout.value_size);
    if (stride(out) != query_heads * layout.value_size) refuse("attention fills whole rows");
    if (!rule.sinks.empty() && rule.sinks.size() != query_heads)
        refuse("there is a sink for each query head");
    const float* const sinks = keep(rule.sinks);
    const float scale = rule.scale, softcap = rule.softcap;
    const size_t window = rule.window;
    add("attend", [=, this](Run& run) {
        const Layer& from = layers_[layer];
        const ProgramStep& step = run.step;
        kt::attend(run.lease, kernels_,
                   {.layout = layout,
                    .pages = from.pages,
                    .page_count = from.count,
                    .tables = step.tables,
                    .table_stride = step.table_stride,
                    .lengths = step.lengths,
                    .starts = step.starts,
                    .sequences = step.sequences,
                    .q = data(q),
                    .q_stride = stride(q),
                    .query_heads = query_heads,
                    .out = data(out),
                    .dtype = Dtype::kF32,
                    .scale = scale,
                    .softcap = softcap,
                    .window = window,
                    .sinks = sinks});
    });
}

size_t Program::heads(const HeadLinear* linear, Columns x, size_t x_stride, Columns y, size_t y_stride) {
    checked(x, (linear->heads() - 1) * x_stride + linear->cols());
    checked(y, (linear->heads() - 1) * y_stride + linear->rows());
    const AddedToHeads& added = added_to_heads_.emplace_back(AddedToHeads{{-1, linear}});
    add("heads", [=, &added, this](Run& run) {
        const Stretch all{0, run.rows, -1};
        const bool parted = added.size() > 1 && !run.stretches.empty();
        for (const Stretch& rows : parted ? run.stretches : std::span(&all, 1)) {
            const auto found = added.find(rows.adapter);
            const HeadLinear& heads = found == added.end() ? *linear : *found->second;
            heads.forward(run.lease, {data(x) + rows.first * stride(x), stride(x), x_stride}, Dtype::kF32,
                          rows.count, {data(y) + rows.first * stride(y), stride(y), y_stride});
        }
    });
    return added_to_heads_.size() - 1;
}

void Program::copy(Columns x, size_t x_stride, Columns y, size_t y_stride, size_t heads, size_t size) {
    if (heads == 0) refuse("expected at least one head");
    checked(x, (heads - 1) * x_stride + size);
    checked(y, (heads - 1) * y_stride + size);
    add("copy", [=, this](Run& run) {
        for_rows(run.lease, run.rows, heads * size * sizeof(float), [&](size_t row) {
            const float* const from = data(x) + row * stride(x);
            float* const to = data(y) + row * stride(y);
            for (size_t h = 0; h < heads; ++h) std::copy_n(from + h * x_stride, size, to + h * y_stride);
        });
    });
}

void Program::route(Columns logits, const RouteArgs& rule, std::span<const float> bias) {
    checked(logits, rule.experts);
    if (stride(logits) != rule.experts || logits.first) refuse("logits are whole rows");
    if (!bias.empty() && bias.size() != rule.experts) refuse("a bias has a number for each expert");
    RouteArgs args = rule;
    args.bias = keep(bias);
    slots_ = rule.slots;
    ids_.resize(std::max(ids_.size(), max_tokens_ * slots_));
    weights_.resize(ids_.size());
    add("route", [=, this](Run& run) {
        kt::route(run.lease, kernels_, {args, data(logits), run.rows, ids_.data(), weights_.data()});
    });
}

size_t Program::experts(const Experts* experts, Columns x, Columns y, bool add_up) {
    for (const Columns at : {checked(x, experts->hidden()), checked(y, experts->hidden())}) {
        if (stride(at) != experts->hidden()) refuse("experts take and fill whole rows");
    }
    if (slots_ == 0) refuse("experts need a choice before them");
    const AddedToExperts& added = added_to_experts_.emplace_back(AddedToExperts{experts->hidden(), {}});
    add("experts", [=, &added, this, slots = slots_](Run& run) {
        const Stretch all{0, run.rows, -1};
        const bool parted = !added.by_adapter.empty() && !run.stretches.empty();
        for (const Stretch& rows : parted ? run.stretches : std::span(&all, 1)) {
            const ExpertsCall call{.x = data(x) + rows.first * stride(x),
                                   .ids = ids_.data() + rows.first * slots,
                                   .weights = weights_.data() + rows.first * slots,
                                   .y = data(y) + rows.first * stride(y),
                                   .dtype = Dtype::kF32,
                                   .tokens = rows.count,
                                   .slots = slots,
                                   .add = add_up};
            const auto found = added.by_adapter.find(rows.adapter);
            if (found == added.by_adapter.end()) {
                experts->forward(run.lease, call);
            } else {
                add_to_experts(run, *experts, found->second, call);
            }
        }
    });
    return added_to_experts_.size() - 1;
}

void Program::combine(Combination kind, Columns a, Columns b, Columns out, size_t size) {
    for (const Columns at : {a, b, out}) checked(at, size);
    add("combine", [=, this](Run& run) {
        kt::combine(run.lease, kernels_,
                    {kind, data(a), stride(a), data(b), stride(b), data(out), stride(out), Dtype::kF32,
                     run.rows, size});
    });
}

void Program::add_gated(Columns x, Columns gate, Columns y, size_t size) {
    checked(x, size);
    checked(gate, 1);
    checked(y, size);
    const CombineFn gated = kernels_.layer.combine[static_cast<size_t>(Combination::kSigmoidGate)];
    add("combine", [=, this](Run& run) {
        for_rows(run.lease, run.rows, 2 * size * sizeof(float), [&](size_t row) {
            const float one = 1.0f;
            float factor;
            gated(&one, data(gate) + row * stride(gate), 1, &factor);
            const float* const from = data(x) + row * stride(x);
            float* const to = data(y) + row * stride(y);
            for (size_t i = 0; i < size; ++i) to[i] += factor * from[i];
        });
    });
}

void Program::gather(std::span<const size_t> buffers) {
    for (const size_t buffer : buffers) checked({buffer}, 1);
    const std::vector<size_t> kept(buffers.begin(), buffers.end());
    add("gather", [=, this](Run& run) {
        const size_t count = run.step.output_count;
        for (const size_t buffer : kept) {
            const size_t width = rows_[buffer].width;
            float* const rows = data({buffer});
            for (size_t i = 0; i < count;
                 ++i) {  // outputs rise, so no row is overwritten before it has moved
                std::memmove(rows + i * width, rows + static_cast<size_t>(run.step.outputs[i]) * width,
                             width * sizeof(float));
            }
        }
        run.rows = count;
        run.stretches = stretched(run.step, true);
    });
}

void Program::give(Columns x, size_t width) {
    checked(x, width);
    add("give", [=, this](Run& run) {
        for (size_t i = 0; i < run.rows; ++i)
            std::copy_n(data(x) + i * stride(x), width, run.step.results + i * width);
    });
}

// ---- running ----

// What no operation checks for itself.
void Program::check(const ProgramStep& step) const {
    if (step.count > max_tokens_) {
        refuse("a step of " + std::to_string(step.count) + " tokens is more than the program's " +
               std::to_string(max_tokens_));
    }
    if (step.sequences && static_cast<size_t>(std::max(step.starts[step.sequences], 0)) != step.count) {
        refuse("the sequences' tokens are not the step's");
    }
    if (!step.sequences && step.count) refuse("tokens belong to sequences");
    int64_t before = -1;
    for (size_t i = 0; i < step.output_count; ++i) {
        if (step.outputs[i] <= before || static_cast<size_t>(step.outputs[i]) >= step.count) {
            refuse("outputs must be rows of the step, rising");
        }
        before = step.outputs[i];
    }
    for (const Layer& layer : layers_) {
        if (!layer.pages) refuse("a layer has no pages");
    }
}

void Program::run(const ProgramStep& step) {
    check(step);
    Pool::Lease lease(pool_);
    Run run{lease, step, step.count, stretched(step, false)};
    using Clock = std::chrono::steady_clock;
    Clock::time_point before = timed_ ? Clock::now() : Clock::time_point();
    for (Operation& operation : operations_) {
        if (run.rows == 0) break;
        operation.work(run);
        if (!timed_) continue;
        const Clock::time_point now = Clock::now();
        operation.seconds += std::chrono::duration<double>(now - before).count();
        before = now;
    }
}

std::vector<std::pair<std::string, double>> Program::times() {
    std::map<std::string, double> totals;
    for (Operation& operation : operations_) totals[operation.kind] += std::exchange(operation.seconds, 0.0);
    return {totals.begin(), totals.end()};
}

}  // namespace kt
