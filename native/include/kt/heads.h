// A linear map of its own for each head: what multi-head latent attention absorbs into its queries (W_UK) and
// applies to its sums (W_UV).
#pragma once

#include <vector>

#include "kt/matrix.h"

namespace kt {

// Rows of one call: [tokens][heads][columns], strides in elements.
struct HeadRows {
    void* data;
    size_t token_stride;
    size_t head_stride;
};

class HeadLinear {
  public:
    // One stored matrix a head, all of one format and shape; packs them, and nothing of them is referred to
    // afterwards. Throws std::invalid_argument.
    HeadLinear(Pool& pool, const Kernels& kernels, const std::vector<StoredMatrix>& heads);

    size_t heads() const { return weights_.size(); }
    size_t rows() const { return weights_[0].rows; }
    size_t cols() const { return weights_[0].cols; }
    size_t bytes() const { return heads() * weights_[0].bytes(); }
    Pool& pool() const { return pool_; }

    // y[t][h] = W[h] x[t][h]; x [tokens][heads][cols], y [tokens][heads][rows], both of `dtype`. Activations
    // are rounded as the format's policy says. A row's result does not depend on the others or on the
    // threads.
    void forward(Pool::Lease& lease, const HeadRows& x, Dtype dtype, size_t tokens, const HeadRows& y) const;

  private:
    Pool& pool_;
    const Kernels& kernels_;
    std::vector<PanelMatrix> weights_;
    Arena::Piece memory_;
};

}  // namespace kt
