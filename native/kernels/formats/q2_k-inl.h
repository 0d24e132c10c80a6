// Q2_K (GGUF): super-blocks of 256, sub-blocks of 16, w = d * scale * q - dmin * min, q in 0..3, 4-bit scale
// and min. Stored: 16 bytes (scale low, min high), 64 bytes of values as Q3_K's lower bits, d, dmin float16.
#pragma once

#include "q3_k-inl.h"

namespace kt {
namespace {

struct Q2_K : SuperBlock<Q2_K> {
    static constexpr FormatInfo info{"Q2_K", Policy::kInt8, 256, 84, 256, 1344};
    static constexpr size_t kHead = 320;
    static constexpr size_t kSub = 16;
    static constexpr bool kMinimum = true;
    using Planes = TwoBits;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block + 80));
        store_as(panel + 32 + 2 * r, load_as<uint16_t>(block + 82));
        for (size_t j = 0; j < 16; ++j) panel[64 + 16 * j + r] = block[j];
    }

    static KT_INLINE void values(const uint8_t* block, size_t group, uint8_t* q) {
        for (size_t i = 0; i < kGroup; ++i) q[i] = two_bits_of(block + 16, group, i);
    }

    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t* buffer) {
        for (size_t i = 0; i < kSuper; i += 64) {
            const Bytes both = load_bytes(panel + 64 + i);
            store_bytes(buffer + i, low_nibbles(both));
            store_bytes(buffer + kSuper + i, high_nibbles(both));
        }
        return {buffer, buffer + kSuper};
    }
};

}  // namespace
}  // namespace kt
