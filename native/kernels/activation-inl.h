// How gate and up become h. All gates are gate * sigmoid(z) for some z(gate).
#pragma once

#include "common-inl.h"

namespace kt {
namespace {

// exp(x) for x clamped to [-87, 88], relative error below 2 ulp. x = n ln 2 + r with |r| <= ln 2 / 2;
// exp(r) by its Taylor series to r^7 (remainder 5e-9). Adding 1.5 * 2^23 rounds x / ln 2 to the integer n,
// which then stands in the low bits. A NaN passes through both comparisons and the series.
KT_INLINE float exp_f32(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float shifted = x * 1.44269504088896341f + 0x1.8p23f;
    const float n = shifted - 0x1.8p23f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * bits_to_f32((f32_to_bits(shifted) - 0x4b400000 + 127) << 23);
}

KT_INLINE float sigmoid(float z) {
    return 1.0f / (1.0f + exp_f32(-z));
}

// A NaN passes through comparisons.
KT_INLINE float at_most(float x, float limit) {
    return x > limit ? limit : x;
}

KT_INLINE float within(float x, float limit) {
    x = at_most(x, limit);
    return x < -limit ? -limit : x;
}

inline void silu(const float* gate, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; ++i) {
        const float x = at_most(gate[i], clamp.limit);
        out[i] = x * sigmoid(x) * within(up[i], clamp.limit);
    }
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
inline void gelu_tanh(const float* gate, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; ++i) {
        const float x = at_most(gate[i], clamp.limit);
        out[i] = x * sigmoid(1.59576912160573071f * (x + 0.044715f * x * x * x)) * within(up[i], clamp.limit);
    }
}

inline void swiglu_oai(const float* gate, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; ++i) {
        const float x = at_most(gate[i], clamp.limit);
        out[i] = x * sigmoid(clamp.alpha * x) * (within(up[i], clamp.limit) + 1.0f);
    }
}

inline void relu_squared(const float*, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; ++i) {
        const float x = within(up[i], clamp.limit);
        const float positive = x < 0.0f ? 0.0f : x;
        out[i] = positive * positive;
    }
}

}  // namespace
}  // namespace kt
