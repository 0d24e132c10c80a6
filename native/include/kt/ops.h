// What a tier offers for the parts of a decoder layer beside its weights. The rules of table.h hold.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kt {

// A panel of keys has 16 of them, a panel of values 16 columns: one lane each. A step of a panel is 64 bytes,
// 4 bytes a lane: two bfloat16 or one float32.
constexpr size_t kLanes = 16;
constexpr size_t kStepBytes = 4 * kLanes;

// Rows of queries that share a kv head against keys begin .. end - 1 of one sequence. Row r is a query at
// `position + r / group` and sees keys up to its own position, at most the last `window`.
//
// The keys' order of additions is fixed by the page size and by `begin`, so a row's result is the same bits
// whatever rows it comes with.
struct AttendArgs {
    const uint8_t* pages;  // this head's block of page 0
    size_t page_bytes;     // from a page's block to the next page's
    const int32_t* table;  // the sequence's pages
    size_t page;           // keys of a page, a multiple of 16
    size_t key_steps;      // of a panel of keys
    size_t value_panels;   // of 16 columns
    size_t value_offset;   // from a block's keys to its values
    size_t block_bytes;    // of both
    bool asks;             // for keys and values ahead of their use, also with few rows
    bool shared;           // values are the keys' first columns, and there are no others
    const uint8_t* q;      // [rows][key_steps] steps of 4 bytes, as the keys' type
    size_t rows;
    size_t group;
    size_t position;
    size_t window;  // SIZE_MAX: no limit
    size_t begin;
    size_t end;
    float scale;
    float softcap;  // 0: none; else scores become softcap * tanh(score / softcap)
    // Scratch. scores [rows][page], weights [rows][page] of the keys' type, factors [2][rows, filled up to
    // 16], values: for shared ones, value_panels panels of page keys.
    float* scores;
    uint8_t* weights;
    float* factors;
    uint8_t* values;
    // Results: the largest score, the sum of exp(score - largest) in 16 parts, and that sum over the values.
    float* largest;  // [rows], readable up to a multiple of 16
    float* sums;     // [rows][16]
    float* out;      // [rows][16 * value_panels]
};
using AttendFn = void (*)(const AttendArgs&);

// y = x / sqrt(mean(x^2) + epsilon) * (weight + offset), or without weight where it is null. y may be x.
using NormFn = void (*)(const float* x, const float* weight, float offset, float epsilon, size_t n, float* y);

// Turns pairs (a, b) to (a cos - b sin, b cos + a sin): a = x[i] and b = x[i + pairs], or interleaved
// a = x[2 i] and b = x[2 i + 1].
using RotateFn = void (*)(float* x, const float* cosine, const float* sine, size_t pairs, bool interleaved);

// How logits become scores.
enum class Score : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus, kLogit };

// The choice of `slots` of `experts`. Of equal scores the lower index wins, and a NaN counts as the lowest.
struct RouteArgs {
    const float* logits;  // [experts]
    size_t experts;
    size_t slots;
    Score score;
    const float* bias;  // [experts], added for the choice only; null: none
    size_t groups;      // experts in that many equal runs; 1: no groups
    size_t top_groups;  // chosen by the sum of their `group_best` best experts
    size_t group_best;
    float outside;      // what an expert outside the chosen groups counts as
    bool softmax_last;  // weights are the softmax over the chosen scores
    bool normalise;     // weights are divided by max(sum + epsilon, floor)
    float epsilon;
    float floor;
    float scale;
    float* scratch;  // 2 * experts + groups
    int64_t* ids;    // [slots], best first
    float* weights;  // [slots]
};
using RouteFn = void (*)(const RouteArgs&);

// out[i] = a[i] + b[i], a[i] * b[i], a[i] * sigmoid(b[i]), silu(a[i]) * b[i]. out may be a or b.
enum class Combination : uint8_t { kAdd, kMultiply, kSigmoidGate, kSiluGate };
constexpr size_t kCombinations = 4;
using CombineFn = void (*)(const float* a, const float* b, size_t n, float* out);

// Values of a run of logits.
constexpr size_t kRun = 256;
// The largest value of each run of x, -inf below all; false where any is NaN.
using TopsFn = bool (*)(const float* x, size_t n, float* tops);
// w[i] = exp((x[i] - top) * factor), 0 below e^-87, for x no larger than top; w may be null. sums: of w, and
// of w (top - x) factor.
using WeighFn = void (*)(const float* x, size_t n, float top, float factor, float* w, double* sums);
// The indices of values that are at least `least`, rising, and how many; `tops` says which runs have any. ids
// has room for n + 16.
using PickFn = size_t (*)(const float* x, size_t n, const float* tops, float least, uint32_t* ids);

// A null entry means: use the next runnable tier below.
struct LayerOps {
    AttendFn attend_f32 = nullptr;
    AttendFn attend_bf16 = nullptr;
    NormFn norm = nullptr;
    RotateFn rotate = nullptr;
    RouteFn route = nullptr;
    CombineFn combine[kCombinations] = {};
    TopsFn tops = nullptr;
    WeighFn weigh = nullptr;
    PickFn pick = nullptr;
};

}  // namespace kt
