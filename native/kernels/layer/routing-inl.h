// The experts of one token.
#pragma once

namespace kt {
namespace {

// log(1 + p) = 2 atanh(s), s = p / (2 + p), for p in [0, 1]: there s^2 <= 1 / 9, and the series to the 15th
// power leaves 2e-9 of it.
KT_INLINE float log_one_plus(float p) {
    const float s = p / (2.0f + p), z = s * s;
    float series = 2.0f / 15;
    for (int n = 13; n > 0; n -= 2) series = series * z + 2.0f / static_cast<float>(n);
    return s * series;
}

// log(1 + exp(x)), without loss at either end.
inline void softplus(const float* x, size_t n, float* out) {
    for_lanes(x, n, out, [](const F32x16& a) {
        const F32x16 minus = multiply(a, -1.0f);
        return exp(smaller(a, minus));
    });
    for (size_t i = 0; i < n; ++i) out[i] = (x[i] > 0.0f ? x[i] : 0.0f) + log_one_plus(out[i]);
}

inline void softmax(const float* x, size_t n, float* out) {
    float top = x[0], sum = 0.0f;
    for (size_t i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
    for_lanes(x, n, out, [top](const F32x16& a) { return exp(add(a, all_lanes(-top))); });
    for (size_t i = 0; i < n; ++i) sum += out[i];
    for (size_t i = 0; i < n; ++i) out[i] /= sum;
}

inline void scores_of(const RouteArgs& a, float* out) {
    switch (a.score) {
        case Score::kSoftmax:
            return softmax(a.logits, a.experts, out);
        case Score::kSigmoid:
            return for_lanes(a.logits, a.experts, out, [](const F32x16& x) { return sigmoid(x); });
        case Score::kSqrtSoftplus:
            softplus(a.logits, a.experts, out);
            for (size_t i = 0; i < a.experts; ++i) out[i] = __builtin_sqrtf(out[i]);
            return;
        case Score::kLogit:
            __builtin_memcpy(out, a.logits, a.experts * sizeof *out);
    }
}

// In the order of choice: taken ones are lowest, then experts of other groups, then scores that are lower
// than any that counts, or NaN. Two of the last still add up to a float.
constexpr float kTaken = -__builtin_inff(), kOutside = -3e38f, kLowest = -1e38f;

// The index of the largest of n values, the first of equal ones; n where all are taken.
inline size_t best_of(const float* x, size_t n) {
    F32x16 tops = all_lanes(kTaken);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) tops = larger(tops, load_f32(x + i));
    float top = largest(tops);
    for (; i < n; ++i) top = x[i] > top ? x[i] : top;
    for (i = 0; i < n && (x[i] != top || top == kTaken); ++i) {
    }
    return i;
}

inline float sum_of_best(float* x, size_t n, size_t count) {
    float sum = 0.0f;
    size_t taken[2];
    float values[2];
    for (size_t i = 0; i < count; ++i) {
        taken[i] = best_of(x, n);
        values[i] = x[taken[i]];
        sum += values[i];
        x[taken[i]] = kTaken;
    }
    for (size_t i = count; i-- > 0;) x[taken[i]] = values[i];
    return sum;
}

// Experts outside the best groups get the value `outside`.
inline void keep_groups(const RouteArgs& a, float* choice, float* totals) {
    const size_t size = a.experts / a.groups;
    const float outside = a.outside > kOutside ? a.outside : kOutside;
    for (size_t g = 0; g < a.groups; ++g) totals[g] = sum_of_best(choice + g * size, size, a.group_best);
    for (size_t i = 0; i < a.top_groups; ++i) totals[best_of(totals, a.groups)] = kTaken;
    for (size_t g = 0; g < a.groups; ++g) {
        if (totals[g] == kTaken) continue;
        for (size_t i = 0; i < size; ++i) choice[g * size + i] = outside;
    }
}

inline void route(const RouteArgs& a) {
    float* const scores = a.scratch;
    float* const choice = scores + a.experts;
    scores_of(a, scores);
    for (size_t i = 0; i < a.experts; ++i) {
        const float x = a.bias ? scores[i] + a.bias[i] : scores[i];
        choice[i] = x > kLowest ? x : kLowest;
    }
    if (a.groups > 1) keep_groups(a, choice, choice + a.experts);
    float sum = 0.0f;
    for (size_t k = 0; k < a.slots; ++k) {
        const size_t best = best_of(choice, a.experts);
        choice[best] = kTaken;
        a.ids[k] = static_cast<int64_t>(best);
        a.weights[k] = scores[best];
        sum += scores[best];
    }
    if (a.softmax_last) softmax(a.weights, a.slots, a.weights);
    if (a.normalise) {
        sum += a.epsilon;
        sum = sum < a.floor ? a.floor : sum;
    }
    for (size_t k = 0; k < a.slots; ++k) {
        if (a.normalise) a.weights[k] /= sum;
        a.weights[k] *= a.scale;
    }
}

}  // namespace
}  // namespace kt
