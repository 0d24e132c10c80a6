// How gate and up become h, 16 values at a time: n is a multiple of 16. All gates are gate * sigmoid(z) for
// some z(gate). Each tier fuses and rounds as its instructions do, so tiers agree to a few units in the last
// place. The including file brings lanes_*-inl.h.
#pragma once

namespace kt {
namespace {

// 1 / (1 + exp(-z)). A plain loop with its own exp took 6.3 ns a value on an Emerald Rapids Xeon, this 1.4.
KT_INLINE F32x16 sigmoid(const F32x16& z) {
    const F32x16 one = all_lanes(1.0f);
    return divide(one, add(one, exp(multiply(z, -1.0f))));
}

// A NaN passes through both.
KT_INLINE F32x16 at_most(const F32x16& x, float limit) {
    return smaller(all_lanes(limit), x);
}

KT_INLINE F32x16 within(const F32x16& x, float limit) {
    return larger(all_lanes(-limit), at_most(x, limit));
}

inline void silu(const float* gate, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; i += kLanes) {
        const F32x16 x = at_most(load_f32(gate + i), clamp.limit);
        store(out + i, multiply(multiply(x, sigmoid(x)), within(load_f32(up + i), clamp.limit)));
    }
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
inline void gelu_tanh(const float* gate, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; i += kLanes) {
        const F32x16 x = at_most(load_f32(gate + i), clamp.limit);
        const F32x16 cubic = multiply_add(multiply(multiply(x, 0.044715f), x), x, x);
        const F32x16 gated = multiply(x, sigmoid(multiply(cubic, 1.59576912160573071f)));
        store(out + i, multiply(gated, within(load_f32(up + i), clamp.limit)));
    }
}

inline void swiglu_oai(const float* gate, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; i += kLanes) {
        const F32x16 x = at_most(load_f32(gate + i), clamp.limit);
        const F32x16 gated = multiply(x, sigmoid(multiply(x, clamp.alpha)));
        const F32x16 shifted = add(within(load_f32(up + i), clamp.limit), all_lanes(1.0f));
        store(out + i, multiply(gated, shifted));
    }
}

inline void relu_squared(const float*, const float* up, size_t n, Clamp clamp, float* out) {
    for (size_t i = 0; i < n; i += kLanes) {
        const F32x16 positive = larger(zero_f32(), within(load_f32(up + i), clamp.limit));
        store(out + i, multiply(positive, positive));
    }
}

// out[i] = f(a[i], b[i]) for any n; out may be a or b.
template <class F>
KT_INLINE void for_lanes(const float* a, const float* b, size_t n, float* out, F&& f) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, f(load_f32(a + i), load_f32(b + i)));
    if (i == n) return;
    float rest[3][kLanes] = {};
    __builtin_memcpy(rest[0], a + i, (n - i) * sizeof(float));
    __builtin_memcpy(rest[1], b + i, (n - i) * sizeof(float));
    store(rest[2], f(load_f32(rest[0]), load_f32(rest[1])));
    __builtin_memcpy(out + i, rest[2], (n - i) * sizeof(float));
}

template <class F>
KT_INLINE void for_lanes(const float* x, size_t n, float* out, F&& f) {
    for_lanes(x, x, n, out, [&](const F32x16& a, const F32x16&) { return f(a); });
}

// For a tier that brings a wider vector.
[[maybe_unused]] constexpr KernelTable with_activations(KernelTable table) {
    table.activate[static_cast<size_t>(Activation::kSilu)] = silu;
    table.activate[static_cast<size_t>(Activation::kGeluTanh)] = gelu_tanh;
    table.activate[static_cast<size_t>(Activation::kSwigluOai)] = swiglu_oai;
    table.activate[static_cast<size_t>(Activation::kReluSquared)] = relu_squared;
    return table;
}

}  // namespace
}  // namespace kt
