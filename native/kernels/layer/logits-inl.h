// Passes over a row of logits. A vocabulary's row stays in the second-level cache from the first one on.
#pragma once

namespace kt {
namespace {

// f(values, lanes, index of the first) for all of n values; lanes that lie beyond are -inf, and not in
// `lanes`.
template <class F>
KT_INLINE void over_lanes(const float* x, size_t n, F&& f) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) f(load_f32(x + i), kAllLanes, i);
    if (i == n) return;
    float rest[kLanes];
    for (size_t j = 0; j < kLanes; ++j) rest[j] = i + j < n ? x[i + j] : -__builtin_inff();
    f(load_f32(rest), (1u << (n - i)) - 1, i);
}

inline bool tops(const float* x, size_t n, float* tops) {
    const F32x16 least = all_lanes(-__builtin_inff());
    uint32_t numbers = kAllLanes;
    for (size_t run = 0; run < n; run += kRun) {
        F32x16 top = least;
        over_lanes(x + run, n - run < kRun ? n - run : kRun, [&](const F32x16& part, uint32_t, size_t) {
            top = larger(part, top);
            numbers &= at_least(part, least);
        });
        *tops++ = largest(top);
    }
    return numbers == kAllLanes;
}

inline void weigh(const float* x, size_t n, float top, float factor, float* w, double* sums) {
    const F32x16 minus = all_lanes(-top), least = all_lanes(kExpLow);
    sums[0] = sums[1] = 0.0;
    for (size_t run = 0; run < n; run += kRun) {
        F32x16 sum = zero_f32(), moment = zero_f32();
        const size_t count = n - run < kRun ? n - run : kRun;
        over_lanes(x + run, count, [&](const F32x16& part, uint32_t lanes, size_t i) {
            const F32x16 power = multiply(add(part, minus), factor);
            const F32x16 weight = keep(at_least(power, least), exp(power), 0.0f);
            sum = add(sum, weight);
            moment = multiply_add(weight, larger(power, least), moment);
            if (!w) return;
            if (lanes == kAllLanes) return store(w + run + i, weight);
            float rest[kLanes];
            store(rest, weight);
            for (size_t j = 0; run + i + j < n; ++j) w[run + i + j] = rest[j];
        });
        sums[0] += static_cast<double>(lane_total(sum));
        sums[1] -= static_cast<double>(lane_total(moment));
    }
}

inline size_t pick(const float* x, size_t n, const float* tops, float least, uint32_t* ids) {
    const F32x16 border = all_lanes(least);
    size_t count = 0;
    for (size_t run = 0; run < n; run += kRun) {
        if (!(*tops++ >= least)) continue;
        over_lanes(x + run, n - run < kRun ? n - run : kRun,
                   [&](const F32x16& part, uint32_t lanes, size_t i) {
                       const uint32_t found = at_least(part, border) & lanes;
                       put_places(found, static_cast<uint32_t>(run + i), ids + count);
                       count += static_cast<size_t>(__builtin_popcount(found));
                   });
    }
    return count;
}

}  // namespace
}  // namespace kt
