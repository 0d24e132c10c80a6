#include "kt/experts.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kt/prefill.h"

namespace kt {
namespace {

enum Slot : size_t {
    kElsewhere,
    kRoutes,
    kBegins,
    kActive,
    kTasks,
    kTiles,
    kRuns,
    kTurns,
    kTaskBegins,
    kDownBlocks,
    kDownBegins,
    kWide,
    kOut,
    kRow,
    kDecoded,
    kInputs,
    kHidden,
    kHiddenRows,
    kSums,
    kTokens,
    kTokenRows = kTokens + kPolicies,
};

// Tokens of a chunk: as many as this much memory holds, so that the experts of a long prompt get many rows
// each, within bounds.
constexpr size_t kChunkBytes = size_t{256} << 20;
constexpr size_t kMostTokens = 4096;

// What a down task multiplies at least, in bytes of weights times rows: it outweighs the wait for a turn.
constexpr size_t kRunBytes = size_t{64} << 10;

// Bytes of weights that a thread asks for before it can use them: as far as kernels ask ahead.
constexpr size_t kAskFirst = 8192;

// From more tokens than these on, sums are what a down task waits for, and it gets this share of the work.
constexpr size_t kFewTokens = 64;
constexpr size_t kTasksPerThread = 8;

constexpr size_t kOutFloats = std::max(kPrefillFloats, kRowsPerTask * kPanelsPerTask * kPanelRows);

// One (token, expert) pair of a chunk.
struct Route {
    size_t token;  // within the chunk
    float weight;
};

// An expert that the chunk uses, its routes, and which of its products take the prefill path.
struct Group {
    size_t expert;
    size_t first;
    size_t count;
    bool gate = false, up = false, down = false;
    Tiles inputs{};  // of gate and up
    Tiles hidden{};  // of down

    bool tiled() const { return gate || up; }
};

// Columns of h: panels [panel, panel + width) of a part of gate and of up, for rows of the group.
struct Task {
    size_t group;
    size_t part;
    size_t panel;
    size_t width;
    size_t row;
    size_t count;
};

// Columns of y, from a panel of the part on, for a run of groups; they wait for their turn at the block.
struct DownTask {
    size_t run;
    size_t block;
    size_t panel;
};

// A tile of gathered inputs.
struct TileTask {
    size_t group;
    size_t tile;
};

// bias: the first of `columns`, or null.
void add_bias(const float* bias, size_t columns, size_t count, size_t stride, float* rows) {
    for (size_t i = 0; i < count && bias; ++i) {
        for (size_t j = 0; j < columns; ++j) rows[i * stride + j] += bias[j];
    }
}

}  // namespace

Experts::Experts(Pool& pool, const Kernels& kernels, size_t count, size_t hidden, size_t intermediate,
                 Gating gating)
    : pool_(pool),
      kernels_(kernels),
      hidden_(hidden),
      intermediate_(intermediate),
      gating_(gating),
      experts_(count),
      asked_(count) {
    if (count == 0 || hidden == 0 || intermediate == 0) {
        throw std::invalid_argument("the number of experts, hidden and intermediate must be positive");
    }
    const Pool::Lease lease(pool_);
    outer_ = lease.split(divide_up(hidden, kPanelRows));
    // Pairs of panels: a part's columns of h are whole int8 groups.
    inner_ = lease.split(divide_up(intermediate, 2 * kPanelRows));
    for (size_t& begin : inner_) begin = std::min(2 * begin, divide_up(intermediate, kPanelRows));
}

size_t Experts::Expert::bytes() const {
    size_t total = 0;
    for (const Part& part : parts) total += part.memory.bytes();
    return total;
}

size_t Experts::bytes() const {
    size_t total = 0;
    for (const Expert& expert : experts_) total += expert.bytes();
    return total;
}

void Experts::check(const char* name, const StoredMatrix& stored, size_t rows, size_t cols) const {
    if (stored.rows == rows && stored.cols == cols) return;
    throw std::invalid_argument(std::string(name) + " must be " + std::to_string(rows) + " x " +
                                std::to_string(cols) + ", got " + std::to_string(stored.rows) + " x " +
                                std::to_string(stored.cols));
}

void Experts::check(size_t index, const ExpertWeights& from) const {
    if (index >= experts_.size()) {
        throw std::invalid_argument("no expert " + std::to_string(index) + ": there are " +
                                    std::to_string(experts_.size()));
    }
    if (gating_.has_gate() != (from.gate != nullptr) || (from.gate_bias && !from.gate)) {
        throw std::invalid_argument(gating_.has_gate() ? "this activation needs a gate"
                                                       : "this activation has no gate");
    }
    if (from.gate) check("gate", *from.gate, intermediate_, hidden_);
    check("up", *from.up, intermediate_, hidden_);
    check("down", *from.down, hidden_, intermediate_);
}

// Takes memory for a part of an expert, and lists what is to be packed into it.
Experts::Part Experts::make_part(Pool::Lease& lease, const ExpertWeights& from, size_t p,
                                 std::vector<Packing>& jobs) const {
    Part part;
    struct Field {
        const StoredMatrix* stored;
        const float* bias;
        const std::vector<size_t>& begins;
        PanelMatrix& panels;
        const float*& packed_bias;
    };
    const Field fields[] = {{from.gate, from.gate_bias, inner_, part.gate, part.gate_bias},
                            {from.up, from.up_bias, inner_, part.up, part.up_bias},
                            {from.down, from.down_bias, outer_, part.down, part.down_bias}};
    const auto padded = [](size_t bytes) { return divide_up(bytes, 64) * 64; };
    size_t bytes = 0;
    for (const Field& field : fields) {
        if (!field.stored) continue;
        field.panels = panel_shape(kernels_, *field.stored, field.begins[p], field.begins[p + 1]);
        bytes += padded(field.panels.bytes());
        if (field.bias) bytes += field.panels.panel_count() * kPanelRows * sizeof(float);
    }
    // One stream of memory in place of two: every new one costs a core about a microsecond.
    part.woven =
        from.gate && part.gate.format == part.up.format && part.gate.panel_bytes == part.up.panel_bytes;
    part.memory = lease.weights(bytes, p, inner_.size() - 1);
    uint8_t* next = part.memory.data();
    for (const Field& field : fields) {
        if (!field.stored) continue;
        uint8_t* at = next;
        if (part.woven && &field.panels != &part.down) {
            field.panels.stride = 2 * field.panels.panel_bytes;
            if (&field.panels == &part.up) at = part.memory.data() + field.panels.panel_bytes;
        }
        field.panels.panels = at;
        jobs.push_back({field.stored, field.begins[p], field.panels.panel_count(), at, field.panels.stride});
        next += padded(field.panels.bytes());
    }
    for (const Field& field : fields) {
        if (!field.bias) continue;
        const size_t panels = field.panels.panel_count(), rows = field.panels.rows;
        float* const bias = reinterpret_cast<float*>(next);
        field.packed_bias = bias;
        std::copy_n(field.bias + field.begins[p] * kPanelRows, rows, bias);
        next = reinterpret_cast<uint8_t*>(std::fill_n(bias + rows, panels * kPanelRows - rows, 0.0f));
    }
    if (!from.gate) part.gate = part.up;
    return part;
}

void Experts::load(size_t first, std::span<const ExpertWeights> from) {
    for (size_t i = 0; i < from.size(); ++i) check(first + i, from[i]);
    Pool::Lease lease(pool_);
    const size_t parts = inner_.size() - 1;
    std::vector<Expert> packed(from.size());
    std::vector<Packing> jobs;
    std::vector<size_t> begins{0};
    for (size_t p = 0; p < parts; ++p) {
        for (size_t i = 0; i < from.size(); ++i) {
            packed[i].parts.push_back(make_part(lease, from[i], p, jobs));
        }
        begins.push_back(jobs.size());
    }
    pack(lease, kernels_, jobs, begins);
    std::ranges::move(packed, experts_.begin() + static_cast<ptrdiff_t>(first));
}

std::vector<ExpertPlace> Experts::places(size_t index) const {
    if (index >= experts_.size()) throw std::invalid_argument("no such expert");
    std::vector<ExpertPlace> places;
    for (const Part& part : experts_[index].parts) {
        const bool biased = part.gate_bias || part.up_bias || part.down_bias;
        places.push_back({part.memory.data(), part.memory.bytes(), part.gate, part.up, part.down, biased});
    }
    return places;
}

// Some tokens, from routing to written rows. Phases: prepared tokens, in tiles where a group wants them, are
// needed by all gate/up tasks, and all of h by the down tasks.
struct Experts::Chunk {
    const Experts& layer;
    const ExpertsCall& call;
    Pool::Lease& lease;
    const size_t first_token;
    const size_t tokens;
    const size_t* const prefill_from;  // for each format
    const uint8_t* const elsewhere;    // the call's, as it was at its start

    Route* routes = nullptr;  // by expert, then token, then slot
    Group* groups = nullptr;  // ascending expert
    size_t group_count = 0;
    size_t route_count = 0;
    Task* tasks = nullptr;
    size_t task_count = 0;
    TileTask* tiles = nullptr;
    size_t tile_count = 0;
    size_t* runs =
        nullptr;  // first group of each run of groups whose down products are one task, and the end
    size_t run_count = 0;
    Turn* turns = nullptr;                       // for each block of down's columns: whose run may add to it
    const uint8_t** token_rows[kPolicies] = {};  // for each route; null where no expert wants the policy
    uint8_t* token_memory[kPolicies] = {};
    size_t token_stride[kPolicies] = {};
    const uint8_t** hidden_rows = nullptr;  // for each route whose down product is direct
    float* wide = nullptr;
    float* outs = nullptr;
    uint8_t* row_memory = nullptr;  // one bfloat16 row of h for each thread
    size_t row_stride = 0;
    uint16_t* decoded = nullptr;
    float* sums = nullptr;  // [tokens, hidden]
    size_t down_width = 0;
    size_t lanes = 1;               // of each part
    size_t* down_blocks = nullptr;  // those of down's columns that begin the lanes, and the end
    size_t bytes = 0;               // of weights that pass through the kernels
    size_t* task_begins = nullptr;  // of the lanes
    size_t* down_begins = nullptr;
    Phase preparing{}, gathering{}, multiplying{}, summing{};

    const Prefill& path() const { return layer.kernels_.prefill; }
    size_t parts() const { return layer.inner_.size() - 1; }
    Policy policy(const PanelMatrix& m) const { return layer.kernels_.formats[m.format].info->policy; }
    PrepareFn prepare(Policy p) const { return layer.kernels_.prepare[static_cast<size_t>(p)]; }

    void route();
    void choose_paths();
    void list_tasks();
    void list_group_tasks(size_t g, size_t part, size_t tiled_width);
    void list_runs();
    void allocate();
    void allocate_hidden();
    void ask_first(const Worker& worker) const;
    void prepare_tokens(const Worker& worker);
    void gather_tokens(const Worker& worker);
    void gate_up(const Worker& worker);
    void gate_up_rows(const Worker& worker, const Task& task, size_t row, size_t count, const uint8_t* next);
    void gate_up_rows_at_once(const Worker& worker, const Task& task, size_t row, size_t count);
    void gate_up_rows_woven(const Worker& worker, const Task& task, size_t row, size_t count,
                            const uint8_t* next);
    void keep_hidden(const Worker& worker, const Task& task, size_t row, size_t count, const float* h,
                     size_t stride);
    void down(const Worker& worker);
    void down_group(const Worker& worker, size_t g, size_t part, size_t panel, size_t width,
                    const uint8_t* next);
    void add(const Group& group, size_t row, size_t count, size_t begin, size_t stride, const float* out);

    // Where the weights of a gate/up task begin, of a group's down product, and of a down task of lane n;
    // null after its last.
    const uint8_t* gate_of(size_t task) const;
    const uint8_t* down_at(size_t g, size_t part, size_t panel) const;
    const uint8_t* down_of(size_t task, size_t n) const;

    DownTask down_task(size_t i, size_t n) const {
        const size_t first = down_blocks[n], blocks = down_blocks[n + 1] - first, at = i - run_count * first;
        const size_t block = first + at % blocks;
        return {at / blocks, block, (block - down_blocks[n / lanes * lanes]) * down_width};
    }

    float* out(const Worker& worker) const { return outs + worker.index * 2 * kOutFloats; }
    uint8_t* row_scratch(const Worker& worker) const { return row_memory + worker.index * row_stride; }

    static const float* from_column(const float* bias, const Task& task) {
        return bias ? bias + task.panel * kPanelRows : nullptr;
    }
    void activate(const float* gate, const float* up, size_t n, float* h) const {
        const Gating& gating = layer.gating_;
        layer.kernels_.activate[static_cast<size_t>(gating.activation)](gate, up, n, gating.clamp, h);
    }

    void multiply(const PanelMatrix& m, size_t panel, size_t width, const uint8_t* const* rows, size_t count,
                  float* to, const uint8_t* next) const {
        layer.kernels_.formats[m.format].matmul({m.panels + panel * m.stride, m.panel_bytes, width, m.cols,
                                                 rows, count, to, width * kPanelRows, layer.kernels_.asks,
                                                 next});
    }
    void multiply(const Worker& worker, const PanelMatrix& m, size_t panel, size_t width, const Tiles& rows,
                  size_t row, size_t count, float* to, const PanelMatrix* second = nullptr) const {
        prefill(layer.kernels_, m, panel, width, rows, row / rows.rows, divide_up(count, rows.rows),
                decoded + worker.index * kDecodedValues, to, second);
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
        return id >= 0 && static_cast<uint64_t>(id) < experts && layer.experts_[id].loaded() &&
               !(elsewhere && elsewhere[id]);
    };
    std::fill_n(begins, experts + 1, 0);
    for (size_t i = 0; i < tokens * call.slots; ++i) {
        if (used(ids[i])) ++begins[ids[i] + 1];
    }
    for (size_t e = 0; e < experts; ++e) {
        if (begins[e + 1]) groups[group_count++] = {.expert = e, .first = begins[e], .count = begins[e + 1]};
        begins[e + 1] += begins[e];
    }
    route_count = begins[experts];
    routes = lease.scratch<Route>(kRoutes, route_count);
    for (size_t i = 0; i < tokens * call.slots; ++i) {
        if (used(ids[i])) routes[begins[ids[i]]++] = {i / call.slots, weights[i]};
    }
}

// By each expert's own row count.
void Experts::Chunk::choose_paths() {
    for (size_t g = 0; g < group_count; ++g) {
        Group& group = groups[g];
        const Expert& expert = layer.experts_[group.expert];
        group.gate = group.count >= prefill_from[expert.form().gate.format];
        group.up = group.count >= prefill_from[expert.form().up.format];
        group.down = group.count >= prefill_from[expert.form().down.format];
        if (group.tiled()) group.inputs = tile_shape(path(), group.count, layer.hidden_);
        if (group.down) group.hidden = tile_shape(path(), group.count, layer.intermediate_);
        bytes += expert.bytes() * group.count;
    }
}

// Direct: a task is a block of columns for all of the group's rows, which pass kRowsPerTask at a time. Tiled:
// rows are shared out as well, so that an expert that most tokens chose keeps all threads busy.
void Experts::Chunk::list_tasks() {
    const size_t panels = divide_up(layer.intermediate_, kPanelRows);
    size_t row_tasks = 0;
    for (size_t g = 0; g < group_count; ++g) {
        const Tiles& inputs = groups[g].inputs;
        tile_count += inputs.count;
        row_tasks += groups[g].tiled() ? divide_up(inputs.count, tiles_per_task(inputs)) : 1;
    }
    tasks = lease.scratch<Task>(kTasks, row_tasks * divide_up(panels, 2));
    tiles = lease.scratch<TileTask>(kTiles, tile_count);
    const size_t tiled_width = prefill_width(panels, row_tasks, lease.threads());
    const size_t ranges = parts() * lanes;
    size_t* const begins = task_begins = lease.scratch<size_t>(kTaskBegins, ranges + 1);
    for (size_t part = 0; part < parts(); ++part) {
        const size_t first = task_count;
        for (size_t g = 0; g < group_count; ++g) list_group_tasks(g, part, tiled_width);
        for (size_t l = 0; l < lanes; ++l) {
            begins[part * lanes + l] = first + (task_count - first) * l / lanes;
        }
    }
    begins[ranges] = task_count;
    multiplying.set({begins, ranges + 1}, false, lanes);
    TileTask* next = tiles;
    for (size_t g = 0; g < group_count; ++g) {
        for (size_t t = 0; t < groups[g].inputs.count; ++t) *next++ = {g, t};
    }
}

void Experts::Chunk::list_group_tasks(size_t g, size_t part, size_t tiled_width) {
    const Group& group = groups[g];
    const Part& form = layer.experts_[group.expert].form();
    const size_t panels = layer.inner_[part + 1] - layer.inner_[part];
    const size_t direct_width = panels_per_task(layer.inner_.back() * group_count,
                                                form.gate.panel_bytes + form.up.panel_bytes, lease.threads());
    const size_t width = group.tiled() ? tiled_width : direct_width;
    const size_t height = group.tiled() ? tiles_per_task(group.inputs) * group.inputs.rows : group.count;
    for (size_t row = 0; row < group.count; row += height) {
        for (size_t p = 0; p < panels; p += width) {
            tasks[task_count++] = {
                g, part, p, std::min(width, panels - p), row, std::min(height, group.count - row)};
        }
    }
}

// A down task is a block of columns of y for a run of consecutive experts. Blocks are wide, so that what a
// task reads of an expert is a long stream; runs are as short as the turns that their tasks wait for allow,
// but where there are many rows as long as all threads stay busy: a thread then adds to the same sums again
// and again, while they are in its cache.
void Experts::Chunk::list_runs() {
    const size_t panels = divide_up(layer.hidden_, kPanelRows),
                 threads = static_cast<size_t>(lease.threads());
    down_width = std::max<size_t>(divide_up(panels, 2 * threads) / 2 * 2, 2);
    runs = lease.scratch<size_t>(kRuns, group_count + 2);
    const auto work = [&](const Group& group) {
        return group.count * down_width * layer.experts_[group.expert].form().down.panel_bytes;
    };
    size_t all = 0;
    for (size_t g = 0; g < group_count; ++g) all += work(groups[g]);
    const size_t share = all * divide_up(panels, down_width) / (kTasksPerThread * threads);
    const size_t least = tokens > kFewTokens ? std::max(kRunBytes, share) : kRunBytes;
    size_t run_bytes = 0;
    for (size_t g = 0; g < group_count; ++g) {
        if (run_bytes >= least || g == 0) {
            runs[run_count++] = g;
            run_bytes = 0;
        }
        run_bytes += work(groups[g]);
    }
    if (run_count == 0) runs[run_count++] = 0;
    runs[run_count] = group_count;
    const size_t ranges = parts() * lanes;
    down_blocks = lease.scratch<size_t>(kDownBlocks, ranges + 1);
    size_t* const begins = down_begins = lease.scratch<size_t>(kDownBegins, ranges + 1);
    size_t blocks = 0;
    for (size_t n = 0; n < ranges; ++n) {
        const size_t part = n / lanes, lane = n % lanes;
        const size_t all = divide_up(layer.outer_[part + 1] - layer.outer_[part], down_width);
        down_blocks[n] = blocks + all * lane / lanes;
        begins[n] = run_count * down_blocks[n];
        if (lane + 1 == lanes) blocks += all;
    }
    down_blocks[ranges] = blocks;
    begins[ranges] = run_count * blocks;
    summing.set({begins, ranges + 1}, false, lanes);
    turns = lease.scratch<Turn>(kTurns, blocks);
    for (size_t i = 0; i < blocks; ++i) new (&turns[i]) Turn;
}

void Experts::Chunk::allocate() {
    const size_t threads = static_cast<size_t>(lease.threads());
    for (size_t g = 0; g < group_count; ++g) {
        const Group& group = groups[g];
        const Part& form = layer.experts_[group.expert].form();
        const Policy gate = group.gate ? Policy::kBf16 : policy(form.gate);
        const Policy up = group.up ? Policy::kBf16 : policy(form.up);
        for (const Policy p : {gate, up}) {
            token_stride[static_cast<size_t>(p)] = prepared_bytes(p, layer.hidden_);
        }
    }
    for (size_t i = 0; i < kPolicies; ++i) {
        if (!token_stride[i]) continue;
        token_memory[i] = lease.scratch<uint8_t>(kTokens + i, tokens * token_stride[i]);
        token_rows[i] = lease.scratch<const uint8_t*>(kTokenRows + i, route_count);
        for (size_t r = 0; r < route_count; ++r)
            token_rows[i][r] = token_memory[i] + routes[r].token * token_stride[i];
    }
    allocate_hidden();
    wide = lease.scratch<float>(kWide, threads * layer.hidden_);
    outs = lease.scratch<float>(kOut, threads * 2 * kOutFloats);
    row_stride = prepared_bytes(Policy::kBf16, std::max(layer.hidden_, layer.intermediate_));
    row_memory = lease.scratch<uint8_t>(kRow, threads * row_stride);
    decoded = lease.scratch<uint16_t>(kDecoded, threads * kDecodedValues);
    sums = lease.scratch<float>(kSums, tokens * layer.hidden_);
    preparing.set(tokens);
    gathering.set(tile_count);
}

// Memory of inputs in tiles, and of h in tiles or rows, one group after the other.
void Experts::Chunk::allocate_hidden() {
    size_t input_bytes = 0, hidden_bytes = 0;
    const auto row_bytes = [&](const Group& group) {
        return prepared_bytes(policy(layer.experts_[group.expert].form().down), layer.intermediate_);
    };
    const auto group_bytes = [&](const Group& group) {
        return group.down ? group.hidden.total_bytes() : group.count * row_bytes(group);
    };
    for (size_t g = 0; g < group_count; ++g) {
        input_bytes += groups[g].inputs.total_bytes();
        hidden_bytes += group_bytes(groups[g]);
    }
    uint8_t* input = lease.scratch<uint8_t>(kInputs, input_bytes);
    uint8_t* hidden = lease.scratch<uint8_t>(kHidden, hidden_bytes);
    hidden_rows = lease.scratch<const uint8_t*>(kHiddenRows, route_count);
    for (size_t g = 0; g < group_count; ++g) {
        Group& group = groups[g];
        group.inputs.data = input;
        group.hidden.data = hidden;
        for (size_t i = 0; i < group.count && !group.down; ++i) {
            hidden_rows[group.first + i] = hidden + i * row_bytes(group);
        }
        input += group.inputs.total_bytes();
        hidden += group_bytes(group);
    }
}

// What the worker multiplies first, so that it need not wait for it once tokens are prepared.
void Experts::Chunk::ask_first(const Worker& worker) const {
    const size_t n = multiplying.first_lane(worker);
    if (task_begins[n] == task_begins[n + 1]) return;
    const uint8_t* const at = gate_of(task_begins[n]);
    for (size_t line = 0; line < kAskFirst; line += 64) __builtin_prefetch(at + line, 0, 2);
}

void Experts::Chunk::prepare_tokens(const Worker& worker) {
    preparing.run(worker, [&](size_t t, size_t) {
        const float* x =
            row_f32(call.x, call.dtype, first_token + t, layer.hidden_, wide + worker.index * layer.hidden_);
        for (size_t i = 0; i < kPolicies; ++i) {
            if (!token_stride[i]) continue;
            layer.kernels_.prepare[i](x, 0, layer.hidden_, token_memory[i] + t * token_stride[i]);
        }
    });
}

void Experts::Chunk::gather_tokens(const Worker& worker) {
    const uint8_t* const* const rows = token_rows[static_cast<size_t>(Policy::kBf16)];
    gathering.run(worker, [&](size_t i, size_t) {
        const Group& group = groups[tiles[i].group];
        const size_t begin = tiles[i].tile * group.inputs.rows;
        const size_t end = std::min(group.count, begin + group.inputs.rows);
        for (size_t row = begin; row < end; ++row) {
            gather(path(), group.inputs, rows[group.first + row], 0, layer.hidden_, row);
        }
        if (end < group.count) return;
        uint8_t* const zeros = row_scratch(worker);
        std::fill_n(zeros, row_stride, uint8_t{0});
        fill_up(path(), group.inputs, zeros, 0, layer.hidden_, group.count);
    });
}

void Experts::Chunk::gate_up(const Worker& worker) {
    multiplying.run(worker, [&](size_t i, size_t n) {
        const Task& task = tasks[i];
        const size_t most = groups[task.group].tiled() ? task.count : kRowsPerTask;
        const uint8_t* const next = i + 1 < task_begins[n + 1] ? gate_of(i + 1) : down_of(down_begins[n], n);
        for (size_t row = 0; row < task.count; row += most) {
            gate_up_rows(worker, task, task.row + row, std::min(most, task.count - row), next);
        }
    });
}

const uint8_t* Experts::Chunk::gate_of(size_t task) const {
    const Task& t = tasks[task];
    const PanelMatrix& gate = layer.experts_[groups[t.group].expert].parts[t.part].gate;
    return gate.panels + t.panel * gate.stride;
}

const uint8_t* Experts::Chunk::down_at(size_t g, size_t part, size_t panel) const {
    const PanelMatrix& down = layer.experts_[groups[g].expert].parts[part].down;
    return down.panels + panel * down.stride;
}

const uint8_t* Experts::Chunk::down_of(size_t task, size_t n) const {
    if (task >= down_begins[n + 1] || group_count == 0) return nullptr;
    const DownTask t = down_task(task, n);
    return down_at(runs[t.run], n / lanes, t.panel);
}

// h of a task's columns.
void Experts::Chunk::gate_up_rows(const Worker& worker, const Task& task, size_t row, size_t count,
                                  const uint8_t* next) {
    const Group& group = groups[task.group];
    const Part& part = layer.experts_[group.expert].parts[task.part];
    const bool gated = layer.gating_.has_gate();
    if (gated && group.gate && group.up && part.gate.format == part.up.format) {
        return gate_up_rows_at_once(worker, task, row, count);
    }
    if (part.woven) return gate_up_rows_woven(worker, task, row, count, next);
    float* const gate = out(worker);
    float* const up = gate + kOutFloats;
    const size_t stride = task.width * kPanelRows;
    const auto product = [&](const PanelMatrix& m, const float* bias, bool tiled, float* to,
                             const uint8_t* after) {
        if (tiled) {
            multiply(worker, m, task.panel, task.width, group.inputs, row, count, to);
        } else {
            multiply(m, task.panel, task.width,
                     token_rows[static_cast<size_t>(policy(m))] + group.first + row, count, to, after);
        }
        add_bias(from_column(bias, task), stride, count, stride, to);
    };
    if (gated)
        product(part.gate, part.gate_bias, group.gate, gate, part.up.panels + task.panel * part.up.stride);
    product(part.up, part.up_bias, group.up, up, next);
    activate(gate, up, count * stride, gate);
    keep_hidden(worker, task, row, count, gate, stride);
}

// The same in one pass over the tiles of inputs; a row of gate's results and one of up's lie side by side.
void Experts::Chunk::gate_up_rows_at_once(const Worker& worker, const Task& task, size_t row, size_t count) {
    const Group& group = groups[task.group];
    const Part& part = layer.experts_[group.expert].parts[task.part];
    float* const both = out(worker);
    const size_t width = task.width * kPanelRows;
    multiply(worker, part.gate, task.panel, task.width, group.inputs, row, count, both, &part.up);
    add_bias(from_column(part.gate_bias, task), width, count, 2 * width, both);
    add_bias(from_column(part.up_bias, task), width, count, 2 * width, both + width);
    for (size_t i = 0; i < count; ++i) {
        float* const gate = both + 2 * i * width;
        activate(gate, gate + width, width, gate);
    }
    keep_hidden(worker, task, row, count, both, 2 * width);
}

// The same by the direct path where panels of gate and of up take turns: so do their columns in the results.
void Experts::Chunk::gate_up_rows_woven(const Worker& worker, const Task& task, size_t row, size_t count,
                                        const uint8_t* next) {
    const Group& group = groups[task.group];
    const Part& part = layer.experts_[group.expert].parts[task.part];
    float* const both = out(worker);
    const size_t stride = 2 * task.width * kPanelRows;
    multiply(part.gate, task.panel, 2 * task.width,
             token_rows[static_cast<size_t>(policy(part.gate))] + group.first + row, count, both, next);
    const float* const gate_bias = from_column(part.gate_bias, task);
    const float* const up_bias = from_column(part.up_bias, task);
    for (size_t p = 0; p < task.width; ++p) {
        const size_t column = p * kPanelRows;
        float* const gate = both + 2 * column;
        if (gate_bias) add_bias(gate_bias + column, kPanelRows, count, stride, gate);
        if (up_bias) add_bias(up_bias + column, kPanelRows, count, stride, gate + kPanelRows);
        for (size_t i = 0; i < count; ++i) {
            activate(gate + i * stride, gate + i * stride + kPanelRows, kPanelRows,
                     both + i * stride + column);
        }
    }
    keep_hidden(worker, task, row, count, both, stride);
}

// Prepares h for the down product: the columns are whole int8 groups, since a task has an even number of
// panels or ends the row.
void Experts::Chunk::keep_hidden(const Worker& worker, const Task& task, size_t row, size_t count,
                                 const float* h, size_t stride) {
    const Group& group = groups[task.group];
    const Policy rounding = group.down ? Policy::kBf16 : policy(layer.experts_[group.expert].form().down);
    const size_t begin = (layer.inner_[task.part] + task.panel) * kPanelRows;
    const size_t end = std::min(begin + task.width * kPanelRows, layer.intermediate_);
    uint8_t* const scratch = row_scratch(worker);
    for (size_t i = 0; i < count; ++i) {
        uint8_t* const to = group.down ? scratch : const_cast<uint8_t*>(hidden_rows[group.first + row + i]);
        prepare(rounding)(h + i * stride, begin, end, to);
        if (group.down) gather(path(), group.hidden, scratch, begin, end, row + i);
    }
    if (!group.down || row + count < group.count) return;
    std::fill_n(scratch, row_stride, uint8_t{0});
    fill_up(path(), group.hidden, scratch, begin, end, group.count);
}

// Tasks of one block of columns take turns in the order of the experts, so sums need no atomics and have one
// order. They are of one lane, which hands tasks out in order, so whoever has an earlier turn is at work on
// it already.
void Experts::Chunk::down(const Worker& worker) {
    summing.run(worker, [&](size_t i, size_t n) {
        const auto [run, block, panel] = down_task(i, n);
        const size_t part = n / lanes;
        const size_t width = std::min(down_width, layer.outer_[part + 1] - layer.outer_[part] - panel);
        const size_t begin = (layer.outer_[part] + panel) * kPanelRows;
        const size_t columns = std::min(width * kPanelRows, layer.hidden_ - begin);
        Turn& turn = turns[block];
        turn.wait(worker, static_cast<uint32_t>(run));
        for (size_t t = 0; t < tokens && run == 0; ++t) {
            std::fill_n(sums + t * layer.hidden_ + begin, columns, 0.0f);
        }
        for (size_t g = runs[run]; g < runs[run + 1]; ++g) {
            const bool last = g + 1 == runs[run + 1];
            down_group(worker, g, part, panel, width, last ? down_of(i + 1, n) : down_at(g + 1, part, panel));
        }
        for (size_t t = 0; t < tokens && run + 1 == run_count; ++t) {
            const size_t to = t * layer.hidden_ + begin;
            const size_t at = first_token * layer.hidden_ + to;
            call.add ? add_row(sums + to, columns, call.y, at)
                     : write_row(sums + to, columns, call.dtype, call.y, at);
        }
        turn.pass();
    });
}

void Experts::Chunk::down_group(const Worker& worker, size_t g, size_t part, size_t panel, size_t width,
                                const uint8_t* next) {
    const Group& group = groups[g];
    const Part& weights = layer.experts_[group.expert].parts[part];
    float* const to = out(worker);
    const size_t rows = group.down ? tiles_per_task(group.hidden) * group.hidden.rows : kRowsPerTask;
    const size_t panels = group.down ? kPrefillPanels : kPanelsPerTask;
    for (const size_t end = panel + width; panel < end; panel += panels) {
        const size_t some = std::min(panels, end - panel), columns = some * kPanelRows;
        const float* const bias = weights.down_bias ? weights.down_bias + panel * kPanelRows : nullptr;
        for (size_t row = 0; row < group.count; row += rows) {
            const size_t count = std::min(rows, group.count - row);
            if (group.down) {
                multiply(worker, weights.down, panel, some, group.hidden, row, count, to);
            } else {
                multiply(weights.down, panel, some, hidden_rows + group.first + row, count, to,
                         panel + some < end ? nullptr : next);
            }
            add_bias(bias, columns, count, columns, to);
            add(group, row, count, (layer.outer_[part] + panel) * kPanelRows, columns, to);
        }
    }
}

// The product's columns, `stride` of them, belong to those of y from `begin` on.
void Experts::Chunk::add(const Group& group, size_t row, size_t count, size_t begin, size_t stride,
                         const float* out) {
    const size_t columns = std::min(stride, layer.hidden_ - begin);
    for (size_t i = 0; i < count; ++i) {
        const Route& route = routes[group.first + row + i];
        float* const sum = sums + route.token * layer.hidden_ + begin;
        for (size_t j = 0; j < columns; ++j) sum[j] += route.weight * out[i * stride + j];
    }
}

size_t Experts::tokens_per_chunk(size_t slots) const {
    const size_t value = std::max<size_t>(kernels_.prefill.value_bytes, 2);
    const size_t bytes = slots * (hidden_ + intermediate_) * value + hidden_ * sizeof(float);
    return std::clamp(kChunkBytes / bytes, kRowsPerChunk, kMostTokens);
}

void Experts::forward(const ExpertsCall& call) const {
    Pool::Lease lease(pool_);
    forward(lease, call);
}

void Experts::forward(Pool::Lease& lease, const ExpertsCall& call) const {
    if (call.add && call.dtype != Dtype::kF32)
        throw std::invalid_argument("results are added to float32 alone");
    size_t from[kFormatSlots] = {};
    for (size_t f = 0; f < kFormatSlots && kernels_.formats[f].info; ++f) from[f] = kernels_.prefill_from(f);
    uint8_t* elsewhere = nullptr;
    for (size_t i = 0; i < call.tokens * call.slots; ++i) {
        const auto index = static_cast<uint64_t>(call.ids[i]);  // a negative one is too big
        if (index >= asked_.size()) continue;
        std::atomic<uint64_t>& asked = asked_[index];  // with the lease there is one writer
        asked.store(asked.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    if (call.elsewhere) {  // routing counts and then places: between the two, nothing may change
        elsewhere = lease.scratch<uint8_t>(kElsewhere, experts_.size());
        std::copy_n(call.elsewhere, experts_.size(), elsewhere);
    }
    const size_t step = tokens_per_chunk(call.slots);
    for (size_t first = 0; first < call.tokens; first += step) {
        Chunk chunk{.layer = *this,
                    .call = call,
                    .lease = lease,
                    .first_token = first,
                    .tokens = std::min(step, call.tokens - first),
                    .prefill_from = from,
                    .elsewhere = elsewhere,
                    .lanes = lease.lanes(inner_.size() - 1)};
        chunk.route();
        chunk.choose_paths();
        chunk.list_tasks();
        chunk.list_runs();
        chunk.allocate();
        lease.parallel(
            [&chunk](const Worker& worker) {
                chunk.ask_first(worker);
                chunk.prepare_tokens(worker);
                if (chunk.tile_count) chunk.gather_tokens(worker);
                chunk.gate_up(worker);
                chunk.down(worker);
            },
            chunk.bytes);
    }
}

}  // namespace kt
