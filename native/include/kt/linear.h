// y = x W^T + b on the CPU.
#pragma once

#include <functional>

#include "kt/matrix.h"

namespace kt {

// Rows of activations that are made when they are needed: make(context, row, scratch) returns row `row` as
// float32, in place or in scratch. It may be called more than once for a row.
struct RowSource {
    const float* (*make)(const void* context, size_t row, float* scratch);
    const void* context;
};

class Linear {
  public:
    // Packs the weight; nothing of it is referred to afterwards. bias: null or stored.rows floats, copied.
    // `between` is called after each 64 MiB but the last, when what they were packed from can be given back.
    Linear(Pool& pool, const Kernels& kernels, const StoredMatrix& stored, const float* bias,
           const std::function<void()>& between = {});

    size_t rows() const { return rows_; }
    size_t cols() const { return cols_; }
    size_t bytes() const;

    // The path is chosen by the number of tokens. x [tokens, cols] and y [tokens, rows], both of `dtype`,
    // contiguous.
    void forward(const void* x, Dtype dtype, size_t tokens, void* y) const;

    // Where a product goes: to y [tokens][stride] of `dtype`, or, with `add`, on top of what is there.
    struct Target {
        const Linear* linear;
        void* y;
        size_t stride;
        Dtype dtype = Dtype::kF32;
        bool add = false;
    };
    static constexpr size_t kMostTargets = 8;

    // Products of the same rows with several weights of as many columns each, in one region: every row is
    // made and rounded once where they take the direct path. The lease is of the pool that the weights were
    // packed for.
    static void forward(Pool::Lease& lease, std::span<const Target> targets, const RowSource& source,
                        size_t tokens);

  private:
    // Some rows of the weight, in the memory of one group of threads.
    struct Part {
        PanelMatrix weight;
        Arena::Piece memory;
    };
    // Rows first .. first + count - 1 of a call.
    struct Rows {
        const RowSource& source;
        size_t first;
        size_t count;
    };
    struct Products;

    void pack_piece(const StoredMatrix& stored, size_t piece, size_t pieces);
    static void direct(Pool::Lease& lease, std::span<const Target> targets, const Rows& rows);
    void prefill(Pool::Lease& lease, const Target& to, const Rows& rows) const;
    // Adds the bias and writes a tile of results: rows `row` .. row + count - 1 of the call, `stride` columns
    // from `column` on.
    void finish(const Target& to, size_t row, size_t count, size_t column, size_t stride, float* tile) const;

    const FormatEntry& format() const { return kernels_.formats[format_]; }
    size_t policy() const { return static_cast<size_t>(format().info->policy); }

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
