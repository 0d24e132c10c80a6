#include "kt/experts.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace kt {
namespace {

enum Slot : size_t {
    kRoutes,
    kBegins,
    kActive,
    kTasks,
    kWide,
    kTile,
    kHidden,
    kHiddenRows,
    kSums,
    kTokens,
    kTokenRows
};

constexpr size_t kTileFloats = kRowsPerTask * kPanelsPerTask * kPanelRows;

// One (token, expert) pair of a chunk.
struct Route {
    size_t token;  // within the chunk
    float weight;
};

// An expert that the chunk uses, and its routes.
struct Group {
    size_t expert;
    size_t first;
    size_t count;
};

// Columns of h: panels [panel, panel + width) of gate and of up.
struct Task {
    size_t group;
    size_t panel;
    size_t width;
};

}  // namespace

Experts::Experts(Pool& pool, const Kernels& kernels, size_t count, size_t hidden, size_t intermediate,
                 Activation activation)
    : pool_(pool),
      kernels_(kernels),
      hidden_(hidden),
      intermediate_(intermediate),
      activation_(activation),
      experts_(count) {
    if (count == 0 || hidden == 0 || intermediate == 0) {
        throw std::invalid_argument("the number of experts, hidden and intermediate must be positive");
    }
}

size_t Experts::bytes() const {
    size_t total = 0;
    for (const Expert& expert : experts_) total += expert.memory.bytes();
    return total;
}

void Experts::check(const char* name, const StoredMatrix& stored, size_t rows, size_t cols) const {
    if (stored.rows == rows && stored.cols == cols) return;
    throw std::invalid_argument(std::string(name) + " must be " + std::to_string(rows) + " x " +
                                std::to_string(cols) + ", got " + std::to_string(stored.rows) + " x " +
                                std::to_string(stored.cols));
}

void Experts::load(size_t index, const StoredMatrix& gate, const StoredMatrix& up, const StoredMatrix& down) {
    if (index >= experts_.size()) {
        throw std::invalid_argument("no expert " + std::to_string(index) + ": there are " +
                                    std::to_string(experts_.size()));
    }
    check("gate", gate, intermediate_, hidden_);
    check("up", up, intermediate_, hidden_);
    check("down", down, hidden_, intermediate_);
    Expert packed{panel_shape(kernels_, gate), panel_shape(kernels_, up), panel_shape(kernels_, down), {}};
    const size_t up_at = divide_up(packed.gate.bytes(), 64) * 64;
    const size_t down_at = up_at + divide_up(packed.up.bytes(), 64) * 64;
    Pool::Lease lease(pool_);
    packed.memory = lease.weights(down_at + packed.down.bytes());
    uint8_t* const memory = packed.memory.data();
    packed.gate.panels = memory;
    packed.up.panels = memory + up_at;
    packed.down.panels = memory + down_at;
    pack(lease, kernels_, gate, memory);
    pack(lease, kernels_, up, memory + up_at);
    pack(lease, kernels_, down, memory + down_at);
    experts_[index] = std::move(packed);
}

// Up to kRowsPerChunk tokens, from routing to written rows. Three phases: prepared tokens are needed by
// all gate/up tasks, and all of h by the down tasks.
struct Experts::Chunk {
    const Experts& layer;
    const ExpertsCall& call;
    Pool::Lease& lease;
    const size_t first_token;
    const size_t tokens;

    Route* routes = nullptr;  // by expert, then token, then slot
    Group* groups = nullptr;  // ascending expert
    size_t group_count = 0;
    size_t route_count = 0;
    Task* tasks = nullptr;
    size_t task_count = 0;
    const uint8_t** token_rows[kPolicies] = {};  // for each route; null where no expert wants the policy
    uint8_t* token_memory[kPolicies] = {};
    size_t token_stride[kPolicies] = {};
    const uint8_t** hidden_rows = nullptr;
    uint8_t* hidden_memory = nullptr;
    size_t hidden_stride = 0;
    float* wide = nullptr;
    float* tiles = nullptr;
    float* sums = nullptr;  // [tokens, hidden]
    size_t down_width = 0;
    size_t bytes = 0;  // of weights that pass through the kernels
    Phase preparing{}, multiplying{}, summing{};

    Policy policy(const PanelMatrix& m) const { return layer.kernels_.formats[m.format].info->policy; }

    void route();
    void list_tasks();
    void allocate();
    void share_out();
    void prepare_tokens(const Worker& worker);
    void gate_up(const Worker& worker);
    void gate_up_rows(const Group& group, const Task& task, size_t row, size_t count, float* tile);
    void down(const Worker& worker);
    void down_columns(size_t panel, size_t width, float* tile);

    void multiply(const PanelMatrix& m, size_t panel, size_t width, const uint8_t* const* rows, size_t count,
                  float* out) const {
        layer.kernels_.formats[m.format].matmul({m.panels + panel * m.panel_bytes, m.panel_bytes, width,
                                                 m.cols, rows, count, out, width * kPanelRows});
    }
};

// Sorts the chunk's (token, slot) pairs by expert: count, prefix sum, place.
void Experts::Chunk::route() {
    const size_t experts = layer.experts_.size();
    size_t* const begins = lease.scratch<size_t>(kBegins, experts + 1);
    groups = lease.scratch<Group>(kActive, experts);
    const int64_t* const ids = call.ids + first_token * call.slots;
    const float* const weights = call.weights + first_token * call.slots;
    const auto used = [&](int64_t id) {
        return id >= 0 && static_cast<uint64_t>(id) < experts && layer.experts_[id].memory.data();
    };
    std::fill_n(begins, experts + 1, 0);
    for (size_t i = 0; i < tokens * call.slots; ++i) {
        if (used(ids[i])) ++begins[ids[i] + 1];
    }
    for (size_t e = 0; e < experts; ++e) {
        if (begins[e + 1]) groups[group_count++] = {e, begins[e], begins[e + 1]};
        begins[e + 1] += begins[e];
    }
    route_count = begins[experts];
    routes = lease.scratch<Route>(kRoutes, route_count);
    for (size_t i = 0; i < tokens * call.slots; ++i) {
        if (used(ids[i])) routes[begins[ids[i]]++] = {i / call.slots, weights[i]};
    }
}

void Experts::Chunk::list_tasks() {
    const size_t panels = divide_up(layer.intermediate_, kPanelRows);
    tasks = lease.scratch<Task>(kTasks, group_count * divide_up(panels, 2));
    for (size_t g = 0; g < group_count; ++g) {
        const Expert& expert = layer.experts_[groups[g].expert];
        const size_t width = panels_per_task(
            panels * group_count, expert.gate.panel_bytes + expert.up.panel_bytes, lease.threads());
        for (size_t p = 0; p < panels; p += width) tasks[task_count++] = {g, p, std::min(width, panels - p)};
    }
}

void Experts::Chunk::allocate() {
    const size_t threads = static_cast<size_t>(lease.threads());
    for (size_t g = 0; g < group_count; ++g) {
        const Expert& expert = layer.experts_[groups[g].expert];
        for (const PanelMatrix* m : {&expert.gate, &expert.up}) {
            token_stride[static_cast<size_t>(policy(*m))] = prepared_bytes(policy(*m), layer.hidden_);
        }
        hidden_stride = std::max(hidden_stride, prepared_bytes(policy(expert.down), layer.intermediate_));
    }
    for (size_t i = 0; i < kPolicies; ++i) {
        if (!token_stride[i]) continue;
        token_memory[i] = lease.scratch<uint8_t>(kTokens + 2 * i, tokens * token_stride[i]);
        token_rows[i] = lease.scratch<const uint8_t*>(kTokenRows + 2 * i, route_count);
        for (size_t r = 0; r < route_count; ++r)
            token_rows[i][r] = token_memory[i] + routes[r].token * token_stride[i];
    }
    hidden_memory = lease.scratch<uint8_t>(kHidden, route_count * hidden_stride);
    hidden_rows = lease.scratch<const uint8_t*>(kHiddenRows, route_count);
    for (size_t r = 0; r < route_count; ++r) hidden_rows[r] = hidden_memory + r * hidden_stride;
    wide = lease.scratch<float>(kWide, threads * layer.hidden_);
    tiles = lease.scratch<float>(kTile, threads * 2 * kTileFloats);
    sums = lease.scratch<float>(kSums, tokens * layer.hidden_);
}

// How many tasks each phase has. All down products of a column block are one task.
void Experts::Chunk::share_out() {
    size_t down_bytes = 64;
    for (size_t g = 0; g < group_count; ++g) {
        const Expert& expert = layer.experts_[groups[g].expert];
        down_bytes += expert.down.panel_bytes;
        bytes += expert.memory.bytes() * groups[g].count;
    }
    const size_t panels = divide_up(layer.hidden_, kPanelRows);
    down_width = panels_per_task(panels, down_bytes, lease.threads());
    preparing.set(tokens);
    multiplying.set(task_count);
    summing.set(divide_up(panels, down_width));
}

void Experts::Chunk::prepare_tokens(const Worker& worker) {
    preparing.run(worker, [&](size_t t) {
        const float* x =
            row_f32(call.x, call.dtype, first_token + t, layer.hidden_, wide + worker.index * layer.hidden_);
        for (size_t i = 0; i < kPolicies; ++i) {
            if (!token_stride[i]) continue;
            layer.kernels_.prepare[i](x, 0, layer.hidden_, token_memory[i] + t * token_stride[i]);
        }
    });
}

void Experts::Chunk::gate_up(const Worker& worker) {
    float* const tile = tiles + worker.index * 2 * kTileFloats;
    multiplying.run(worker, [&](size_t i) {
        const Group& group = groups[tasks[i].group];
        for (size_t row = 0; row < group.count; row += kRowsPerTask) {
            gate_up_rows(group, tasks[i], group.first + row, std::min(kRowsPerTask, group.count - row), tile);
        }
    });
}

// h = act(gate x) * up x for a task's columns, prepared at once for the down product: the columns are whole
// int8 groups, since a task has an even number of panels or ends the row.
void Experts::Chunk::gate_up_rows(const Group& group, const Task& task, size_t row, size_t count,
                                  float* tile) {
    const Expert& expert = layer.experts_[group.expert];
    float* const up = tile + kTileFloats;
    const size_t stride = task.width * kPanelRows;
    multiply(expert.gate, task.panel, task.width, token_rows[static_cast<size_t>(policy(expert.gate))] + row,
             count, tile);
    multiply(expert.up, task.panel, task.width, token_rows[static_cast<size_t>(policy(expert.up))] + row,
             count, up);
    layer.kernels_.activate[static_cast<size_t>(layer.activation_)](tile, up, count * stride, tile);
    const PrepareFn prepare = layer.kernels_.prepare[static_cast<size_t>(policy(expert.down))];
    const size_t begin = task.panel * kPanelRows, end = std::min(begin + stride, layer.intermediate_);
    for (size_t i = 0; i < count; ++i) {
        prepare(tile + i * stride, begin, end, hidden_memory + (row + i) * hidden_stride);
    }
}

void Experts::Chunk::down(const Worker& worker) {
    float* const tile = tiles + worker.index * 2 * kTileFloats;
    const size_t panels = divide_up(layer.hidden_, kPanelRows);
    summing.run(worker, [&](size_t i) {
        down_columns(i * down_width, std::min(down_width, panels - i * down_width), tile);
    });
}

// A task owns columns of y for every token, so experts add up in ascending order without atomics.
void Experts::Chunk::down_columns(size_t panel, size_t width, float* tile) {
    const size_t stride = width * kPanelRows, begin = panel * kPanelRows;
    const size_t columns = std::min(stride, layer.hidden_ - begin);
    for (size_t t = 0; t < tokens; ++t) std::fill_n(sums + t * layer.hidden_ + begin, columns, 0.0f);
    for (size_t g = 0; g < group_count; ++g) {
        const Group& group = groups[g];
        for (size_t row = group.first; row < group.first + group.count; row += kRowsPerTask) {
            const size_t count = std::min(kRowsPerTask, group.first + group.count - row);
            multiply(layer.experts_[group.expert].down, panel, width, hidden_rows + row, count, tile);
            for (size_t i = 0; i < count; ++i) {
                float* const sum = sums + routes[row + i].token * layer.hidden_ + begin;
                const float weight = routes[row + i].weight;
                for (size_t j = 0; j < columns; ++j) sum[j] += weight * tile[i * stride + j];
            }
        }
    }
    for (size_t t = 0; t < tokens; ++t) {
        const size_t at = t * layer.hidden_ + begin;
        write_row(sums + at, columns, call.dtype, call.y, first_token * layer.hidden_ + at);
    }
}

void Experts::forward(const ExpertsCall& call) const {
    Pool::Lease lease(pool_);
    for (size_t first = 0; first < call.tokens; first += kRowsPerChunk) {
        Chunk chunk{.layer = *this,
                    .call = call,
                    .lease = lease,
                    .first_token = first,
                    .tokens = std::min(kRowsPerChunk, call.tokens - first)};
        chunk.route();
        chunk.list_tasks();
        chunk.allocate();
        chunk.share_out();
        lease.parallel(
            [&chunk](const Worker& worker) {
                chunk.prepare_tokens(worker);
                chunk.gate_up(worker);
                chunk.down(worker);
            },
            chunk.bytes);
    }
}

}  // namespace kt
