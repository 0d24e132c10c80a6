// y = x W^T + b on the CPU.
#pragma once

#include "kt/matrix.h"

namespace kt {

class Linear {
  public:
    // Packs the weight; nothing of it is referred to afterwards. bias: null or stored.rows floats, copied.
    Linear(Pool& pool, const Kernels& kernels, const StoredMatrix& stored, const float* bias);

    size_t rows() const { return weight_.rows; }
    size_t cols() const { return weight_.cols; }
    size_t bytes() const { return weight_.bytes(); }

    // x [tokens, cols] and y [tokens, rows], both of `dtype`, contiguous.
    void forward(const void* x, Dtype dtype, size_t tokens, void* y) const;

  private:
    void forward_chunk(Pool::Lease& lease, const void* x, Dtype dtype, size_t first, size_t count,
                       void* y) const;

    Pool& pool_;
    const Kernels& kernels_;
    PanelMatrix weight_;
    Arena::Piece memory_;
    std::vector<float> bias_;
};

}  // namespace kt
