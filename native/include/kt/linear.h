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

    // The path is chosen by the number of tokens. x [tokens, cols] and y [tokens, rows], both of `dtype`,
    // contiguous.
    void forward(const void* x, Dtype dtype, size_t tokens, void* y) const;

  private:
    // Rows first .. first + count - 1 of a call.
    struct Rows {
        const void* x;
        void* y;
        Dtype dtype;
        size_t first;
        size_t count;
    };

    void direct(Pool::Lease& lease, const Rows& rows) const;
    void prefill(Pool::Lease& lease, const Rows& rows) const;
    void finish(const Rows& rows, size_t first, size_t count, size_t panel, size_t width, float* tile) const;

    Pool& pool_;
    const Kernels& kernels_;
    PanelMatrix weight_;
    Arena::Piece memory_;
    std::vector<float> bias_;
};

}  // namespace kt
