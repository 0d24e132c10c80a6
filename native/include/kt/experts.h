// The routed experts of one layer: y[t] = sum over t's experts e of w * down_e(act(gate_e x) * up_e x).
#pragma once

#include "kt/matrix.h"

namespace kt {

// One forward call. Experts in ids that are negative, too big or not loaded contribute nothing.
struct ExpertsCall {
    const void* x;         // [tokens, hidden]
    const int64_t* ids;    // [tokens, slots]
    const float* weights;  // [tokens, slots]
    void* y;               // [tokens, hidden], x's dtype
    Dtype dtype;
    size_t tokens;
    size_t slots;
};

class Experts {
  public:
    Experts(Pool& pool, const Kernels& kernels, size_t count, size_t hidden, size_t intermediate,
            Activation activation);

    size_t count() const { return experts_.size(); }
    size_t hidden() const { return hidden_; }
    size_t intermediate() const { return intermediate_; }
    size_t bytes() const;
    const Kernels& kernels() const { return kernels_; }

    // gate and up [intermediate, hidden], down [hidden, intermediate]; formats may differ. Packs them;
    // loading an index again replaces it. Throws std::invalid_argument for a wrong shape or index.
    void load(size_t index, const StoredMatrix& gate, const StoredMatrix& up, const StoredMatrix& down);

    // Each expert's path is chosen by its rows in a chunk of the call's tokens. A token's result does not
    // depend on the number of threads, and in deterministic mode not on the other tokens either.
    void forward(const ExpertsCall& call) const;

  private:
    // Some rows of each matrix, in the memory of one group of threads.
    struct Part {
        PanelMatrix gate, up, down;
        Arena::Piece memory;
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

    Pool& pool_;
    const Kernels& kernels_;
    size_t hidden_;
    size_t intermediate_;
    Activation activation_;
    std::vector<size_t> inner_;  // panels of the intermediate size that begin the parts, and the end
    std::vector<size_t> outer_;  // the same of the hidden size
    std::vector<Expert> experts_;
};

}  // namespace kt
