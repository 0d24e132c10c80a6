// What formats of small floats, and scales of other kinds than float16, need besides
// simd_scalar_blocks-inl.h. Same names in the other simd_*_floats-inl.h files.
#pragma once

#include "e4m3-inl.h"
#include "simd_scalar_blocks-inl.h"

namespace kt {
namespace {

KT_INLINE F32x16 load_bf16(const uint8_t* p) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = bits_to_f32(uint32_t{load_as<uint16_t>(p + 2 * i)} << 16);
    return out;
}

// 2^(e - 127) of 16 exponent bytes; 0 is subnormal, 255 NaN.
KT_INLINE F32x16 load_e8m0(const uint8_t* p) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) {
        const uint32_t e = p[i], odd = e == 0 || e == 255 ? 0x400000 : 0;
        out.lane[i] = bits_to_f32(e << 23 | odd);
    }
    return out;
}

// 16 magnitudes (no NaN) of E4M3, times 2^-8: the same bits as float16's.
KT_INLINE F32x16 load_e4m3_scales(const uint8_t* p) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = f16_to_f32(static_cast<uint16_t>(p[i] << 7));
    return out;
}

// Sixteen int8, less than 128 in size, to be multiplied with the sums of a group: p points at Group32::sums.
KT_INLINE I32x16 load_zeros(const uint8_t* p) {
    return load_s8(p);
}

KT_INLINE I32x16 all_zeros(int8_t value) {
    return add(zero_i32(), value);
}

KT_INLINE I32x16 times_sums(const I32x16& zeros, const uint8_t* p) {
    I32x16 out;
    for (int i = 0; i < 16; ++i) {
        out.lane[i] = zeros.lane[i] * (load_as<int16_t>(p) + load_as<int16_t>(p + 2));
    }
    return out;
}

KT_INLINE F32x16 even_of(const Pairs& w) {
    return w.even;
}

KT_INLINE F32x16 odd_of(const Pairs& w) {
    return w.odd;
}

// Four consecutive k of 16 rows.
struct Fours {
    Pairs first, second;
};

// Decoded values are this much too small; sums that dot_pairs keeps apart to hide its latency.
constexpr float kE4m3Unit = 1;
constexpr int kChains = 1;

KT_INLINE float e4m3_to_f32(uint8_t code) {
    return bits_to_f32((uint32_t{kE4m3.bf16[code & 127]} | (code & 128u) << 8) << 16);
}

// 64 bytes: of each 4 rows the first two k of every row, then the other two.
KT_INLINE Fours load_e4m3(const uint8_t* p) {
    Fours out;
    for (int i = 0; i < 16; ++i) {
        const uint8_t* const codes = p + 16 * (i / 4) + 2 * (i % 4);
        out.first.even.lane[i] = e4m3_to_f32(codes[0]);
        out.first.odd.lane[i] = e4m3_to_f32(codes[1]);
        out.second.even.lane[i] = e4m3_to_f32(codes[8]);
        out.second.odd.lane[i] = e4m3_to_f32(codes[9]);
    }
    return out;
}

}  // namespace
}  // namespace kt
