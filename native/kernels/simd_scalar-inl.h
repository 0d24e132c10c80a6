// Sixteen lanes in plain C++: the oracle that every other tier is compared with, and the fallback for
// machines without a tier of their own. The other simd_*-inl.h files offer the same names.
#pragma once

#include "common-inl.h"

namespace kt {
namespace {

constexpr int kRowBlock = 2;  // rows that share a decoded weight; 4 gain little and triple the compile time
constexpr int kTileRows = 4, kTilePanels = 1;

struct F32x16 {
    float lane[16];
};
struct I32x16 {
    int32_t lane[16];
};
struct Bytes {  // 4 consecutive k of 16 rows
    uint8_t byte[64];
};

KT_INLINE F32x16 zero_f32() {
    return {};
}

KT_INLINE F32x16 load_f32(const void* p) {
    return load_as<F32x16>(p);
}

KT_INLINE void store(float* p, const F32x16& x) {
    store_as(p, x);
}

KT_INLINE float f16_to_f32(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    const uint32_t magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) return bits_to_f32(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
    if (magnitude < 0x0400) {  // zero and subnormal: an integer multiple of 2^-24
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return sign ? -value : value;
    }
    return bits_to_f32(sign | ((magnitude << 13) + ((127 - 15) << 23)));
}

KT_INLINE F32x16 load_f16(const void* p) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) {
        out.lane[i] = f16_to_f32(load_as<uint16_t>(static_cast<const uint8_t*>(p) + 2 * i));
    }
    return out;
}

// a * b + c
KT_INLINE F32x16 multiply_add(const F32x16& a, float b, const F32x16& c) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] * b + c.lane[i];
    return out;
}

KT_INLINE F32x16 multiply_add(const F32x16& a, const F32x16& b, const F32x16& c) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
    return out;
}

KT_INLINE F32x16 multiply(const F32x16& a, float b) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] * b;
    return out;
}

KT_INLINE F32x16 to_f32(const I32x16& a) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = static_cast<float>(a.lane[i]);
    return out;
}

// ---- bf16: pairs (k, k + 1) of 16 rows, one pair in each 32-bit lane, the lower k in the lower half ----

struct Pairs {
    F32x16 even, odd;
};

KT_INLINE Pairs load_pairs(const void* p) {
    Pairs out;
    for (int i = 0; i < 16; ++i) {
        const uint32_t pair = load_as<uint32_t>(static_cast<const uint8_t*>(p) + 4 * i);
        out.even.lane[i] = bits_to_f32(pair << 16);
        out.odd.lane[i] = bits_to_f32(pair & 0xffff0000);
    }
    return out;
}

KT_INLINE F32x16 dot_pairs(const F32x16& sum, const Pairs& w, const uint8_t* activation) {
    const uint32_t pair = load_as<uint32_t>(activation);
    return multiply_add(w.odd, bits_to_f32(pair & 0xffff0000),
                        multiply_add(w.even, bits_to_f32(pair << 16), sum));
}

// Two values of k for 16 rows as one vector of a BF16 panel, rounded to nearest even.
KT_INLINE void store_pairs(uint16_t* out, const F32x16& even, const F32x16& odd) {
    for (int i = 0; i < 16; ++i) {
        out[2 * i] = f32_to_bf16(even.lane[i]);
        out[2 * i + 1] = f32_to_bf16(odd.lane[i]);
    }
}

// ---- int8 weights stored with 128 added ----

KT_INLINE Bytes load_bytes(const void* p) {
    return load_as<Bytes>(p);
}

struct Signed {
    int8_t byte[64];
};

KT_INLINE Signed minus_128(const Bytes& w) {
    Signed out;
    for (int i = 0; i < 64; ++i) out.byte[i] = static_cast<int8_t>(w.byte[i] - 128);
    return out;
}

// Where a sum with such weights starts; First and Second say which halves of the group it runs over.
template <int First, int Second>
KT_INLINE I32x16 start_128(const uint8_t*) {
    return {};
}

KT_INLINE I32x16 dot(const I32x16& sum, const Signed& w, const int8_t* activation) {
    I32x16 out = sum;
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 4; ++j) out.lane[i] += w.byte[4 * i + j] * activation[j];
    }
    return out;
}

// ---- decoding: four values of k for 16 rows, byte * scale + offset, as two vectors of a BF16 panel ----

KT_INLINE void store_scaled(uint16_t* out, const Bytes& w, const F32x16& scale, const F32x16& offset) {
    for (int pair = 0; pair < 2; ++pair) {
        F32x16 even, odd;
        for (int i = 0; i < 16; ++i) {
            even.lane[i] = w.byte[4 * i + 2 * pair];
            odd.lane[i] = w.byte[4 * i + 2 * pair + 1];
        }
        store_pairs(out + 32 * pair, multiply_add(even, scale, offset), multiply_add(odd, scale, offset));
    }
}

// ---- 4-bit weights, unsigned ----

KT_INLINE Bytes low_nibbles(const Bytes& w) {
    Bytes out;
    for (int i = 0; i < 64; ++i) out.byte[i] = w.byte[i] & 0x0f;
    return out;
}

KT_INLINE Bytes high_nibbles(const Bytes& w) {
    Bytes out;
    for (int i = 0; i < 64; ++i) out.byte[i] = w.byte[i] >> 4;
    return out;
}

// Sum of a group's products of nibbles and int8 activations.
struct NibbleSum {
    I32x16 total;
};

KT_INLINE NibbleSum nibble_start() {
    return {};
}

KT_INLINE NibbleSum nibble_dot(const NibbleSum& sum, const Bytes& w, const int8_t* activation) {
    NibbleSum out = sum;
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 4; ++j) out.total.lane[i] += w.byte[4 * i + j] * activation[j];
    }
    return out;
}

KT_INLINE I32x16 nibble_total(const NibbleSum& sum) {
    return sum.total;
}

}  // namespace
}  // namespace kt
