// Activation preparation, one function per policy. Plain loops: every tier's compiler flags vectorise
// them, and since each step is exact or correctly rounded, all tiers give the same bits.
#pragma once

#include "common-inl.h"

namespace kt {
namespace {

inline void prepare_f32(const float* x, size_t begin, size_t end, uint8_t* row) {
    __builtin_memcpy(row + 4 * begin, x, 4 * (end - begin));
}

inline void prepare_bf16(const float* x, size_t begin, size_t end, uint8_t* row) {
    for (size_t i = begin; i < end; ++i) store_as(row + 2 * i, f32_to_bf16(x[i - begin]));
    if (end % 2) store_as(row + 2 * end, uint16_t{0});  // rows are read as pairs
}

// scale = max|x| / 127, q = round to nearest even of x / scale. Groups whose scale is 0 (all zeros, or
// so small that the division underflows) are zero. A NaN or an infinity makes the scale NaN, and with it
// every output of the row. The clamp matters only where the scale is subnormal and so coarsely rounded;
// kernels rely on |q| <= 127.
KT_INLINE void quantise_group(const float* x, Group32* out) {
    int32_t top = 0;  // as integers, magnitudes order like floats, with infinity and NaN above all others
    KT_VECTORISE for (size_t i = 0; i < kGroup; ++i) {
        const int32_t magnitude = static_cast<int32_t>(f32_to_bits(x[i]) & 0x7fffffff);
        top = magnitude > top ? magnitude : top;
    }
    const bool finite = top < 0x7f800000;
    const float scale = bits_to_f32(static_cast<uint32_t>(top)) / 127.0f;
    const bool usable = finite && scale > 0.0f;
    int32_t values[kGroup] = {};
    if (usable) {
        KT_VECTORISE for (size_t i = 0; i < kGroup; ++i) {
            float q = __builtin_rintf(x[i] / scale);
            q = q > 127.0f ? 127.0f : q;
            q = q < -127.0f ? -127.0f : q;
            values[i] = static_cast<int32_t>(q);
        }
    }
    KT_VECTORISE for (size_t i = 0; i < kGroup; ++i) out->q[i] = static_cast<int8_t>(values[i]);
    int32_t sums[2] = {};
    for (size_t half = 0; half < 2; ++half) {
        KT_VECTORISE for (size_t i = 0; i < kGroup / 2; ++i) sums[half] += values[kGroup / 2 * half + i];
    }
    out->scale = finite ? (usable ? scale : 0.0f) : __builtin_nanf("");
    for (size_t half = 0; half < 2; ++half) out->sums[half] = static_cast<int16_t>(sums[half]);
    out->minus = -(sums[0] + sums[1]);
    out->total = out->scale * static_cast<float>(sums[0] + sums[1]);
}

inline void prepare_int8(const float* x, size_t begin, size_t end, uint8_t* row) {
    Group32* groups = reinterpret_cast<Group32*>(row);
    for (size_t i = begin; i < end; i += kGroup) quantise_group(x + (i - begin), groups + i / kGroup);
}

}  // namespace
}  // namespace kt
