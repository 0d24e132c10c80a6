// Grids that weights are rounded to, as `kt quant` makes them. The rules of table.h hold.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kt {

// The values that a group of weights can take, with integers q and a scale s:
// kSymmetric  s q, q from -levels to levels - 1
// kZeroPoint  s (q - offset), q and the offset from 0 to levels
// kAffine     s q + offset, q from 0 to levels
// kUneven     s (t[q] + offset) with IQ4_K's table t of 16, and an offset of 0 or 4
enum class Grid : uint8_t { kSymmetric, kZeroPoint, kAffine, kUneven };

// What scales, and the offsets of kAffine, are rounded to.
enum class Rounding : uint8_t { kNone, kBf16, kF16 };

// The largest group.
constexpr size_t kMostGroup = 128;

// Groups of weights lie one after another. Errors of group i count as row i % period of `weights` says, all
// alike where that is null. codes are q, or q + levels for kSymmetric.
struct GridArgs {
    const float* x;        // [count][group]
    const float* weights;  // [period][group]
    size_t count;
    size_t group;
    size_t period;
    Grid grid;
    Rounding rounding;
    uint8_t levels;
    bool below_zero;  // no offset of kAffine may be above 0
    float* scales;    // [count]
    float* offsets;   // [count]; not touched for kSymmetric
    uint8_t* codes;   // [count][group]; null where a search is to leave them out
};
using GridFn = void (*)(const GridArgs&);

struct GridOps {
    GridFn search = nullptr;   // scales, offsets and codes with a small weighted squared error
    GridFn nearest = nullptr;  // codes of the scales and offsets that are there; not for kZeroPoint
};

}  // namespace kt
