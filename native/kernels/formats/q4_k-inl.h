// Q4_K and Q5_K (GGUF): super-blocks of 256, groups of 32, w = d * scale * q - dmin * min with 6-bit scale
// and min. Stored: d, dmin float16, 12 bytes of scales and minimums, for Q5_K 32 bytes whose bit g of byte
// i is the fifth bit of element i of group g, then 4 x 32 bytes of nibbles (groups 2i low, 2i + 1 high).
#pragma once

#include "super-inl.h"

namespace kt {
namespace {

// Scales 0..7, then minimums 0..7. Bytes 0..3 and 4..7 hold numbers 0..3 of each, and above them the upper
// two bits of numbers 4..7, whose nibbles are bytes 8..11 (scale low, minimum high).
KT_INLINE void scales_and_minimums(const uint8_t* packed, uint8_t* numbers) {
    for (size_t j = 0; j < 4; ++j) {
        const uint8_t a = packed[j], b = packed[4 + j], c = packed[8 + j];
        numbers[j] = a & 63;
        numbers[4 + j] = static_cast<uint8_t>((c & 15) | a >> 6 << 4);
        numbers[8 + j] = b & 63;
        numbers[12 + j] = static_cast<uint8_t>(c >> 4 | b >> 6 << 4);
    }
}

template <class F>
struct WithMinimums : SuperBlock<F> {
    static constexpr size_t kHead = 256;
    static constexpr size_t kSub = 32;
    static constexpr bool kMinimum = true;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block));
        store_as(panel + 32 + 2 * r, load_as<uint16_t>(block + 2));
        uint8_t numbers[16];
        scales_and_minimums(block + 4, numbers);
        put_six_bits(panel + 64, r, numbers);
    }

    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t* buffer) {
        six_bits(panel + 64, buffer);
        return {buffer, buffer + 128};
    }
};

struct Q4_K : WithMinimums<Q4_K> {
    static constexpr FormatInfo info{"Q4_K", Policy::kInt8, 256, 144, 256, 2304};
    using Planes = Nibbles<0>;

    static KT_INLINE void values(const uint8_t* block, size_t group, uint8_t* q) {
        const uint8_t* bytes = block + 16 + 32 * (group / 2);
        for (size_t i = 0; i < kGroup; ++i) q[i] = bytes[i] >> (4 * (group % 2)) & 15;
    }
};

struct Q5_K : WithMinimums<Q5_K> {
    static constexpr FormatInfo info{"Q5_K", Policy::kInt8, 256, 176, 256, 2816};
    using Planes = FiveBits<0>;

    static KT_INLINE void values(const uint8_t* block, size_t group, uint8_t* q) {
        const uint8_t *fifth = block + 16, *bytes = block + 48 + 32 * (group / 2);
        for (size_t i = 0; i < kGroup; ++i) {
            const int low = bytes[i] >> (4 * (group % 2)) & 15;
            q[i] = static_cast<uint8_t>(low | (fifth[i] >> group & 1) << 4);
        }
    }
};

}  // namespace
}  // namespace kt
