// What a call of Training has in memory, and its phases. The arithmetic is training_products.cpp's.
#include <stdexcept>

#include "training_run.h"

namespace kt {

using namespace training;

namespace {

enum Slot : size_t { kRoutes, kRowOf, kGroups, kBegins, kWide, kX, kDy, kSums, kWave, kThread, kRowTasks };

// Tasks of blocks of panels of a projection, for each group of a wave; a part's weights are its own threads'
// first.
struct PanelTasks {
    const std::vector<size_t>& panels;
    size_t begins[kMostGroups + 1] = {};

    PanelTasks(const std::vector<size_t>& all, size_t groups) : panels(all) {
        for (size_t p = 0; p + 1 < all.size(); ++p) begins[p + 1] = begins[p] + groups * blocks(p);
    }
    size_t blocks(size_t part) const { return divide_up(panels[part + 1] - panels[part], kPrefillPanels); }
    std::span<const size_t> all() const { return {begins, panels.size()}; }

    struct Task {
        size_t group, panel, width;
    };
    Task at(size_t i, size_t part) const {
        const size_t n = i - begins[part], panel = n % blocks(part) * kPrefillPanels;
        return {n / blocks(part), panel, std::min(kPrefillPanels, panels[part + 1] - panels[part] - panel)};
    }
};

}  // namespace

size_t Training::kept_columns() const {
    return prepared_bytes(Policy::kBf16, layer_.intermediate_) / sizeof(uint16_t);
}

// Sorts the call's (token, slot) pairs by expert.
void Training::Run::route() {
    const size_t experts = layer.experts_.size(), pairs = call.tokens * call.slots;
    size_t* const starts = lease.scratch<size_t>(kBegins, experts + 1);
    groups = lease.scratch<Group>(kGroups, experts);
    const auto used = [&](int64_t id) {
        return id >= 0 && static_cast<uint64_t>(id) < experts && layer.experts_[id].loaded();
    };
    std::fill_n(starts, experts + 1, 0);
    for (size_t i = 0; i < pairs; ++i) {
        if (used(call.ids[i])) ++starts[call.ids[i] + 1];
    }
    for (size_t e = 0; e < experts; ++e) {
        if (starts[e + 1]) {
            Group* const group =
                new (&groups[group_count++]) Group{.expert = e, .first = starts[e], .count = starts[e + 1]};
            check(*group);
            most_rows = std::max(most_rows, group->count);
        }
        starts[e + 1] += starts[e];
    }
    route_count = starts[experts];
    routes = lease.scratch<Route>(kRoutes, route_count);
    row_of = lease.scratch<size_t>(kRowOf, pairs);
    for (size_t i = 0; i < pairs; ++i) {
        row_of[i] = used(call.ids[i]) ? starts[call.ids[i]]++ : SIZE_MAX;
        if (row_of[i] != SIZE_MAX) routes[row_of[i]] = {i / call.slots, i % call.slots};
    }
}

// Also finds how many columns are decoded at once.
void Training::Run::check(const Group& group) {
    for (size_t projection = first_projection(); projection < kProjections; ++projection) {
        const size_t format = panels(group, 0, projection).format;
        if (format != bf16 && !kernels.formats[format].unpack) {
            throw std::invalid_argument(std::string("experts in ") + kernels.formats[format].info->name +
                                        " cannot be trained on: round them to BF16 first");
        }
        if (kTurned % kernels.formats[format].info->step) turned_columns = kMostTurned;
    }
}

Memory Training::Run::thread_layout(uint8_t* base, Own& own) const {
    Memory memory{base};
    for (float*& out : own.out) out = memory.take<float>(kPrefillFloats);
    own.decoded = memory.take<uint16_t>(kDecodedValues);
    own.turned = memory.take<uint16_t>(padded(std::max(hidden, inner)) * turned_columns);
    own.small = memory.take<uint16_t>(std::max<size_t>(rank_columns, 1) * turned_columns);
    own.row = memory.take<uint8_t>(prepared_bytes(Policy::kBf16, std::max({hidden, inner, call.rank})));
    if (trains_base()) {
        own.across = memory.take<uint8_t>((kTurned + 1) * prepared_bytes(Policy::kBf16, most_rows));
        const size_t rows = kTurned + kernels.prefill.max_tile_rows;
        own.across_tiles = memory.take<uint8_t>(tile_shape(kernels.prefill, rows, most_rows).total_bytes());
    }
    return memory;
}

Training::Run::Own Training::Run::own(const Worker& worker) const {
    Own own;
    thread_layout(thread_memory + worker.index * thread_bytes, own);
    return own;
}

void Training::Run::allocate() {
    const size_t threads = static_cast<size_t>(lease.threads());
    Own unused;
    thread_bytes = thread_layout(nullptr, unused).bytes;
    thread_memory = lease.scratch<uint8_t>(kThread, threads * thread_bytes);
    wide = lease.scratch<float>(kWide, threads * hidden);
    const size_t stride = prepared_bytes(Policy::kBf16, hidden);
    x = {lease.scratch<uint8_t>(kX, call.tokens * stride), stride};
    if (back) dy = {lease.scratch<uint8_t>(kDy, call.tokens * stride), stride};
    sums = lease.scratch<float>(kSums, call.tokens * hidden);
}

// Groups from `first` on, as many as the memory for a wave holds.
Training::Run::Wave Training::Run::wave(size_t first) const {
    const size_t row_bytes =
        12 * hidden + 16 * inner + 24 * rank_columns + (trains_base() ? 2 * (hidden + inner) : 0);
    Wave wave{.groups = groups + first,
              .count = 0,
              .first = first < group_count ? groups[first].first : 0,
              .rows = 0};
    while (first + wave.count < group_count) {
        const size_t more = groups[first + wave.count].count;
        if (wave.count && (wave.rows + more) * row_bytes > wave_bytes) break;
        wave.rows += more;
        ++wave.count;
    }
    const size_t bytes = lay_out(wave, nullptr);
    lay_out(wave, lease.scratch<uint8_t>(kWave, bytes));
    list_rows(wave);
    return wave;
}

size_t Training::Run::lay_out(Wave& wave, uint8_t* base) const {
    Memory memory{base};
    const size_t stride = prepared_bytes(Policy::kBf16, inner);
    const auto rows = [&](uint16_t* kept) {
        uint8_t* const at = reinterpret_cast<uint8_t*>(kept);
        return Rows{at ? at + wave.first * stride : memory.take<uint8_t>(wave.rows * stride), stride};
    };
    wave.h = rows(nullptr);
    wave.gate = gated ? rows(call.gate) : Rows{};
    wave.up = rows(call.up);
    if (back) wave.dgate = rows(nullptr), wave.dup = rows(nullptr);
    for (size_t p = 0; p < kProjections && lora(); ++p) {
        wave.z[p] = memory.take<float>(wave.rows * rank_columns);
        wave.q[p] = memory.take<float>(wave.rows * rank_columns);
    }
    wave.out = memory.take<float>(wave.rows * padded(hidden));
    wave.products = memory.take<float>(wave.rows * divide_up(inner, kTurned));
    for (const uint8_t**& pointers : wave.pointers) pointers = memory.take<const uint8_t*>(wave.rows);
    wave.row_tasks = memory.take<size_t>(wave.count + 1);
    for (size_t g = 0; g < wave.count; ++g) lay_out(wave.groups[g], memory);
    return memory.bytes;
}

void Training::Run::lay_out(Group& group, Memory& memory) const {
    const auto tiles = [&](Tiles& to, size_t columns) {
        to = tile_shape(kernels.prefill, group.count, columns);
        to.data = memory.take<uint8_t>(to.total_bytes());
    };
    const auto matrix = [&](PanelMatrix& to, size_t rows, size_t cols) {
        const size_t bytes = divide_up(cols, 2) * 4 * kPanelRows;
        to = {bf16, rows, cols, bytes, bytes, nullptr};
        to.panels = memory.take<uint8_t>(to.bytes());
    };
    tiles(group.x, hidden);
    tiles(group.h, inner);
    if (back) {
        tiles(group.dy, hidden);
        tiles(group.dgate, inner);
        tiles(group.dup, inner);
    }
    if (trains_base()) {
        matrix(group.x_turned, hidden, group.count);
        matrix(group.h_turned, inner, group.count);
    }
    for (size_t p = first_projection(); p < kProjections && lora(); ++p) {
        tiles(group.z[p], call.rank);
        tiles(group.q[p], call.rank);
        matrix(group.a[p], call.rank, in(p));
        matrix(group.b[p], out(p), call.rank);
    }
}

void Training::Run::list_rows(Wave& wave) const {
    wave.row_tasks[0] = 0;
    for (size_t g = 0; g < wave.count; ++g) {
        const Tiles& tiles = wave.groups[g].x;
        wave.row_tasks[g + 1] = wave.row_tasks[g] + divide_up(tiles.count, tiles_per_task(tiles));
    }
    for (size_t row = 0; row < wave.rows; ++row) {
        const size_t token = routes[wave.first + row].token;
        wave.pointers[0][row] = x.at(token);
        wave.pointers[1][row] = back ? dy.at(token) : nullptr;
        const Rows* const rest[] = {&wave.h, &wave.dgate, &wave.dup};
        for (size_t i = 0; i < 3; ++i) wave.pointers[2 + i][row] = rest[i]->data ? rest[i]->at(row) : nullptr;
    }
}

Training::Run::Block Training::Run::row_block(const Wave& wave, size_t task) const {
    const size_t* const begin = wave.row_tasks;
    const size_t g = static_cast<size_t>(std::upper_bound(begin, begin + wave.count + 1, task) - begin - 1);
    const Tiles& tiles = wave.groups[g].x;
    const size_t most = tiles_per_task(tiles), tile = (task - wave.row_tasks[g]) * most;
    const size_t count = std::min(most, tiles.count - tile), row = tile * tiles.rows;
    return {g, tile, count, row, std::min(count * tiles.rows, wave.groups[g].count - row)};
}

// Inputs in tiles, and Z of gate and up.
void Training::Run::rows_in(const Worker& worker, const Wave& wave, Phases& phases) const {
    const Own mine = own(worker);
    if (lora()) {
        constexpr size_t kMatrices = 2 * kProjections;
        phases.packing.run(worker,
                           [&](size_t i, size_t) { pack_lora(wave.groups[i / kMatrices], i % kMatrices); });
    }
    phases.gathering.run(worker, [&](size_t task, size_t) {
        const Block block = row_block(wave, task);
        const Group& group = wave.groups[block.group];
        gather_rows(mine, block, group.x, hidden, wave.pointers[0], group.first - wave.first);
        for (size_t p = first_projection(); p <= kUp && lora(); ++p)
            inner_product(mine, wave, block, p, true);
    });
}

void Training::Run::hidden_in(const Worker& worker, const Wave& wave, Phases& phases) const {
    const Own mine = own(worker);
    const PanelTasks tasks(layer.inner_, wave.count);
    phases.multiplying.run(worker, [&](size_t i, size_t part) {
        const auto [g, panel, width] = tasks.at(i, part);
        gate_up(mine, wave, g, part, panel, width);
    });
}

void Training::Run::forward_wave(const Worker& worker, const Wave& wave, Phases& phases) const {
    const Own mine = own(worker);
    rows_in(worker, wave, phases);
    hidden_in(worker, wave, phases);
    if (lora()) {
        phases.inner_down.run(worker, [&](size_t task, size_t) {
            inner_product(mine, wave, row_block(wave, task), kDown, true);
        });
    }
    const PanelTasks tasks(layer.outer_, wave.count);
    phases.down.run(worker, [&](size_t i, size_t part) {
        const auto [g, panel, width] = tasks.at(i, part);
        down(mine, wave, g, part, panel, width);
    });
}

void Training::Run::backward_wave(const Worker& worker, const Wave& wave, Phases& phases) const {
    const Own mine = own(worker);
    if (lora() || !call.up) rows_in(worker, wave, phases);
    if (!call.up) hidden_in(worker, wave, phases);
    phases.gathering_dy.run(worker, [&](size_t task, size_t) {
        const Block block = row_block(wave, task);
        const Group& group = wave.groups[block.group];
        gather_rows(mine, block, group.dy, hidden, wave.pointers[1], group.first - wave.first);
        if (lora()) inner_product(mine, wave, block, kDown, false);
    });
    phases.down_back.run(worker, [&](size_t i, size_t) {
        down_back(mine, wave, i / turned_blocks(inner), i % turned_blocks(inner) * turned_columns);
    });
    phases.inner_back.run(worker, [&](size_t task, size_t) {
        const Block block = row_block(wave, task);
        for (size_t p = first_projection(); p <= kUp && lora(); ++p)
            inner_product(mine, wave, block, p, false);
        if (lora()) inner_product(mine, wave, block, kDown, true);
        const size_t base = wave.groups[block.group].first - wave.first + block.row;
        for (size_t i = 0; i < block.count; ++i) weight_gradient(mine, wave, base + i);
    });
    phases.gate_up_back.run(worker, [&](size_t i, size_t) {
        gate_up_back(mine, wave, i / turned_blocks(hidden), i % turned_blocks(hidden) * turned_columns);
    });
    phases.outer.run(worker, [&](size_t i, size_t) {
        const size_t matrix = i % (2 * kProjections);
        if (matrix / 2 < first_projection()) return;
        lora_gradient(mine, wave, i / (2 * kProjections), matrix / 2, matrix % 2 == 0);
    });
    if (trains_base()) base_wave(worker, wave, phases);
}

void Training::Run::base_wave(const Worker& worker, const Wave& wave, Phases& phases) const {
    const Own mine = own(worker);
    phases.turning.run(
        worker, [&](size_t i, size_t) { turn_rows(wave, wave.groups[i / row_blocks()], i % row_blocks()); });
    const size_t blocks = base_blocks();
    phases.base.run(worker, [&](size_t i, size_t) {
        size_t projection = kGate, block = i % blocks;
        while (block >= divide_up(out(projection), kTurned)) block -= divide_up(out(projection++), kTurned);
        if (projection >= first_projection())
            base_gradient(mine, wave, wave.groups[i / blocks], projection, block * kTurned);
    });
}

void Training::Run::set(Phases& phases, const Wave& wave) const {
    const size_t matrices = lora() ? 2 * kProjections * wave.count : 0, blocks = wave.row_tasks[wave.count];
    for (Phase* phase : {&phases.packing, &phases.outer}) phase->set(matrices);
    for (Phase* phase : {&phases.gathering, &phases.inner_down, &phases.gathering_dy, &phases.inner_back})
        phase->set(blocks);
    phases.multiplying.set(PanelTasks(layer.inner_, wave.count).all());
    phases.down.set(PanelTasks(layer.outer_, wave.count).all());
    phases.down_back.set(wave.count * turned_blocks(inner));
    phases.gate_up_back.set(wave.count * turned_blocks(hidden));
    phases.turning.set(trains_base() ? wave.count * row_blocks() : 0);
    phases.base.set(trains_base() ? wave.count * base_blocks() : 0);
    phases.summing.set(call.tokens);
}

// The waves, one after the other; each one's rows are added up at its end.
void Training::Run::run(void* to) {
    route();
    allocate();
    Phase preparing(call.tokens), preparing_dy(back ? call.tokens : 0);
    lease.parallel([&](const Worker& worker) {
        prepare(worker, preparing, call.x, x);
        if (back) prepare(worker, preparing_dy, back->dy, dy);
    });
    size_t first = 0;
    do {
        const Wave some = wave(first);
        Phases todo;
        set(todo, some);
        const bool begins = first == 0, ends = first + some.count == group_count;
        lease.parallel([&](const Worker& worker) {
            back ? backward_wave(worker, some, todo) : forward_wave(worker, some, todo);
            todo.summing.run(worker,
                             [&](size_t token, size_t) { sum(some, token, begins, ends, !back, to); });
        });
        first += some.count;
    } while (first < group_count);
}

void Training::forward(const TrainingCall& call, void* y) const {
    Pool::Lease lease(layer_.pool_);
    forward(lease, call, y);
}

void Training::forward(Pool::Lease& lease, const TrainingCall& call, void* y) const {
    Run{.layer = layer_, .call = call, .back = nullptr, .lease = lease, .wave_bytes = wave_bytes_}.run(y);
}

void Training::backward(const TrainingCall& call, const TrainingGradients& gradients) const {
    Pool::Lease lease(layer_.pool_);
    std::fill_n(gradients.weights, call.tokens * call.slots, 0.0f);
    Run{.layer = layer_, .call = call, .back = &gradients, .lease = lease, .wave_bytes = wave_bytes_}.run(
        gradients.dx);
}

}  // namespace kt