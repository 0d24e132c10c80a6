// What attention needs of sixteen lanes beside simd_scalar-inl.h. The other lanes_*-inl.h files offer the
// same names.
#pragma once

#include "kernels/simd_scalar-inl.h"

namespace kt {
namespace {

KT_INLINE F32x16 all_lanes(float x) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = x;
    return out;
}

KT_INLINE F32x16 add(const F32x16& a, const F32x16& b) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] + b.lane[i];
    return out;
}

KT_INLINE F32x16 divide(const F32x16& a, const F32x16& b) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] / b.lane[i];
    return out;
}

KT_INLINE F32x16 multiply(const F32x16& a, const F32x16& b) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] * b.lane[i];
    return out;
}

// The smaller of each lane; b's where either is NaN.
KT_INLINE F32x16 smaller(const F32x16& a, const F32x16& b) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return out;
}

// The larger of each lane; b's where either is NaN.
KT_INLINE F32x16 larger(const F32x16& a, const F32x16& b) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return out;
}

KT_INLINE float largest(const F32x16& a) {
    float top = a.lane[0];
    for (int i = 1; i < 16; ++i) top = a.lane[i] > top ? a.lane[i] : top;
    return top;
}

// A bit for each lane where a >= b; none where either is NaN.
KT_INLINE uint32_t at_least(const F32x16& a, const F32x16& b) {
    uint32_t lanes = 0;
    for (int i = 0; i < 16; ++i) lanes |= static_cast<uint32_t>(a.lane[i] >= b.lane[i]) << i;
    return lanes;
}

// first + i for each lane i whose bit is set; of the 16 values at `to` the others may be anything.
KT_INLINE void put_places(uint32_t lanes, uint32_t first, uint32_t* to) {
    for (; lanes; lanes &= lanes - 1) *to++ = first + static_cast<uint32_t>(__builtin_ctz(lanes));
}

// x in the lanes whose bit is set, `other` elsewhere.
KT_INLINE F32x16 keep(uint32_t lanes, const F32x16& x, float other) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = lanes >> i & 1 ? x.lane[i] : other;
    return out;
}

}  // namespace
}  // namespace kt

#include "exp-inl.h"

namespace kt {
namespace {

// exp(x) for x limited to [kExpLow, kExpHigh], to 3 units in the last place; NaN stays NaN. Adding 1.5 * 2^23
// rounds to an integer, which then stands in the low bits.
KT_INLINE F32x16 exp(const F32x16& x) {
    F32x16 r;
    int32_t n[16];
    for (int i = 0; i < 16; ++i) {
        float limited = x.lane[i] < kExpLow ? kExpLow : x.lane[i];
        limited = limited > kExpHigh ? kExpHigh : limited;
        const float shifted = limited * kLog2E + 0x1.8p23f, whole = shifted - 0x1.8p23f;
        n[i] = static_cast<int32_t>(f32_to_bits(shifted)) - 0x4b400000;
        r.lane[i] = (limited - whole * kLn2High) - whole * kLn2Low;
    }
    F32x16 out = exp_series(r);
    for (int i = 0; i < 16; ++i) out.lane[i] *= bits_to_f32(static_cast<uint32_t>(n[i] + 127) << 23);
    return out;
}

// 16 bfloat16, rounded to nearest even.
KT_INLINE void store_bf16(void* p, const F32x16& x) {
    for (int i = 0; i < 16; ++i) store_as(static_cast<uint8_t*>(p) + 2 * i, f32_to_bf16(x.lane[i]));
}

KT_INLINE void turn_pairs(const uint8_t* keys, uint8_t* values) {
    turn_pairs_plain(keys, values);
}

}  // namespace
}  // namespace kt
