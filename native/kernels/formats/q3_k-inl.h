// Q3_K (GGUF): super-blocks of 256, sub-blocks of 16, w = d * (scale - 32) * (q - 4), q in 0..7, 6-bit scale.
// Stored: 32 bytes whose bit g of byte i is the third bit of element i of group g, 64 bytes of lower bits
// (element i of group g: bits 2 (g % 4) of byte 32 (g / 4) + i), 12 bytes of scales, d float16: 110 bytes.
#pragma once

#include "super-inl.h"

namespace kt {
namespace {

KT_INLINE uint8_t two_bits_of(const uint8_t* bytes, size_t group, size_t i) {
    return bytes[32 * (group / 4) + i] >> (2 * (group % 4)) & 3;
}

struct Q3_K : SuperBlock<Q3_K> {
    static constexpr FormatInfo info{"Q3_K", Policy::kInt8, 256, 110, 256, 1760};
    static constexpr size_t kHead = 224;
    static constexpr size_t kSub = 16;
    static constexpr bool kMinimum = false;
    using Planes = ThreeBits<4>;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block + 108));
        const uint8_t* packed =
            block + 96;  // nibbles of j and j + 8 in byte j < 8, upper bits of j % 4 in 8..11
        uint8_t numbers[16];
        for (size_t j = 0; j < 16; ++j) {
            const int low = packed[j % 8] >> (4 * (j / 8)) & 15;
            numbers[j] = static_cast<uint8_t>(low | (packed[8 + j % 4] >> (2 * (j / 4)) & 3) << 4);
        }
        put_six_bits(panel + 32, r, numbers);
    }

    static KT_INLINE void values(const uint8_t* block, size_t group, uint8_t* q) {
        for (size_t i = 0; i < kGroup; ++i) {
            q[i] = static_cast<uint8_t>(two_bits_of(block + 32, group, i) | (block[i] >> group & 1) << 2);
        }
    }

    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t* buffer) {
        six_bits(panel + 32, buffer);
        return {buffer, nullptr};
    }

    static KT_INLINE I32x16 sub_scale(const uint8_t* p) { return add(load_u8(p), -32); }
};

}  // namespace
}  // namespace kt
