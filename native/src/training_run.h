// The inside of Training, common to training.cpp (memory and phases) and training_products.cpp (arithmetic).
#pragma once

#include <algorithm>
#include <bit>

#include "kt/prefill.h"
#include "kt/training.h"

namespace kt {
namespace training {

enum Projection : size_t { kGate, kUp, kDown };

// Columns that are turned over at once: a panel's part is 4 KiB, and 1024 rows of them are 256 KiB.
// Super-blocks of 256 are decoded as a whole.
constexpr size_t kTurned = 128;
constexpr size_t kMostTurned = 256;

// Rows that meet weights as they are stored.
constexpr size_t kFewRows = 8;

struct Route {
    size_t token;
    size_t slot;
};

inline constexpr size_t padded(size_t n) {
    return divide_up(n, kPanelRows) * kPanelRows;
}

// bfloat16 to float32.
inline void widen(const uint16_t* from, size_t n, float* to) {
    for (size_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
}

// float32 to bfloat16, to nearest even, of a number that is finite.
inline uint16_t rounded(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Hands out aligned parts of a block of memory, or, without one, finds out how large it must be.
struct Memory {
    uint8_t* base;
    size_t bytes = 0;

    template <class T>
    T* take(size_t count) {
        T* const at = base ? reinterpret_cast<T*>(base + bytes) : nullptr;
        bytes += divide_up(count * sizeof(T), 64) * 64;
        return at;
    }
};

// The phases of a wave.
struct Phases {
    Phase packing, gathering, multiplying, inner_down, down;
    Phase gathering_dy, down_back, inner_back, gate_up_back, outer, turning, base;
    Phase summing;
};

// Rows of bfloat16 one after the other.
struct Rows {
    uint8_t* data = nullptr;
    size_t stride = 0;

    uint8_t* at(size_t row) const { return data + row * stride; }
};

}  // namespace training

using namespace training;

struct Training::Run {
    // An expert's rows of the call.
    struct Group {
        size_t expert;
        size_t first;
        size_t count;
        Tiles x{}, dy{}, h{}, dgate{}, dup{};
        Tiles z[kProjections]{}, q[kProjections]{};
        PanelMatrix a[kProjections]{}, b[kProjections]{};
        PanelMatrix x_turned{}, h_turned{};  // [columns][rows of the group]; h by routing weights
    };
    // Consecutive groups, and what all phases know of their rows; rows are counted from the wave's first.
    struct Wave {
        Group* groups;
        size_t count;
        size_t first;
        size_t rows;
        Rows h{}, dgate{}, dup{}, gate{}, up{};
        float* z[kProjections]{};  // [rows][rank in whole panels]
        float* q[kProjections]{};
        float* out = nullptr;       // [rows][hidden in whole panels]: of each row alone, before their sum
        float* products = nullptr;  // [rows][blocks of the intermediate size]: parts of h . dh
        const uint8_t** pointers[kProjections + 2]{};  // to the rows of x, dy, h, dgate, dup
        size_t* row_tasks = nullptr;                   // first task of each group, and the end
    };
    // Some tiles of a group.
    struct Block {
        size_t group, tile, tiles, row, count;
    };

    const Experts& layer;
    const TrainingCall& call;
    const TrainingGradients* back;
    Pool::Lease& lease;
    size_t wave_bytes;
    const Kernels& kernels = layer.kernels_;
    const size_t bf16 = kernels.format("BF16");
    const size_t hidden = layer.hidden_, inner = layer.intermediate_;
    const size_t rank_columns = padded(call.rank);
    const bool gated = layer.gating_.has_gate();

    Route* routes = nullptr;   // by expert, then token, then slot
    size_t* row_of = nullptr;  // [tokens * slots]; SIZE_MAX: none
    Group* groups = nullptr;
    size_t group_count = 0;
    size_t route_count = 0;
    size_t most_rows = 0;  // of a group
    size_t turned_columns = kTurned;
    Rows x{}, dy{};  // [tokens]
    float* sums = nullptr;
    float* wide = nullptr;
    uint8_t* thread_memory = nullptr;
    size_t thread_bytes = 0;

    // What a thread has for itself.
    struct Own {
        float* out[4];
        uint16_t* decoded;
        uint16_t* turned;
        uint16_t* small;
        uint8_t* row;
        uint8_t* across;        // columns of a group's rows as rows
        uint8_t* across_tiles;  // the same in tiles
    };

    bool lora() const { return call.rank > 0; }
    bool trains_base() const { return back && back->base[kUp]; }
    size_t in(size_t projection) const { return projection == kDown ? inner : hidden; }
    // Blocks of a row of x and of h that are turned over for the weights' gradients.
    size_t row_blocks() const { return divide_up(hidden, kTurned) + divide_up(inner, kTurned); }
    size_t base_blocks() const { return 2 * divide_up(inner, kTurned) + divide_up(hidden, kTurned); }
    size_t out(size_t projection) const { return projection == kDown ? hidden : inner; }
    size_t first_projection() const { return gated ? kGate : kUp; }
    size_t turned_blocks(size_t columns) const { return divide_up(columns, turned_columns); }
    const std::vector<size_t>& begins(size_t projection) const {
        return projection == kDown ? layer.outer_ : layer.inner_;
    }
    const PanelMatrix& panels(const Group& group, size_t part, size_t projection) const {
        const Experts::Part& weights = layer.experts_[group.expert].parts[part];
        return projection == kGate ? weights.gate : projection == kUp ? weights.up : weights.down;
    }
    PrepareFn round() const { return kernels.prepare[static_cast<size_t>(Policy::kBf16)]; }

    void route();
    void check(const Group& group);
    void allocate();
    Memory thread_layout(uint8_t* base, Own& own) const;
    Own own(const Worker& worker) const;
    Wave wave(size_t first) const;
    size_t lay_out(Wave& wave, uint8_t* base) const;
    void lay_out(Group& group, Memory& memory) const;
    void list_rows(Wave& wave) const;
    Block row_block(const Wave& wave, size_t task) const;

    void prepare(const Worker& worker, Phase& phase, const void* from, const Rows& to) const;
    void pack_lora(const Group& group, size_t task) const;
    void gather_rows(const Own& own, const Block& block, const Tiles& tiles, size_t columns,
                     const uint8_t* const* rows, size_t first) const;
    void multiply(const Own& own, const PanelMatrix& m, size_t panel, size_t width, const Tiles& tiles,
                  const Block& block, float* to) const;
    void turn(const PanelMatrix& m, size_t first_row, size_t begin, size_t end, uint16_t* to,
              size_t stride) const;
    PanelMatrix turned(const Group& group, size_t projection, size_t begin, size_t end, uint16_t* to) const;
    PanelMatrix turned(const PanelMatrix& m, size_t begin, size_t end, uint16_t* to) const;
    void inner_product(const Own& own, const Wave& wave, const Block& block, size_t projection,
                       bool forward) const;
    void keep_inner(const Own& own, const Wave& wave, const Block& block, size_t projection, bool forward,
                    size_t column, size_t columns, float* values) const;
    template <class Use>
    void for_blocks(const Wave& wave, size_t g, Use&& use) const;
    void multiply_rows(const Own& own, const PanelMatrix& m, size_t panel, size_t width, const Tiles& tiles,
                       const Block& block, const uint8_t* const* rows, float* to) const;

    void gate_up(const Own& own, const Wave& wave, size_t g, size_t part, size_t panel, size_t width) const;
    void down(const Own& own, const Wave& wave, size_t g, size_t part, size_t panel, size_t width) const;
    void down_back(const Own& own, const Wave& wave, size_t g, size_t begin) const;
    void through_activation(const Wave& wave, const Block& block, size_t begin, size_t columns,
                            const float* dh) const;
    void gate_up_back(const Own& own, const Wave& wave, size_t g, size_t begin) const;
    void lora_gradient(const Own& own, const Wave& wave, size_t g, size_t projection, bool of_a) const;
    void turn_rows(const Wave& wave, const Group& group, size_t block) const;
    void base_gradient(const Own& own, const Wave& wave, const Group& group, size_t projection,
                       size_t begin) const;
    void sum(const Wave& wave, size_t token, bool first, bool last, bool weighted, void* to) const;
    void weight_gradient(const Own& own, const Wave& wave, size_t row) const;

    void rows_in(const Worker& worker, const Wave& wave, Phases& phases) const;
    void hidden_in(const Worker& worker, const Wave& wave, Phases& phases) const;
    void forward_wave(const Worker& worker, const Wave& wave, Phases& phases) const;
    void backward_wave(const Worker& worker, const Wave& wave, Phases& phases) const;
    void base_wave(const Worker& worker, const Wave& wave, Phases& phases) const;
    void set(Phases& phases, const Wave& wave) const;
    void run(void* to);
};

template <class Use>
void Training::Run::for_blocks(const Wave& wave, size_t g, Use&& use) const {
    const Group& group = wave.groups[g];
    const size_t most = tiles_per_task(group.x);
    for (size_t tile = 0; tile < group.x.count; tile += most) {
        const size_t count = std::min(most, group.x.count - tile), row = tile * group.x.rows;
        use(Block{g, tile, count, row, std::min(count * group.x.rows, group.count - row)});
    }
}

}  // namespace kt
