// The grid of IQ4_K: sixteen uneven steps, and the same ones moved up by four. Part of grids-inl.h.
#pragma once

namespace kt {
namespace {

constexpr int kUneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kOffsets[] = {0.0f, 4.0f};
constexpr int kEnds[] = {kUneven[0], kUneven[15]};
// Parts of a table's end that a group's largest weight is brought to. On Gaussian weights more of them gain
// less than a part in three hundred.
constexpr float kUnevenShares[] = {0.76f, 0.84f, 0.9f, 0.96f, 1.02f, 1.1f};

// Of numbers from (i - 256) / 2 to half a one more: the nearest step's index, and its value. No border
// between two steps lies inside of such a place.
constexpr int kPlaces = 512;
struct Steps {
    uint8_t index[kPlaces];
    float value[kPlaces];
};

constexpr Steps make_steps() {
    Steps steps{};
    int nearest = 0;
    for (int i = 0; i < kPlaces; ++i) {  // in quarters, the middle of the place and the border
        while (nearest < 15 && 2 * (i - 256) + 1 > 2 * (kUneven[nearest] + kUneven[nearest + 1])) ++nearest;
        steps.index[i] = static_cast<uint8_t>(nearest);
        steps.value[i] = static_cast<float>(kUneven[nearest]);
    }
    return steps;
}
constexpr Steps kStepOf = make_steps();

// Sixteen places in `Steps` for numbers of a table that is moved up by `offset`.
KT_INLINE void places(const F32x16& x, const F32x16& offset, float* out) {
    const F32x16 twice = multiply(minus(x, offset), 2.0f);
    const F32x16 place = add(whole(minus(twice, all_lanes(0.5f))), all_lanes(256.0f));
    store(out, limited(place, zero_f32(), all_lanes(kPlaces - 1)));
}

template <bool Weighted>
KT_INLINE void try_uneven(const Groups& groups, Rounding rounding, const F32x16& inverse, float offset,
                          Best& best) {
    alignas(64) float values[kMostGroup * kLanes];
    for (size_t j = 0; j < groups.size; ++j) {
        float place[kLanes];
        places(multiply(groups.x(j), inverse), all_lanes(offset), place);
        for (size_t lane = 0; lane < kLanes; ++lane) {
            values[j * kLanes + lane] = kStepOf.value[static_cast<int>(place[lane])];
        }
    }
    F32x16 square = zero_f32(), product = zero_f32();
    for (size_t j = 0; j < groups.size; ++j) {
        const F32x16 q = add(load_f32(values + j * kLanes), all_lanes(offset));
        const F32x16 weighted = Weighted ? multiply(q, groups.weights(j)) : q;
        square = add(square, multiply(weighted, q));
        product = add(product, multiply(weighted, groups.x(j)));
    }
    keep_better_fit(rounding, square, product, all_lanes(offset), best);
}

template <bool Weighted>
Best uneven(const Groups& groups, const GridArgs& a) {
    Best best;
    const F32x16 extreme = extreme_of(groups);
    for (const float offset : kOffsets) {
        for (const int end : kEnds) {
            for (const float share : kUnevenShares) {
                const F32x16 inverse =
                    quotient(all_lanes((static_cast<float>(end) + offset) * share), extreme);
                try_uneven<Weighted>(groups, a.rounding, inverse, offset, best);
            }
        }
    }
    return best;
}

inline void store_uneven(const Groups& groups, const F32x16& scale, const F32x16& offset, size_t count,
                         uint8_t* out) {
    const F32x16 inverse = quotient(all_lanes(1.0f), scale);
    for (size_t j = 0; j < groups.size; ++j) {
        float place[kLanes];
        places(multiply(groups.x(j), inverse), offset, place);
        for (size_t lane = 0; lane < count; ++lane) {
            out[lane * groups.size + j] = kStepOf.index[static_cast<int>(place[lane])];
        }
    }
}

}  // namespace
}  // namespace kt
