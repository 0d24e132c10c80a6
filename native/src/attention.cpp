#include "kt/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace kt {
namespace {

enum Slot : size_t { kTiles, kTasks, kParts, kThread };

// Rows that meet a page together: with fewer, long prompts read pages too often; with more, what a thread
// works on leaves its cache.
constexpr size_t kTileRows = 64;

// Keys after which a partial softmax ends, wherever the work is split. Multiples of the page.
constexpr size_t kChunkKeys = 512;

size_t chunk_keys(size_t page) {
    return divide_up(kChunkKeys, page) * page;
}

// Queries of one sequence that share a kv head, and the keys that they see.
struct Tile {
    uint32_t sequence, head;
    uint32_t query, queries;  // within the sequence
    uint32_t first_chunk, chunks;
    size_t position;  // of the first query
    size_t begin;     // first key that it sees
    size_t parts;     // where its partial results begin, in rows; SIZE_MAX: one task does it all
};

struct Task {
    uint32_t tile, chunk;
};

// Softmax over some keys, for the rows of a tile.
struct Partial {
    float* largest;  // [rows]
    float* sums;     // [rows][16]
    float* out;      // [rows][width]
};

class Attention {
  public:
    Attention(Pool::Lease& lease, const Kernels& kernels, const AttentionCall& call);

    void run();

  private:
    void check() const;
    void check_pages(size_t sequence) const;
    size_t tiles_of(size_t sequence) const;
    size_t plan_tiles();
    size_t plan_tasks(size_t tiles, size_t cost);
    Partial partial(float* memory, size_t rows) const;
    void prepare(const Worker& worker, const Tile& tile, AttendArgs& args) const;
    void chunk(const Tile& tile, size_t chunk, const Partial& to, AttendArgs& args) const;
    void task(const Worker& worker, const Task& task) const;
    void merge_tile(const Tile& tile) const;
    void finish(const Tile& tile, const Partial& from) const;

    size_t rows(const Tile& tile) const { return tile.queries * group_; }
    size_t part_floats(size_t rows) const { return rows * (1 + kLanes + width_); }

    Pool::Lease& lease_;
    const Kernels& kernels_;
    const AttentionCall& call_;
    const PageLayout& layout_;
    const bool bf16_;
    const size_t group_, width_, chunk_, queries_;
    const size_t most_rows_;  // of a tile
    const size_t thread_floats_;
    Tile* tiles_ = nullptr;
    Task* tasks_ = nullptr;
    size_t task_count_ = 0;
    float* parts_ = nullptr;
    float* threads_ = nullptr;
};

// Scratch of a thread, in floats: q, scores, weights, factors, turned values, one row of q, two partial
// results. A bfloat16 pair takes a float's place.
struct ThreadPlan {
    size_t q, scores, weights, factors, values, row, parts, total;

    ThreadPlan(const PageLayout& layout, size_t rows) {
        const size_t width = layout.value_panels() * kLanes;
        size_t at = 0;
        const auto take = [&at](size_t floats) {
            const size_t begin = at;
            at += divide_up(floats, kLanes) * kLanes;
            return begin;
        };
        q = take(rows * layout.key_steps());
        scores = take(rows * layout.page);
        weights = take(rows * layout.page / layout.per_step());
        factors = take(2 * divide_up(rows, kLanes) * kLanes);
        values = take(layout.shared ? width * layout.page / layout.per_step() : 0);
        row = take(layout.key_size);
        parts = take(2 * rows * (1 + kLanes + width));
        total = at;
    }
};

size_t queries_per_tile(size_t group) {
    return std::max<size_t>(kTileRows / group, 1);
}

size_t longest_sequence(const AttentionCall& call) {
    int32_t most = 0;
    for (size_t s = 0; s < call.sequences; ++s) most = std::max(most, call.starts[s + 1] - call.starts[s]);
    return static_cast<size_t>(most);
}

Attention::Attention(Pool::Lease& lease, const Kernels& kernels, const AttentionCall& call)
    : lease_(lease),
      kernels_(kernels),
      call_(call),
      layout_(call.layout),
      bf16_(layout_.dtype == Dtype::kBf16),
      group_(call.query_heads / layout_.heads),
      width_(layout_.value_panels() * kLanes),
      chunk_(chunk_keys(layout_.page)),
      queries_(queries_per_tile(group_)),
      most_rows_(std::min(queries_, std::max<size_t>(longest_sequence(call), 1)) * group_),
      thread_floats_(ThreadPlan(layout_, most_rows_).total) {}

void Attention::check() const {
    if (call_.sequences && call_.starts[0] != 0) throw std::invalid_argument("starts must begin with 0");
    for (size_t s = 0; s < call_.sequences; ++s) {
        const int32_t queries = call_.starts[s + 1] - call_.starts[s];
        if (queries < 0) throw std::invalid_argument("starts must not fall");
        if (call_.lengths[s] < queries) {
            throw std::invalid_argument("sequence " + std::to_string(s) + " has " + std::to_string(queries) +
                                        " queries but only " + std::to_string(call_.lengths[s]) + " keys");
        }
        if (queries) check_pages(s);
    }
}

// First key that a query sees.
size_t first_seen(size_t position, size_t window) {
    return position + 1 < window ? 0 : position + 1 - window;
}

void Attention::check_pages(size_t s) const {
    const size_t length = static_cast<size_t>(call_.lengths[s]);
    const size_t position = length - static_cast<size_t>(call_.starts[s + 1] - call_.starts[s]);
    const size_t pages = divide_up(length, layout_.page);
    if (pages > call_.table_stride) {
        throw std::invalid_argument("sequence " + std::to_string(s) + " has " + std::to_string(length) +
                                    " keys, more than its page table holds");
    }
    const int32_t* const table = call_.tables + s * call_.table_stride;
    for (size_t i = first_seen(position, call_.window) / layout_.page; i < pages; ++i) {
        if (table[i] < 0 || static_cast<size_t>(table[i]) >= call_.page_count) {
            throw std::invalid_argument("page " + std::to_string(table[i]) + " of sequence " +
                                        std::to_string(s) + " does not exist");
        }
    }
}

size_t Attention::tiles_of(size_t s) const {
    return divide_up(static_cast<size_t>(call_.starts[s + 1] - call_.starts[s]), queries_) * layout_.heads;
}

// Keys times row blocks: few rows cost what reading the keys costs.
size_t cost_of(size_t rows, size_t keys) {
    return divide_up(rows, 8) * keys;
}

// Describes the tiles, later queries first, since they see more keys. Returns what all of them cost.
size_t Attention::plan_tiles() {
    size_t cost = 0;
    Tile* tile = tiles_;
    for (size_t s = 0; s < call_.sequences; ++s) {
        const size_t count = static_cast<size_t>(call_.starts[s + 1] - call_.starts[s]);
        const size_t before = static_cast<size_t>(call_.lengths[s]) - count;
        for (size_t q = divide_up(count, queries_); q-- > 0;) {
            const size_t query = q * queries_, queries = std::min(queries_, count - query);
            const size_t position = before + query, begin = first_seen(position, call_.window);
            const size_t first = begin / chunk_, chunks = divide_up(position + queries, chunk_) - first;
            for (size_t head = 0; head < layout_.heads; ++head) {
                *tile++ = {static_cast<uint32_t>(s),
                           static_cast<uint32_t>(head),
                           static_cast<uint32_t>(query),
                           static_cast<uint32_t>(queries),
                           static_cast<uint32_t>(first),
                           static_cast<uint32_t>(chunks),
                           position,
                           begin,
                           SIZE_MAX};
                cost += cost_of(queries * group_, position + queries - begin);
            }
        }
    }
    return cost;
}

// Tiles that would keep one thread busy while others have nothing left become a task for each chunk of keys.
// Returns the rows of partial results that they need.
size_t Attention::plan_tasks(size_t tiles, size_t cost) {
    const size_t share = cost / (4 * static_cast<size_t>(lease_.threads()));
    const auto splits = [&](const Tile& tile) {
        return lease_.threads() > 1 && tile.chunks > 1 &&
               cost_of(rows(tile), tile.position + tile.queries - tile.begin) > share;
    };
    size_t count = 0, parts = 0;
    for (size_t t = 0; t < tiles; ++t) count += splits(tiles_[t]) ? tiles_[t].chunks : 1;
    tasks_ = lease_.scratch<Task>(kTasks, count);
    for (size_t t = 0; t < tiles; ++t) {
        Tile& tile = tiles_[t];
        const bool split = splits(tile);
        if (split) {
            tile.parts = parts;
            parts += tile.chunks * rows(tile);
        }
        for (uint32_t c = 0; c < (split ? tile.chunks : 1); ++c) {
            tasks_[task_count_++] = {static_cast<uint32_t>(t), c};
        }
    }
    return parts;
}

Partial Attention::partial(float* memory, size_t rows) const {
    return {memory, memory + rows, memory + rows * (1 + kLanes)};
}

// The tile's rows of q, rounded, and all of args but the keys and the results.
void Attention::prepare(const Worker& worker, const Tile& tile, AttendArgs& args) const {
    float* const scratch = threads_ + static_cast<size_t>(worker.index) * thread_floats_;
    const ThreadPlan plan(layout_, most_rows_);
    uint8_t* const q = reinterpret_cast<uint8_t*>(scratch + plan.q);
    const PrepareFn round = kernels_.prepare[static_cast<size_t>(bf16_ ? Policy::kBf16 : Policy::kF32)];
    const size_t row_bytes = 4 * layout_.key_steps();
    const size_t token = static_cast<size_t>(call_.starts[tile.sequence]) + tile.query;
    const size_t item = call_.dtype == Dtype::kBf16 ? 2 : 4;
    for (size_t i = 0; i < tile.queries; ++i) {
        const uint8_t* const from =
            static_cast<const uint8_t*>(call_.q) + item * ((token + i) * call_.q_stride);
        for (size_t g = 0; g < group_; ++g) {
            const float* const x =
                row_f32(from, call_.dtype, tile.head * group_ + g, layout_.key_size, scratch + plan.row);
            round(x, 0, layout_.key_size, q + (i * group_ + g) * row_bytes);
        }
    }
    args = {.pages = call_.pages + tile.head * layout_.head_bytes(),
            .page_bytes = layout_.page_bytes(),
            .table = call_.tables + tile.sequence * call_.table_stride,
            .page = layout_.page,
            .key_steps = layout_.key_steps(),
            .value_panels = layout_.value_panels(),
            .value_offset = layout_.key_bytes(),
            .block_bytes = layout_.head_bytes(),
            .asks = kernels_.asks,
            .shared = layout_.shared,
            .q = q,
            .rows = rows(tile),
            .group = group_,
            .position = tile.position,
            .window = call_.window,
            .begin = 0,
            .end = 0,
            .scale = call_.scale,
            .softcap = call_.softcap,
            .scores = scratch + plan.scores,
            .weights = reinterpret_cast<uint8_t*>(scratch + plan.weights),
            .factors = scratch + plan.factors,
            .values = reinterpret_cast<uint8_t*>(scratch + plan.values),
            .largest = nullptr,
            .sums = nullptr,
            .out = nullptr};
}

void Attention::chunk(const Tile& tile, size_t chunk, const Partial& to, AttendArgs& args) const {
    const size_t begin = (tile.first_chunk + chunk) * chunk_;
    args.begin = std::max(begin, tile.begin);
    args.end = std::min(begin + chunk_, tile.position + tile.queries);
    args.largest = to.largest;
    args.sums = to.sums;
    args.out = to.out;
    (bf16_ ? kernels_.layer.attend_bf16 : kernels_.layer.attend_f32)(args);
}

// Adds what later keys gave to what the keys before them gave.
void merge(const Partial& to, const Partial& from, size_t rows, size_t width) {
    for (size_t r = 0; r < rows; ++r) {
        const float top = std::max(to.largest[r], from.largest[r]);
        const float a = std::exp(to.largest[r] - top), b = std::exp(from.largest[r] - top);
        to.largest[r] = top;
        for (size_t i = r * kLanes; i < (r + 1) * kLanes; ++i) to.sums[i] = to.sums[i] * a + from.sums[i] * b;
        for (size_t i = r * width; i < (r + 1) * width; ++i) to.out[i] = to.out[i] * a + from.out[i] * b;
    }
}

void Attention::task(const Worker& worker, const Task& task) const {
    const Tile& tile = tiles_[task.tile];
    const size_t count = rows(tile), floats = part_floats(count);
    AttendArgs args;
    prepare(worker, tile, args);
    if (tile.parts != SIZE_MAX) {
        float* const memory = parts_ + part_floats(tile.parts) + task.chunk * floats;
        return chunk(tile, task.chunk, partial(memory, count), args);
    }
    float* const memory =
        threads_ + static_cast<size_t>(worker.index) * thread_floats_ + ThreadPlan(layout_, most_rows_).parts;
    const Partial all = partial(memory, count), next = partial(memory + floats, count);
    chunk(tile, 0, all, args);
    for (size_t c = 1; c < tile.chunks; ++c) {
        chunk(tile, c, next, args);
        merge(all, next, count, width_);
    }
    finish(tile, all);
}

void Attention::merge_tile(const Tile& tile) const {
    const size_t count = rows(tile), floats = part_floats(count);
    float* const memory = parts_ + part_floats(tile.parts);
    for (size_t c = 1; c < tile.chunks; ++c) {
        merge(partial(memory, count), partial(memory + c * floats, count), count, width_);
    }
    finish(tile, partial(memory, count));
}

// Divides by the sum, the sink's part included, and writes the rows.
void Attention::finish(const Tile& tile, const Partial& from) const {
    const size_t token = static_cast<size_t>(call_.starts[tile.sequence]) + tile.query;
    for (size_t r = 0; r < rows(tile); ++r) {
        const size_t head = tile.head * group_ + r % group_;
        float sum = 0.0f, factor = 1.0f;
        for (size_t i = 0; i < kLanes; ++i) sum += from.sums[r * kLanes + i];
        if (call_.sinks) {
            const float top = std::max(from.largest[r], call_.sinks[head]);
            factor = std::exp(from.largest[r] - top);
            sum = sum * factor + std::exp(call_.sinks[head] - top);
        }
        float* const out = from.out + r * width_;
        for (size_t i = 0; i < layout_.value_size; ++i) out[i] = out[i] * factor / sum;
        const size_t row = (token + r / group_) * call_.query_heads + head;
        write_row(out, layout_.value_size, call_.dtype, call_.out, row * layout_.value_size);
    }
}

void Attention::run() {
    check();
    size_t tiles = 0;
    for (size_t s = 0; s < call_.sequences; ++s) tiles += tiles_of(s);
    if (tiles == 0) return;
    tiles_ = lease_.scratch<Tile>(kTiles, tiles);
    const size_t cost = plan_tiles(), parts = plan_tasks(tiles, cost);
    // Eight rows take a key at about a third of the rate of a plain read.
    const size_t bytes = 3 * cost * layout_.head_bytes() / layout_.page;
    parts_ = lease_.scratch<float>(kParts, part_floats(parts));
    threads_ = lease_.scratch<float>(kThread, static_cast<size_t>(lease_.threads()) * thread_floats_);
    Phase attending(task_count_), merging(parts ? tiles : 0);
    lease_.parallel(
        [&](const Worker& worker) {
            attending.run(worker, [&](size_t i, size_t) { task(worker, tasks_[i]); });
            merging.run(worker, [&](size_t t, size_t) {
                if (tiles_[t].parts != SIZE_MAX) merge_tile(tiles_[t]);
            });
        },
        bytes);
}

// ---- writing and reading pages ----

uint16_t to_bf16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class To, class From>
To converted(From x) {
    if constexpr (std::is_same_v<To, From>) {
        return x;
    } else if constexpr (std::is_same_v<To, float>) {
        return std::bit_cast<float>(uint32_t{x} << 16);
    } else {
        return to_bf16(x);
    }
}

// Values of a row to or from their places in a page.
template <bool Writes, class Cell, class Row, class Place>
void move_values(Row* row, size_t count, Place&& place) {
    for (size_t i = 0; i < count; ++i) {
        Cell* const cell = reinterpret_cast<Cell*>(place(i));
        if constexpr (Writes) {
            *cell = converted<Cell>(row[i]);
        } else {
            row[i] = converted<Row>(*cell);
        }
    }
}

template <bool Writes, class Cell, class Row>
void move_token(const PageRows& rows, size_t token, size_t head) {
    constexpr size_t kItem = sizeof(Cell), kPerStep = 4 / kItem, kLane = kStepBytes / kLanes;
    const PageLayout& layout = rows.layout;
    const size_t slot = static_cast<size_t>(rows.slots[token]), key = slot % layout.page;
    uint8_t* const block = rows.pages + slot / layout.page * layout.page_bytes() + head * layout.head_bytes();
    uint8_t* const keys = block + key / kLanes * layout.key_steps() * kStepBytes + key % kLanes * kLane;
    move_values<Writes, Cell>(
        static_cast<Row*>(rows.keys) + token * rows.key_stride + head * layout.key_size, layout.key_size,
        [keys](size_t i) { return keys + i / kPerStep * kStepBytes + i % kPerStep * kItem; });
    if (Writes && layout.key_size % kPerStep) {  // the last pair's other half, which q meets with a zero
        std::memset(keys + (layout.key_steps() - 1) * kStepBytes + kItem, 0, kItem);
    }
    if (layout.shared) return;
    const size_t panel_bytes = layout.page / kPerStep * kStepBytes;
    uint8_t* const values = block + layout.key_bytes() + key / kPerStep * kStepBytes + key % kPerStep * kItem;
    move_values<Writes, Cell>(
        static_cast<Row*>(rows.values) + token * rows.value_stride + head * layout.value_size,
        layout.value_size, [=](size_t i) { return values + i / kLanes * panel_bytes + i % kLanes * kLane; });
}

using MoveFn = void (*)(const PageRows&, size_t token, size_t head);

template <bool Writes>
MoveFn mover(Dtype cell, Dtype row) {
    if (cell == Dtype::kF32) {
        return row == Dtype::kF32 ? move_token<Writes, float, float> : move_token<Writes, float, uint16_t>;
    }
    return row == Dtype::kF32 ? move_token<Writes, uint16_t, float> : move_token<Writes, uint16_t, uint16_t>;
}

template <bool Writes>
void move_rows(Pool::Lease& lease, const PageRows& rows) {
    rows.layout.check();
    constexpr size_t kTokens = 16;  // of a task: they share lines of the pages
    const size_t most = rows.page_count * rows.layout.page, heads = rows.layout.heads;
    for (size_t t = 0; t < rows.tokens; ++t) {
        if (rows.slots[t] >= static_cast<int64_t>(most)) {
            throw std::invalid_argument("slot " + std::to_string(rows.slots[t]) + " is beyond the " +
                                        std::to_string(most) + " slots of the pages");
        }
    }
    const MoveFn move = mover<Writes>(rows.layout.dtype, rows.dtype);
    Phase moving(divide_up(rows.tokens, kTokens) * heads);
    lease.parallel(
        [&](const Worker& worker) {
            moving.run(worker, [&](size_t task, size_t) {
                const size_t first = task / heads * kTokens, last = std::min(first + kTokens, rows.tokens);
                for (size_t t = first; t < last; ++t) {
                    if (rows.slots[t] >= 0) move(rows, t, task % heads);
                }
            });
        },
        rows.tokens * rows.layout.page_bytes() / rows.layout.page);
}

}  // namespace

void PageLayout::check() const {
    if (page == 0 || page % kLanes) throw std::invalid_argument("a page must have a multiple of 16 keys");
    if (heads == 0 || key_size == 0 || value_size == 0) {
        throw std::invalid_argument("heads, key size and value size must be at least 1");
    }
    if (shared && (value_size > key_size || value_size % kLanes)) {
        throw std::invalid_argument("shared values must be a multiple of 16 of the keys' columns");
    }
}

void write_pages(Pool::Lease& lease, const PageRows& rows) {
    move_rows<true>(lease, rows);
}

void read_pages(Pool::Lease& lease, const PageRows& rows) {
    move_rows<false>(lease, rows);
}

void attend(Pool::Lease& lease, const Kernels& kernels, const AttentionCall& call) {
    call.layout.check();
    if (call.query_heads == 0 || call.query_heads % call.layout.heads) {
        throw std::invalid_argument("query heads must be a multiple of kv heads");
    }
    if (call.window == 0) throw std::invalid_argument("a window must have at least one key");
    Attention(lease, kernels, call).run();
}

}  // namespace kt
