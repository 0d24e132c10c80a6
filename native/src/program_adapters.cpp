// Additions to a program's weights: which sequences of a step take which, and their products.
#include <algorithm>
#include <stdexcept>

#include "kt/dispatch.h"
#include "kt/program.h"

namespace kt {
namespace {

[[noreturn]] void refuse(const std::string& why) {
    throw std::invalid_argument(why);
}

// Scratch memory of the experts of a call with additions.
constexpr size_t kWaveBytes = size_t{64} << 20;

template <class List>
auto& at(List& list, size_t index) {
    if (index >= list.size()) refuse("no operation " + std::to_string(index));
    return list[index];
}

// Rows of float32, one after the other.
struct Low {
    const float* data;
    size_t stride;

    static const float* row(const void* context, size_t row, float*) {
        const Low& from = *static_cast<const Low*>(context);
        return from.data + row * from.stride;
    }
};

}  // namespace

void Program::adapt(int32_t adapter, size_t operation, size_t product, const Linear* a, const Linear* b) {
    const Pool::Lease lease(pool_);
    const auto& shapes = at(shapes_, operation);
    if (product >= shapes.size()) refuse("no product " + std::to_string(product));
    const auto [cols, rows] = shapes[product];
    if (adapter < 0 || a->cols() != cols || b->rows() != rows || b->cols() != a->rows()) {
        refuse("an addition to " + std::to_string(rows) + " x " + std::to_string(cols) + " cannot be " +
               std::to_string(b->rows()) + " x " + std::to_string(b->cols()) + " times " +
               std::to_string(a->rows()) + " x " + std::to_string(a->cols()));
    }
    std::vector<LowRank>& all = added_to_linear_[operation][adapter];
    all.push_back({product, a, b});
    size_t ranks = 0;
    for (const LowRank& one : all) ranks += one.a->rows();
    low_.resize(std::max(low_.size(), max_tokens_ * ranks));
}

void Program::adapt_heads(int32_t adapter, size_t operation, const HeadLinear* heads) {
    const Pool::Lease lease(pool_);
    AddedToHeads& added = at(added_to_heads_, operation);
    if (adapter < 0) refuse("an adapter's number is 0 or more");
    const HeadLinear& own = *added.at(-1);
    if (heads->heads() != own.heads() || heads->rows() != own.rows() || heads->cols() != own.cols()) {
        refuse("an adapter's heads have the shape of the operation's own");
    }
    added[adapter] = heads;
}

void Program::adapt_experts(int32_t adapter, size_t operation, const ExpertAdditions& additions) {
    const Pool::Lease lease(pool_);
    if (adapter < 0 || additions.rank == 0) refuse("an addition has a rank, and its adapter a number");
    auto& [hidden, added] = at(added_to_experts_, operation);
    added[adapter] = additions;
    low_.resize(std::max(low_.size(), max_tokens_ * hidden));
}

void Program::forget(int32_t adapter) {
    const Pool::Lease lease(pool_);
    if (adapter < 0) return;
    for (auto& added : added_to_linear_) added.erase(adapter);
    for (auto& added : added_to_heads_) added.erase(adapter);
    for (auto& [hidden, added] : added_to_experts_) added.erase(adapter);
}

// The step's rows, or its outputs, in stretches of one adapter.
std::span<const Program::Stretch> Program::stretched(const ProgramStep& step, bool outputs) {
    stretches_.clear();
    if (!step.adapters) return {};
    size_t sequence = 0;
    for (size_t row = 0, count = outputs ? step.output_count : step.count; row < count; ++row) {
        const int64_t token = outputs ? step.outputs[row] : static_cast<int64_t>(row);
        while (sequence + 1 < step.sequences && token >= step.starts[sequence + 1]) ++sequence;
        const int32_t adapter = step.adapters[sequence];
        if (stretches_.empty() || stretches_.back().adapter != adapter) {
            stretches_.push_back({row, 0, adapter});
        }
        ++stretches_.back().count;
    }
    return stretches_;
}

void Program::add_low_rank(Run& run, const RowSource& rows, std::span<const Linear::Target> targets,
                           std::span<const LowRank> added, size_t count) {
    size_t ranks = 0;
    for (const LowRank& one : added) ranks += one.a->rows();
    for (size_t first = 0; first < added.size(); first += Linear::kMostTargets) {
        Linear::Target inner[Linear::kMostTargets];
        const size_t some = std::min(added.size() - first, Linear::kMostTargets);
        float* low = low_.data();
        for (size_t i = 0; i < some; ++i) {
            inner[i] = {.linear = added[first + i].a, .y = low, .stride = ranks};
            low += added[first + i].a->rows();
        }
        Linear::forward(run.lease, {inner, some}, rows, count);
        for (size_t i = 0; i < some; ++i) {
            const LowRank& one = added[first + i];
            const Low from{static_cast<const float*>(inner[i].y), ranks};
            Linear::Target to = targets[one.product];
            to.linear = one.b;
            to.add = true;
            Linear::forward(run.lease, {&to, 1}, {Low::row, &from}, count);
        }
    }
}

// The rows' experts with their additions, in place of those without.
void Program::add_to_experts(Run& run, const Experts& experts, const ExpertAdditions& added,
                             const ExpertsCall& call) {
    const size_t hidden = experts.hidden();
    TrainingCall with{.x = call.x,
                      .ids = call.ids,
                      .weights = call.weights,
                      .dtype = Dtype::kF32,
                      .tokens = call.tokens,
                      .slots = call.slots,
                      .rank = added.rank,
                      .scale = added.scale,
                      .as_stored = !deterministic()};
    std::ranges::copy(added.lora, with.lora);
    float* const y = static_cast<float*>(call.y);
    float* const to = call.add ? low_.data() : y;
    Training(experts, kWaveBytes).forward(run.lease, with, to);
    if (!call.add) return;
    for (size_t i = 0; i < call.tokens * hidden; ++i) y[i] += to[i];
}

}  // namespace kt
