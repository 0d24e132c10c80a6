// The experts of one token.
#pragma once

namespace kt {
namespace {

// log(x) for x in [1, 2^127]: x = 2^n m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)) by
// its series to the 9th power (remainder 1e-8).
KT_INLINE float log_f32(float x) {
    const uint32_t bits = f32_to_bits(x) - 0x3f3504f3;
    const float n = static_cast<float>(static_cast<int32_t>(bits) >> 23);
    const float m = bits_to_f32((bits & 0x7fffff) + 0x3f3504f3);
    const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    const float series = 2.0f + z * (2.0f / 3 + z * (2.0f / 5 + z * (2.0f / 7 + z * (2.0f / 9))));
    return n * 0.693147180559945309f + s * series;
}

// log(1 + exp(x)), without loss where x is large; below -15 it is exp(x) to 2e-7.
KT_INLINE float softplus(float x) {
    const float power = exp_f32(-__builtin_fabsf(x));
    const float log = power < 3e-7f ? power : log_f32(1.0f + power);
    return (x > 0.0f ? x : 0.0f) + log;
}

inline void softmax(const float* x, size_t n, float* out) {
    float top = x[0], sum = 0.0f;
    for (size_t i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < n; ++i) out[i] = exp_f32(x[i] - top);
    for (size_t i = 0; i < n; ++i) sum += out[i];
    for (size_t i = 0; i < n; ++i) out[i] /= sum;
}

inline void scores_of(const RouteArgs& a, float* out) {
    switch (a.score) {
        case Score::kSoftmax:
            return softmax(a.logits, a.experts, out);
        case Score::kSigmoid:
            for (size_t i = 0; i < a.experts; ++i) out[i] = sigmoid(a.logits[i]);
            return;
        case Score::kSqrtSoftplus:
            for (size_t i = 0; i < a.experts; ++i) out[i] = __builtin_sqrtf(softplus(a.logits[i]));
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
    size_t best = n;
    for (size_t i = 0; i < n; ++i) {
        if (x[i] > (best < n ? x[best] : kTaken)) best = i;
    }
    return best;
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
