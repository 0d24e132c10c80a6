// Norm, rotary embedding and elementwise operations on rows of float32.
#pragma once

namespace kt {
namespace {

KT_INLINE float lane_total(const F32x16& x) {
    float lane[kLanes];
    store(lane, x);
    for (size_t width = kLanes / 2; width; width /= 2) {
        for (size_t i = 0; i < width; ++i) lane[i] += lane[i + width];
    }
    return lane[0];
}

inline float sum_of_squares(const float* x, size_t n) {
    F32x16 sum[4] = {zero_f32(), zero_f32(), zero_f32(), zero_f32()};
    size_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        KT_UNROLL for (size_t j = 0; j < 4; ++j) {
            const F32x16 part = load_f32(x + i + j * kLanes);
            sum[j] = multiply_add(part, part, sum[j]);
        }
    }
    float total = lane_total(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
    for (; i < n; ++i) total += x[i] * x[i];
    return total;
}

inline void rms_norm(const float* x, const float* weight, float offset, float epsilon, size_t n, float* y) {
    const float mean = sum_of_squares(x, n) / static_cast<float>(n);
    const float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
    if (weight) {
        for (size_t i = 0; i < n; ++i) y[i] = x[i] * factor * (weight[i] + offset);
    } else {
        for (size_t i = 0; i < n; ++i) y[i] = x[i] * factor;
    }
}

inline void rotate(float* x, const float* cosine, const float* sine, size_t pairs, bool interleaved) {
    const size_t step = interleaved ? 2 : 1, other = interleaved ? 1 : pairs;
    for (size_t i = 0; i < pairs; ++i) {
        const float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * cosine[i] - b * sine[i];
        x[i * step + other] = b * cosine[i] + a * sine[i];
    }
}

inline void add_rows(const float* a, const float* b, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

inline void multiply_rows(const float* a, const float* b, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}

inline void gate_rows(const float* a, const float* b, size_t n, float* out) {
    for_lanes(a, b, n, out, [](const F32x16& x, const F32x16& z) { return multiply(x, sigmoid(z)); });
}

inline void silu_rows(const float* a, const float* b, size_t n, float* out) {
    for_lanes(a, b, n, out,
              [](const F32x16& x, const F32x16& up) { return multiply(multiply(x, sigmoid(x)), up); });
}

}  // namespace
}  // namespace kt
