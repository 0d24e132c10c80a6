// What formats of small integers in blocks need besides simd_scalar-inl.h. Same names in the other
// simd_*_blocks-inl.h files.
#pragma once

#include "simd_scalar-inl.h"

namespace kt {
namespace {

KT_INLINE I32x16 zero_i32() {
    return {};
}

// -(First * sums[0] + Second * sums[1]) in every lane; sums points at Group32::sums.
template <int First, int Second>
KT_INLINE I32x16 minus_sums(const uint8_t* sums) {
    I32x16 out;
    for (int i = 0; i < 16; ++i) {
        out.lane[i] = -(First * load_as<int16_t>(sums) + Second * load_as<int16_t>(sums + 2));
    }
    return out;
}

// Eight consecutive k of 16 rows, unsigned values of at most 63.
struct BytePair {
    Bytes first, second;
};

KT_INLINE I32x16 dot(const I32x16& sum, const BytePair& w, const int8_t* activation) {
    I32x16 out = sum;
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 4; ++j) {
            out.lane[i] +=
                w.first.byte[4 * i + j] * activation[j] + w.second.byte[4 * i + j] * activation[4 + j];
        }
    }
    return out;
}

// Eight values of 16 rows, stored row after row with 128 added, as two vectors of four: negated (about 128)
// where the row's byte of `signs` has the value's bit set.
KT_INLINE BytePair signed_eights(const uint8_t* values, const uint8_t* signs) {
    BytePair out;
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) {
            const int value = values[8 * i + j], negative = signs[i] >> j & 1;
            Bytes& half = j < 4 ? out.first : out.second;
            half.byte[4 * i + j % 4] = static_cast<uint8_t>(negative ? -value : value);
        }
    }
    return out;
}

// ---- packing ----

// 16 bytes at rows[r] + at for each of 16 rows: vector i has bytes 4i .. 4i + 3 of every row.
KT_INLINE void load_columns(const uint8_t* const* rows, size_t at, Bytes* out) {
    for (int r = 0; r < 16; ++r) {
        for (int i = 0; i < 4; ++i) store_as(out[i].byte + 4 * r, load_as<uint32_t>(rows[r] + at + 4 * i));
    }
}

// Four bytes of every row as four arrays of 16.
KT_INLINE Bytes by_byte(const Bytes& four) {
    Bytes out;
    for (int r = 0; r < 16; ++r) {
        for (int j = 0; j < 4; ++j) out.byte[16 * j + r] = four.byte[4 * r + j];
    }
    return out;
}

KT_INLINE Bytes plus_128(const Bytes& x) {
    Bytes out;
    for (int i = 0; i < 64; ++i) out.byte[i] = x.byte[i] ^ 0x80;
    return out;
}

// The bits of Mask of every byte, after a shift to the left (Shift < 0: to the right).
template <int Mask, int Shift>
KT_INLINE Bytes bits(const Bytes& plane) {
    Bytes out;
    for (int i = 0; i < 64; ++i) {
        const int byte = plane.byte[i];
        out.byte[i] = static_cast<uint8_t>((Shift < 0 ? byte >> -Shift : byte << Shift) & Mask);
    }
    return out;
}

// w with those bits added.
template <int Mask, int Shift>
KT_INLINE Bytes with_bits(const Bytes& w, const Bytes& plane) {
    Bytes out = bits<Mask, Shift>(plane);
    for (int i = 0; i < 64; ++i) out.byte[i] |= w.byte[i];
    return out;
}

// table[index], index < 16
KT_INLINE Bytes lookup(const uint8_t* table, const Bytes& index) {
    Bytes out;
    for (int i = 0; i < 64; ++i) out.byte[i] = table[index.byte[i]];
    return out;
}

KT_INLINE void store_bytes(uint8_t* p, const Bytes& x) {
    store_as(p, x);
}

// 16 bytes as integers
KT_INLINE I32x16 load_u8(const uint8_t* p) {
    I32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = p[i];
    return out;
}

KT_INLINE I32x16 load_s8(const uint8_t* p) {
    I32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = static_cast<int8_t>(p[i]);
    return out;
}

KT_INLINE I32x16 add(const I32x16& a, int32_t b) {
    I32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] + b;
    return out;
}

KT_INLINE I32x16 multiply_add(const I32x16& a, const I32x16& b, const I32x16& c) {
    I32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
    return out;
}

// (a >> Shift) & Mask
template <int Shift, int Mask>
KT_INLINE I32x16 field(const I32x16& a) {
    I32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] >> Shift & Mask;
    return out;
}

// Byte J of each row's four, less `zero`.
template <int J>
KT_INLINE F32x16 byte_value(const Bytes& w, float zero) {
    F32x16 out;
    for (int i = 0; i < 16; ++i) out.lane[i] = static_cast<float>(w.byte[4 * i + J]) - zero;
    return out;
}

}  // namespace
}  // namespace kt
