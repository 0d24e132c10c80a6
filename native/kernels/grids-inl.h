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
// Steps of a group's range that the first grid leaves out at its ends. On Gaussian weights these are as good
// with 31 steps as with 15; the same parts of the range instead have 0.6 % more error there.
constexpr float kLeftOut[] = {3.75f, 2.7f, 1.65f, 0.75f, 0.0f};
constexpr float kZeroSpreads[] = {0.7f, 0.78f, 0.86f, 0.94f, 1.0f};
constexpr float kSteps[] = {0.0f, -1.0f, 1.0f};  // of the zero point from where the range has its middle
constexpr int kRefits = 2;                       // of each candidate of an affine grid
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

KT_INLINE void keep_better(const F32x16& scale, const F32x16& offset, const F32x16& gain, Best& best) {
    const uint32_t worse = at_least(best.gain, gain);
    best.scale = either(worse, best.scale, scale);
    best.offset = either(worse, best.offset, offset);
    best.gain = either(worse, best.gain, gain);
}

// For integers whose weighted sums of squares, and of products with the weights, are these.
KT_INLINE void keep_better_fit(Rounding rounding, const F32x16& square, const F32x16& product,
                               const F32x16& offset, Best& best) {
    const F32x16 scale = rounded(rounding, quotient(product, square));
    const F32x16 gain = multiply(scale, minus(multiply(product, 2.0f), multiply(scale, square)));
    keep_better(scale, offset, gain, best);
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
    keep_better_fit(rounding, square, product, offset, best);
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

// Groups whose values are told from `low`, so that sums keep their digits where a group is narrow and far
// from zero.
struct Shifted {
    alignas(64) float values[kMostGroup * kLanes];
    F32x16 low, w, x;  // sums of counts, and of counts times values

    KT_INLINE F32x16 at(size_t j) const { return load_f32(values + j * kLanes); }
};

template <bool Weighted>
KT_INLINE void shift(const Groups& groups, const F32x16& low, Shifted& out) {
    F32x16 w = zero_f32(), x = zero_f32();
    for (size_t j = 0; j < groups.size; ++j) {
        const F32x16 value = minus(groups.x(j), low);
        store(out.values + j * kLanes, value);
        w = add(w, Weighted ? groups.weights(j) : all_lanes(1.0f));
        x = add(x, Weighted ? multiply(value, groups.weights(j)) : value);
    }
    out.low = low, out.w = w, out.x = x;
}

// The scale and offset that fit best to the integers that `scale` and `offset` give, and by how much their
// squared error is smaller than that of `low` for every weight.
template <bool Weighted>
KT_INLINE F32x16 fit(const Groups& groups, const Shifted& x, const GridArgs& a, F32x16& scale,
                     F32x16& offset) {
    const F32x16 inverse = quotient(all_lanes(1.0f), scale), top = all_lanes(a.levels);
    F32x16 begin = minus(offset, x.low), q = zero_f32(), qq = zero_f32(), qx = zero_f32();
    for (size_t j = 0; j < groups.size; ++j) {
        const F32x16 code = whole(limited(multiply(minus(x.at(j), begin), inverse), zero_f32(), top));
        const F32x16 weighted = Weighted ? multiply(code, groups.weights(j)) : code;
        q = add(q, weighted);
        qq = add(qq, multiply(weighted, code));
        qx = add(qx, multiply(weighted, x.at(j)));
    }
    scale = quotient(minus(multiply(x.w, qx), multiply(q, x.x)), minus(multiply(x.w, qq), multiply(q, q)));
    offset = add(quotient(minus(x.x, multiply(scale, q)), x.w), x.low);
    if (a.below_zero) {
        const uint32_t fits = at_least(zero_f32(), offset);
        scale = either(fits, scale, quotient(add(qx, multiply(x.low, q)), qq));
        offset = keep(fits, offset, 0.0f);
    }
    scale = larger(scale, zero_f32());
    offset = rounded(a.rounding, offset);
    begin = minus(offset, x.low);
    if (a.rounding != Rounding::kNone) {  // the best for an offset that rounding has moved
        scale = rounded(a.rounding, larger(quotient(minus(qx, multiply(begin, q)), qq), zero_f32()));
    }
    const F32x16 by_scale = minus(minus(qx, multiply(begin, q)), multiply(scale, multiply(qq, 0.5f)));
    const F32x16 by_offset = minus(x.x, multiply(begin, multiply(x.w, 0.5f)));
    return multiply(add(multiply(scale, by_scale), multiply(begin, by_offset)), 2.0f);
}

// The gain of a fit is told with the integers it was made for; with its own it is at least that. That, two
// fits a candidate and one more of the best come within 0.5 % of the error of three fits with an error of
// their own each, which look at every weight twice as often.
template <bool Weighted>
Best affine(const Groups& groups, const GridArgs& a) {
    const F32x16 low = a.below_zero ? smaller(groups.low, zero_f32()) : groups.low;
    const F32x16 range = minus(groups.high, low);
    Shifted x;
    shift<Weighted>(groups, low, x);
    Best best;
    best.offset = rounded(a.rounding, low);
    best.gain = all_lanes(-__builtin_inff());
    F32x16 scale, offset, gain = zero_f32();
    for (const float out : kLeftOut) {
        const float part = out < a.levels * 0.5f ? out / a.levels : 0.5f;
        scale = multiply(range, (1.0f - part) / static_cast<float>(a.levels));
        offset = add(low, multiply(range, part * 0.5f));
        for (int refit = 0; refit < kRefits; ++refit) gain = fit<Weighted>(groups, x, a, scale, offset);
        keep_better(scale, offset, gain, best);
    }
    scale = best.scale, offset = best.offset;
    gain = fit<Weighted>(groups, x, a, scale, offset);
    keep_better(scale, offset, gain, best);
    return best;
}

}  // namespace
}  // namespace kt

#include "uneven-inl.h"

namespace kt {
namespace {

// What the codes of a group are told with: (x - begin) * inverse to the nearest integer of low ... high, plus
// `shift`.
struct Coding {
    alignas(64) float inverse[kLanes], begin[kLanes], low[kLanes], high[kLanes], shift[kLanes];
};

KT_INLINE void set_coding(const F32x16& scale, const F32x16& begin, const F32x16& low, const F32x16& high,
                          const F32x16& shift, Coding& out) {
    store(out.inverse, quotient(all_lanes(1.0f), scale));
    store(out.begin, begin);
    store(out.low, low);
    store(out.high, high);
    store(out.shift, shift);
}

KT_INLINE void coding_of(const GridArgs& a, const F32x16& scale, const F32x16& offset, Coding& out) {
    const F32x16 zero = zero_f32(), top = all_lanes(a.levels);
    if (a.grid == Grid::kSymmetric) {
        set_coding(scale, zero, multiply(top, -1.0f), minus(top, all_lanes(1.0f)), top, out);
    } else if (a.grid == Grid::kZeroPoint) {
        set_coding(scale, zero, multiply(offset, -1.0f), minus(top, offset), offset, out);
    } else {
        set_coding(scale, offset, zero, top, zero, out);
    }
}

// Of a group's weights one after another, where they lie: a quarter of the time of lanes that are groups.
inline void store_codes(const float* x, size_t size, const Coding& coding, size_t lane, uint8_t* out) {
    const F32x16 begin = all_lanes(coding.begin[lane]), low = all_lanes(coding.low[lane]);
    const F32x16 high = all_lanes(coding.high[lane]), shift = all_lanes(coding.shift[lane]);
    const float inverse = coding.inverse[lane];
    alignas(64) float codes[kMostGroup + kLanes];
    const auto at = [&](size_t j, const float* some) {
        const F32x16 steps = multiply(minus(load_f32(some), begin), inverse);
        store(codes + j, add(whole(limited(steps, low, high)), shift));
    };
    size_t j = 0;
    for (; j + kLanes <= size; j += kLanes) at(j, x + j);
    if (j < size) {
        float rest[kLanes] = {};
        __builtin_memcpy(rest, x + j, (size - j) * sizeof(float));
        at(j, rest);
    }
    // A loop of its own over all of them: compilers make vectors of this one.
    for (size_t k = 0; k < size; ++k) out[k] = static_cast<uint8_t>(static_cast<int>(codes[k]));
}

// Of the groups from `first`, at most a lane each.
inline void store_codes(const GridArgs& a, size_t first, size_t count, const F32x16& scale,
                        const F32x16& offset) {
    if (a.grid == Grid::kUneven) {
        Groups groups;
        load_groups<false>(a, first, count, groups);
        return store_uneven(groups, scale, offset, count, a.codes + first * a.group);
    }
    Coding coding;
    coding_of(a, scale, offset, coding);
    for (size_t lane = 0; lane < count; ++lane) {
        const size_t at = (first + lane) * a.group;
        store_codes(a.x + at, a.group, coding, lane, a.codes + at);
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

// f(first group, how many) for sixteen groups at a time.
template <class F>
void over_groups(const GridArgs& a, F&& f) {
    for (size_t first = 0; first < a.count; first += kLanes) {
        f(first, a.count - first < kLanes ? a.count - first : kLanes);
    }
}

template <bool Weighted>
void search_grids(const GridArgs& a) {
    Groups groups;
    over_groups(a, [&](size_t first, size_t count) {
        load_groups<Weighted>(a, first, count, groups);
        const Best best = a.grid == Grid::kSymmetric   ? symmetric<Weighted>(groups, a)
                          : a.grid == Grid::kZeroPoint ? with_zero_point<Weighted>(groups, a)
                          : a.grid == Grid::kUneven    ? uneven<Weighted>(groups, a)
                                                       : affine<Weighted>(groups, a);
        store_lanes(best.scale, count, a.scales + first);
        if (a.grid != Grid::kSymmetric) store_lanes(best.offset, count, a.offsets + first);
        if (a.codes) store_codes(a, first, count, best.scale, best.offset);
    });
}

inline void search(const GridArgs& a) {
    return a.weights ? search_grids<true>(a) : search_grids<false>(a);
}

inline void nearest(const GridArgs& a) {
    over_groups(a, [&](size_t first, size_t count) {
        const F32x16 scale = load_lanes(a.scales + first, count);
        const F32x16 offset = a.grid == Grid::kSymmetric ? zero_f32() : load_lanes(a.offsets + first, count);
        store_codes(a, first, count, scale, offset);
    });
}

// For a tier that brings a wider vector.
[[maybe_unused]] constexpr KernelTable with_grids(KernelTable table) {
    table.grids = {search, nearest};
    return table;
}

}  // namespace
}  // namespace kt
