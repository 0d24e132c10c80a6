// The search for the scales of groups of weights, and their codes.
//
// A lane is a group, so sums over a group are additions of vectors in the order of its weights, products and
// sums are never fused, and every tier finds the same bits.
//
// A candidate scale gives integers, integers give the scale that fits them best (least squares), and of all
// candidates the one with the smallest error is kept. On Gaussian weights these come within half a percent of
// what trying every scale and zero point finds.
#pragma once

namespace kt {
namespace {

// Where the largest weight falls, in parts of the lowest integer.
constexpr float kShares[] = {0.76f, 0.82f, 0.88f, 0.94f, 1.0f, 1.06f, 1.12f, 1.18f};
// Parts of a group's range that the first grid covers.
constexpr float kSpreads[] = {0.75f, 0.82f, 0.89f, 0.95f, 1.0f};
constexpr float kZeroSpreads[] = {0.7f, 0.78f, 0.86f, 0.94f, 1.0f};
constexpr float kSteps[] = {0.0f, -1.0f, 1.0f};  // of the zero point from where the range has its middle
constexpr int kRefits = 3;                       // of each candidate of an affine grid
constexpr float kTiny = 1e-33f;                  // scales below it could overflow what is divided by them
constexpr float kWhole = 0x1.8p23f;  // added and taken away again it leaves an integer, to nearest even

KT_INLINE F32x16 minus(const F32x16& a, const F32x16& b) {
    return add(a, multiply(b, -1.0f));
}

KT_INLINE F32x16 whole(const F32x16& x) {
    return add(add(x, all_lanes(kWhole)), all_lanes(-kWhole));
}

KT_INLINE F32x16 limited(const F32x16& x, const F32x16& low, const F32x16& high) {
    return smaller(larger(x, low), high);
}

// a in the lanes whose bit is set, b in the others.
KT_INLINE F32x16 either(uint32_t lanes, const F32x16& a, const F32x16& b) {
    return add(keep(lanes, a, 0.0f), keep(~lanes & kAllLanes, b, 0.0f));
}

// a / b, 0 where b is not above kTiny in size.
KT_INLINE F32x16 quotient(const F32x16& a, const F32x16& b) {
    const F32x16 size = larger(b, multiply(b, -1.0f));
    const uint32_t large = at_least(size, all_lanes(kTiny));
    return keep(large, divide(a, keep(large, b, 1.0f)), 0.0f);
}

// To the nearest number with `dropped` bits less behind the point, ties to even.
KT_INLINE uint32_t shortened(uint32_t bits, uint32_t dropped) {
    const uint32_t half = (1u << (dropped - 1)) - 1;
    return (bits + half + (bits >> dropped & 1)) & ~((1u << dropped) - 1);
}

KT_INLINE float nearest_f16(float x) {
    x = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
    // Below 2^-14 float16 has multiples of 2^-24.
    const float small = (x * 0x1p24f + kWhole) - kWhole;
    const float large = bits_to_f32(shortened(f32_to_bits(x), 13));
    return x < 0x1p-14f && x > -0x1p-14f ? small * 0x1p-24f : large;
}

KT_INLINE F32x16 rounded(Rounding rounding, const F32x16& x) {
    if (rounding == Rounding::kNone) return x;
    float values[kLanes];
    store(values, x);
    if (rounding == Rounding::kBf16) {
        for (float& value : values) value = bits_to_f32(shortened(f32_to_bits(value), 16));
    } else {
        for (float& value : values) value = nearest_f16(value);
    }
    return load_f32(values);
}

// Sixteen groups with a lane each; the last ones stand in for those that are missing.
struct Groups {
    alignas(64) float values[kMostGroup * kLanes];
    alignas(64) float counts[kMostGroup * kLanes];
    F32x16 high, low;
    size_t size;

    KT_INLINE F32x16 x(size_t j) const { return load_f32(values + j * kLanes); }
    KT_INLINE F32x16 weights(size_t j) const { return load_f32(counts + j * kLanes); }
};

// All of it before the first vector is loaded: one that was stored by the lane just before waits for that.
inline void turn_over(const float* const (&rows)[kLanes], size_t size, float* out) {
    for (size_t j = 0; j < size; ++j) {
        for (size_t lane = 0; lane < kLanes; ++lane) out[j * kLanes + lane] = rows[lane][j];
    }
}

template <bool Weighted>
void load_groups(const GridArgs& a, size_t first, size_t count, Groups& groups) {
    const float *rows[kLanes], *weights[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
        const size_t group = first + (lane < count ? lane : count - 1);
        rows[lane] = a.x + group * a.group;
        if (Weighted) weights[lane] = a.weights + group % a.period * a.group;
    }
    groups.size = a.group;
    turn_over(rows, a.group, groups.values);
    if (Weighted) turn_over(weights, a.group, groups.counts);
    groups.high = groups.low = groups.x(0);
    for (size_t j = 1; j < a.group; ++j) {
        groups.high = larger(groups.high, groups.x(j));
        groups.low = smaller(groups.low, groups.x(j));
    }
}

// The best of the candidates so far. `gain` is how much smaller the squared error is than that of zeros.
struct Best {
    F32x16 scale = zero_f32(), offset = zero_f32(), gain = zero_f32();
};

// For integers whose weighted sums of squares, and of products with the weights, are these.
KT_INLINE void keep_better(Rounding rounding, const F32x16& square, const F32x16& product,
                           const F32x16& offset, Best& best) {
    const F32x16 scale = rounded(rounding, quotient(product, square));
    const F32x16 gain = multiply(scale, minus(multiply(product, 2.0f), multiply(scale, square)));
    const uint32_t worse = at_least(best.gain, gain);
    best.scale = either(worse, best.scale, scale);
    best.offset = either(worse, best.offset, offset);
    best.gain = either(worse, best.gain, gain);
}

// Of each group the weight that is largest in size.
KT_INLINE F32x16 extreme_of(const Groups& groups) {
    return either(at_least(multiply(groups.low, -1.0f), groups.high), groups.low, groups.high);
}

// Integers with which scale 1 / inverse meets the weights, limited to low ... high; then the best scale for
// them.
template <bool Weighted>
KT_INLINE void try_scale(const Groups& groups, Rounding rounding, const F32x16& inverse, const F32x16& low,
                         const F32x16& high, const F32x16& offset, Best& best) {
    F32x16 square = zero_f32(), product = zero_f32();
    for (size_t j = 0; j < groups.size; ++j) {
        const F32x16 q = whole(limited(multiply(groups.x(j), inverse), low, high));
        const F32x16 weighted = Weighted ? multiply(q, groups.weights(j)) : q;
        square = add(square, multiply(weighted, q));
        product = add(product, multiply(weighted, groups.x(j)));
    }
    keep_better(rounding, square, product, offset, best);
}

template <bool Weighted>
Best symmetric(const Groups& groups, const GridArgs& a) {
    Best best;
    const F32x16 extreme = extreme_of(groups);
    const float levels = a.levels;
    for (const float share : kShares) {
        const F32x16 inverse = quotient(all_lanes(-levels * share), extreme);
        try_scale<Weighted>(groups, a.rounding, inverse, all_lanes(-levels), all_lanes(levels - 1),
                            zero_f32(), best);
    }
    return best;
}

template <bool Weighted>
Best with_zero_point(const Groups& groups, const GridArgs& a) {
    Best best;
    const F32x16 high = larger(groups.high, zero_f32()), low = smaller(groups.low, zero_f32());
    const F32x16 top = all_lanes(a.levels);
    for (const float spread : kZeroSpreads) {
        const F32x16 inverse = quotient(all_lanes(static_cast<float>(a.levels) / spread), minus(high, low));
        const float beside = static_cast<float>(a.levels) * (1.0f / spread - 1.0f) * 0.5f;
        const F32x16 middle = whole(minus(multiply(multiply(low, -1.0f), inverse), all_lanes(beside)));
        for (const float step : kSteps) {
            const F32x16 zero = limited(add(middle, all_lanes(step)), zero_f32(), top);
            try_scale<Weighted>(groups, a.rounding, inverse, multiply(zero, -1.0f), minus(top, zero), zero,
                                best);
        }
    }
    return best;
}

// The scale and offset with the least squared error for some integers, from sums over a group.
struct Sums {
    F32x16 w, x, q, qq, qx;
};

KT_INLINE void fit(const Sums& sums, const GridArgs& a, F32x16& scale, F32x16& offset) {
    const F32x16 above = minus(multiply(sums.w, sums.qx), multiply(sums.q, sums.x));
    scale = quotient(above, minus(multiply(sums.w, sums.qq), multiply(sums.q, sums.q)));
    offset = quotient(minus(sums.x, multiply(scale, sums.q)), sums.w);
    if (a.below_zero) {
        const uint32_t fits = at_least(zero_f32(), offset);
        scale = either(fits, scale, quotient(sums.qx, sums.qq));
        offset = keep(fits, offset, 0.0f);
    }
    scale = rounded(a.rounding, larger(scale, zero_f32()));
    offset = rounded(a.rounding, offset);
}

template <bool Weighted>
KT_INLINE F32x16 affine_error(const Groups& groups, const F32x16& scale, const F32x16& offset,
                              const F32x16& top) {
    const F32x16 inverse = quotient(all_lanes(1.0f), scale);
    F32x16 error = zero_f32();
    for (size_t j = 0; j < groups.size; ++j) {
        const F32x16 q = whole(limited(multiply(minus(groups.x(j), offset), inverse), zero_f32(), top));
        const F32x16 off = minus(add(multiply(q, scale), offset), groups.x(j));
        error = add(error, multiply(Weighted ? multiply(off, groups.weights(j)) : off, off));
    }
    return error;
}

template <bool Weighted>
Best affine(const Groups& groups, const GridArgs& a) {
    Sums sums{};
    sums.w = sums.x = zero_f32();
    for (size_t j = 0; j < groups.size; ++j) {
        sums.w = add(sums.w, Weighted ? groups.weights(j) : all_lanes(1.0f));
        sums.x = add(sums.x, Weighted ? multiply(groups.x(j), groups.weights(j)) : groups.x(j));
    }
    const F32x16 low = a.below_zero ? smaller(groups.low, zero_f32()) : groups.low;
    const F32x16 range = minus(groups.high, low), top = all_lanes(a.levels);
    Best best;
    best.offset = rounded(a.rounding, low);
    best.gain = all_lanes(-__builtin_inff());  // here minus the error
    for (const float spread : kSpreads) {
        F32x16 scale = multiply(range, spread / static_cast<float>(a.levels));
        F32x16 offset = add(low, multiply(range, (1.0f - spread) * 0.5f));
        for (int refit = 0; refit < kRefits; ++refit) {
            const F32x16 inverse = quotient(all_lanes(1.0f), scale);
            sums.q = sums.qq = sums.qx = zero_f32();
            for (size_t j = 0; j < groups.size; ++j) {
                const F32x16 q =
                    whole(limited(multiply(minus(groups.x(j), offset), inverse), zero_f32(), top));
                const F32x16 weighted = Weighted ? multiply(q, groups.weights(j)) : q;
                sums.q = add(sums.q, weighted);
                sums.qq = add(sums.qq, multiply(weighted, q));
                sums.qx = add(sums.qx, multiply(weighted, groups.x(j)));
            }
            fit(sums, a, scale, offset);
        }
        const F32x16 gain = multiply(affine_error<Weighted>(groups, scale, offset, top), -1.0f);
        const uint32_t worse = at_least(best.gain, gain);
        best.scale = either(worse, best.scale, scale);
        best.offset = either(worse, best.offset, offset);
        best.gain = either(worse, best.gain, gain);
    }
    return best;
}

}  // namespace
}  // namespace kt

#include "uneven-inl.h"

namespace kt {
namespace {

// (x - begin) / scale to the nearest integer of low ... high, plus `shift`.
inline void store_codes(const Groups& groups, const F32x16& scale, const F32x16& begin, const F32x16& low,
                        const F32x16& high, const F32x16& shift, size_t count, uint8_t* out) {
    const F32x16 inverse = quotient(all_lanes(1.0f), scale);
    for (size_t j = 0; j < groups.size; ++j) {
        float codes[kLanes];
        store(codes, add(whole(limited(multiply(minus(groups.x(j), begin), inverse), low, high)), shift));
        for (size_t lane = 0; lane < count; ++lane)
            out[lane * groups.size + j] = static_cast<uint8_t>(codes[lane]);
    }
}

inline void store_codes(const Groups& groups, const GridArgs& a, const F32x16& scale, const F32x16& offset,
                        size_t count, uint8_t* out) {
    const F32x16 zero = zero_f32(), top = all_lanes(a.levels);
    if (a.grid == Grid::kSymmetric) {
        const F32x16 low = multiply(top, -1.0f), high = minus(top, all_lanes(1.0f));
        store_codes(groups, scale, zero, low, high, top, count, out);
    } else if (a.grid == Grid::kZeroPoint) {
        store_codes(groups, scale, zero, multiply(offset, -1.0f), minus(top, offset), offset, count, out);
    } else if (a.grid == Grid::kUneven) {
        store_uneven(groups, scale, offset, count, out);
    } else {
        store_codes(groups, scale, offset, zero, top, zero, count, out);
    }
}

inline void store_lanes(const F32x16& x, size_t count, float* out) {
    float lanes[kLanes];
    store(lanes, x);
    for (size_t lane = 0; lane < count; ++lane) out[lane] = lanes[lane];
}

inline F32x16 load_lanes(const float* x, size_t count) {
    float lanes[kLanes] = {};
    for (size_t lane = 0; lane < count; ++lane) lanes[lane] = x[lane];
    return load_f32(lanes);
}

// f(first group, how many, those) for sixteen groups at a time.
template <bool Weighted, class F>
void over_groups(const GridArgs& a, F&& f) {
    Groups groups;
    for (size_t first = 0; first < a.count; first += kLanes) {
        const size_t count = a.count - first < kLanes ? a.count - first : kLanes;
        load_groups<Weighted>(a, first, count, groups);
        f(first, count, groups);
    }
}

template <bool Weighted>
void search_grids(const GridArgs& a) {
    over_groups<Weighted>(a, [&](size_t first, size_t count, const Groups& groups) {
        const Best best = a.grid == Grid::kSymmetric   ? symmetric<Weighted>(groups, a)
                          : a.grid == Grid::kZeroPoint ? with_zero_point<Weighted>(groups, a)
                          : a.grid == Grid::kUneven    ? uneven<Weighted>(groups, a)
                                                       : affine<Weighted>(groups, a);
        store_lanes(best.scale, count, a.scales + first);
        if (a.grid != Grid::kSymmetric) store_lanes(best.offset, count, a.offsets + first);
        store_codes(groups, a, best.scale, best.offset, count, a.codes + first * a.group);
    });
}

inline void search(const GridArgs& a) {
    return a.weights ? search_grids<true>(a) : search_grids<false>(a);
}

inline void nearest(const GridArgs& a) {
    over_groups<false>(a, [&](size_t first, size_t count, const Groups& groups) {
        const F32x16 scale = load_lanes(a.scales + first, count);
        const F32x16 offset = a.grid == Grid::kSymmetric ? zero_f32() : load_lanes(a.offsets + first, count);
        store_codes(groups, a, scale, offset, count, a.codes + first * a.group);
    });
}

// For a tier that brings a wider vector.
[[maybe_unused]] constexpr KernelTable with_grids(KernelTable table) {
    table.grids = {search, nearest};
    return table;
}

}  // namespace
}  // namespace kt
