// exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2: the part that all widths share.
#pragma once

namespace kt {
namespace {

// Where x is limited: the result is then 1.6e-38 or 6.1e37, and what it is the divisor of no subnormal.
constexpr float kExpLow = -87.0f, kExpHigh = 87.0f;
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // n * kLn2High is exact

// exp(r) by its Taylor series; the remainder is 1.2e-7 of it at most, a unit in the last place.
KT_INLINE F32x16 exp_series(const F32x16& r) {
    F32x16 p = all_lanes(1.0f / 720);
    p = multiply_add(p, r, all_lanes(1.0f / 120));
    p = multiply_add(p, r, all_lanes(1.0f / 24));
    p = multiply_add(p, r, all_lanes(1.0f / 6));
    p = multiply_add(p, r, all_lanes(0.5f));
    p = multiply_add(p, r, all_lanes(1.0f));
    return multiply_add(p, r, all_lanes(1.0f));
}

// Steps 0 to 7 of 16 keys, pairs of columns, as 8 steps of 16 columns, pairs of keys: 8 x 8 of 64 bits are
// transposed, and the middle halves of each change places.
[[maybe_unused]] KT_INLINE void turn_pairs_plain(const uint8_t* keys, uint8_t* values) {
    for (size_t i = 0; i < 8; ++i) {
        for (size_t k = 0; k < 8; ++k) {
            const uint64_t x = load_as<uint64_t>(keys + kStepBytes * i + 8 * k);
            const uint64_t outer = x & 0xffff00000000ffff;
            const uint64_t middle = (x & 0xffff0000) << 16 | (x >> 16 & 0xffff0000);
            store_as(values + kStepBytes * k + 8 * i, outer | middle);
        }
    }
}

}  // namespace
}  // namespace kt
