// Q4_K and Q5_K (GGUF): super-blocks of 256, groups of 32, w = d * scale * q - dmin * min with 6-bit scale
// and min. Stored: d, dmin float16, 12 bytes of scales and minimums, for Q5_K 32 bytes whose bit g of byte
// i is the fifth bit of element i of group g, then 4 x 32 bytes of nibbles (groups 2i low, 2i + 1 high).
#pragma once

#include "super-inl.h"

namespace kt {
namespace {

template <class F>
struct WithMinimums : SuperBlock<F> {
    static constexpr size_t kHead = 256;
    static constexpr size_t kSub = 32;
    static constexpr bool kMinimum = true;

    static KT_INLINE void put_heads(const uint8_t* const* rows, size_t at, uint8_t* panel) {
        for (size_t r = 0; r < kPanelRows; ++r) {
            store_as(panel + 2 * r, load_as<uint16_t>(rows[r] + at));
            store_as(panel + 32 + 2 * r, load_as<uint16_t>(rows[r] + at + 2));
        }
        // Bytes 0..3 (a) and 4..7 (b) hold scales and minimums 0..3, and above them the upper two bits of
        // numbers 4..7, whose nibbles are bytes 8..11 (c; scale low, minimum high).
        Bytes head[4];
        load_columns(rows, at, head);
        const Bytes a = by_byte(head[1]), b = by_byte(head[2]), c = by_byte(head[3]);
        put_six_bits(panel + 64, bits<0x3f, 0>(a), with_bits<0x30, -2>(low_nibbles(c), a), bits<0x3f, 0>(b),
                     with_bits<0x30, -2>(high_nibbles(c), b));
    }

    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t* buffer) {
        six_bits(panel + 64, buffer);
        return {buffer, buffer + 128};
    }
};

struct Q4_K : WithMinimums<Q4_K> {
    static constexpr FormatInfo info{"Q4_K", Policy::kInt8, 256, 144, 256, 2304};
    using Planes = Nibbles<0>;

    static KT_INLINE void put_values(const uint8_t* const* rows, size_t at, uint8_t* q) {
        for (size_t g = 0; g < kGroups; g += 2, q += 2 * Planes::kBytes) {
            Bytes both[8], v[8];
            load_eight_columns(rows, at + 16 + 16 * g, both);
            KT_UNROLL for (int i = 0; i < 8; ++i) v[i] = low_nibbles(both[i]);
            Planes::put(q, v);
            KT_UNROLL for (int i = 0; i < 8; ++i) v[i] = high_nibbles(both[i]);
            Planes::put(q + Planes::kBytes, v);
        }
    }
};

struct Q5_K : WithMinimums<Q5_K> {
    static constexpr FormatInfo info{"Q5_K", Policy::kInt8, 256, 176, 256, 2816};
    using Planes = FiveBits<0>;

    template <int G = 0>
    static KT_INLINE void put_values(const uint8_t* const* rows, size_t at, uint8_t* q) {
        Bytes fifth[8], both[8], v[8];
        load_eight_columns(rows, at + 16, fifth);
        load_eight_columns(rows, at + 48 + 16 * G, both);
        KT_UNROLL for (int i = 0; i < 8; ++i) v[i] = with_bits<0x10, 4 - G>(low_nibbles(both[i]), fifth[i]);
        Planes::put(q, v);
        KT_UNROLL for (int i = 0; i < 8; ++i) v[i] = with_bits<0x10, 3 - G>(high_nibbles(both[i]), fifth[i]);
        Planes::put(q + Planes::kBytes, v);
        if constexpr (G < 6) put_values<G + 2>(rows, at, q + 2 * Planes::kBytes);
    }
};

}  // namespace
}  // namespace kt
