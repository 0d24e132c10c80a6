// The routed experts of one layer: y[t] = sum over t's experts e of w * down_e(h), h = act(gate_e x) * up_e x
// or act(up_e x), each product with its bias.
#pragma once

#include <atomic>

#include "kt/matrix.h"

namespace kt {

// One forward call. Experts in ids that are negative, too big, elsewhere or not loaded contribute nothing.
struct ExpertsCall {
    const void* x;         // [tokens, hidden]
    const int64_t* ids;    // [tokens, slots]
    const float* weights;  // [tokens, slots]
    void* y;               // [tokens, hidden], x's dtype
    Dtype dtype;
    size_t tokens;
    size_t slots;
    const uint8_t* elsewhere = nullptr;  // [experts], not 0: computed elsewhere; read once, at the start
    bool add = false;                    // on top of what is in y, which is float32 then
};

struct Gating {
    Activation activation;
    Clamp clamp;

    bool has_gate() const { return activation != Activation::kReluSquared; }
};

// What an expert is packed from: gate and up [intermediate, hidden], down [hidden, intermediate], in formats
// that may differ, and biases of their rows or null. Without a gate both of its fields are null.
struct ExpertWeights {
    const StoredMatrix* gate;
    const StoredMatrix* up;
    const StoredMatrix* down;
    const float* gate_bias = nullptr;
    const float* up_bias = nullptr;
    const float* down_bias = nullptr;
};

// Where a part of an expert's packed weights lies, for copies of it: `data` holds all of its panels. Without
// a gate, gate is up.
struct ExpertPlace {
    const uint8_t* data;
    size_t bytes;
    PanelMatrix gate, up, down;
    bool biased;
};

class Experts {
  public:
    Experts(Pool& pool, const Kernels& kernels, size_t count, size_t hidden, size_t intermediate,
            Gating gating);

    size_t count() const { return experts_.size(); }
    size_t hidden() const { return hidden_; }
    size_t intermediate() const { return intermediate_; }
    size_t bytes() const;
    const Kernels& kernels() const { return kernels_; }
    Pool& pool() const { return pool_; }
    // How often each expert was asked for a token, since the layer was made, also where it is elsewhere; what
    // is counted in a call may be seen from its beginning on.
    uint64_t asked(size_t index) const { return asked_[index].load(std::memory_order_relaxed); }
    // Where these counts lie, one after the other, for who only looks at them.
    const void* asked_at() const { return asked_.data(); }

    // Packs experts first, first + 1, ...; loading one again replaces it. Throws std::invalid_argument for a
    // wrong shape or index, and for a gate where there is none or none where there is one.
    void load(size_t first, std::span<const ExpertWeights> weights);

    // The parts of expert `index`, in the order of the rows of gate and up, and of down; none: not loaded.
    // Valid until it is loaded again. Throws std::invalid_argument for a wrong index.
    std::vector<ExpertPlace> places(size_t index) const;

    // Each expert's path is chosen by its rows in a chunk of the call's tokens. A token's result does not
    // depend on the number of threads, and in deterministic mode not on the other tokens either.
    void forward(const ExpertsCall& call) const;
    // With a lease of the pool that the experts were made with.
    void forward(Pool::Lease& lease, const ExpertsCall& call) const;

  private:
    friend class Training;       // training.h: the same weights, forward and back
    friend class TrainedPanels;  // training_step.cpp: written anew

    // Some rows of each matrix, in the memory of one group of threads.
    struct Part {
        PanelMatrix gate, up, down;  // without a gate: gate is up
        bool woven = false;          // panels of gate and up take turns in memory
        const float* gate_bias = nullptr;
        const float* up_bias = nullptr;
        const float* down_bias = nullptr;
        Arena::Piece memory;  // all of it, biases padded to whole panels
    };
    struct Expert {
        std::vector<Part> parts;  // empty: not loaded

        bool loaded() const { return !parts.empty(); }
        // What all parts have in common: formats and sizes of a panel.
        const Part& form() const { return parts.front(); }
        size_t bytes() const;
    };
    struct Chunk;

    size_t tokens_per_chunk(size_t slots) const;
    void check(const char* name, const StoredMatrix& stored, size_t rows, size_t cols) const;
    void check(size_t index, const ExpertWeights& weights) const;
    Part make_part(Pool::Lease& lease, const ExpertWeights& from, size_t part,
                   std::vector<Packing>& jobs) const;

    Pool& pool_;
    const Kernels& kernels_;
    size_t hidden_;
    size_t intermediate_;
    Gating gating_;
    std::vector<size_t> inner_;  // panels of the intermediate size that begin the parts, and the end
    std::vector<size_t> outer_;  // the same of the hidden size
    std::vector<Expert> experts_;
    mutable std::vector<std::atomic<uint64_t>> asked_;
};

}  // namespace kt
