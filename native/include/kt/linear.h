// y = x W^T + b on the CPU.
#pragma once

#include "kt/matrix.h"

namespace kt {

class Linear {
  public:
    // Packs the weight; nothing of it is referred to afterwards. bias: null or stored.rows floats, copied.
    Linear(Pool& pool, const Kernels& kernels, const StoredMatrix& stored, const float* bias);

    size_t rows() const { return rows_; }
    size_t cols() const { return cols_; }
    size_t bytes() const;

    // The path is chosen by the number of tokens. x [tokens, cols] and y [tokens, rows], both of `dtype`,
    // contiguous.
    void forward(const void* x, Dtype dtype, size_t tokens, void* y) const;

  private:
    // Some rows of the weight, in the memory of one group of threads.
    struct Part {
        PanelMatrix weight;
        Arena::Piece memory;
    };
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
    void finish(const Rows& rows, size_t first, size_t count, size_t column, size_t stride,
                float* tile) const;
    // The first task of each part, where a task is `block` panels of the part and one of row_tasks; the end.
    std::vector<size_t> task_begins(size_t block, size_t row_tasks) const;

    Pool& pool_;
    const Kernels& kernels_;
    size_t format_;
    size_t rows_;
    size_t cols_;
    std::vector<size_t> begins_;  // panels that begin the parts, and the end
    std::vector<Part> parts_;
    std::vector<float> bias_;
};

}  // namespace kt
