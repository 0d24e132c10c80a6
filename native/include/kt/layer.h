// Norm, rotary embedding, routing and elementwise operations over rows. Strides are elements.
#pragma once

#include "kt/matrix.h"

namespace kt {

// RMSNorm of [tokens][heads][size], in place where y is x. With a residual [tokens][heads * size] (heads 1)
// x + residual is what is normed, and it is written back to the residual.
struct NormCall {
    const void* x;
    size_t x_stride;  // from token to token
    void* residual;   // null: none
    void* y;
    size_t y_stride;
    Dtype dtype;          // of all three
    const float* weight;  // [size]; null: none
    float offset;         // added to the weight: 1 where a checkpoint stores it less one
    float epsilon;
    size_t tokens;
    size_t heads;
    size_t size;
};
void rms_norm(Pool::Lease& lease, const Kernels& kernels, const NormCall& call);

// Rotary embedding in place: of each head of x the columns first .. first + 2 * pairs - 1.
struct RotateCall {
    void* x;  // [tokens][heads][size]
    size_t token_stride;
    Dtype dtype;
    size_t tokens;
    size_t heads;
    size_t size;
    size_t first;
    size_t pairs;
    bool interleaved;     // pairs are neighbours; else they are `pairs` columns apart
    const float* cosine;  // [table_rows][pairs]
    const float* sine;
    size_t table_rows;
    const int64_t* positions;  // [tokens]: rows of the tables
};
// Throws std::invalid_argument for a position without a row.
void rotate(Pool::Lease& lease, const Kernels& kernels, const RotateCall& call);

// Routing of [tokens][experts] logits; `rule` says how, and its pointers are not used but for the bias.
struct RouteCall {
    RouteArgs rule;
    const float* logits;
    size_t tokens;
    int64_t* ids;    // [tokens][slots]
    float* weights;  // [tokens][slots]
};
// Throws std::invalid_argument for a rule that cannot be followed.
void route(Pool::Lease& lease, const Kernels& kernels, const RouteCall& call);

// out[t] = a[t] + b[t] and the like over [tokens][size]. out may be a or b.
struct CombineCall {
    Combination kind;
    const void* a;
    size_t a_stride;
    const void* b;
    size_t b_stride;
    void* out;
    size_t out_stride;
    Dtype dtype;
    size_t tokens;
    size_t size;
};
void combine(Pool::Lease& lease, const Kernels& kernels, const CombineCall& call);

}  // namespace kt
