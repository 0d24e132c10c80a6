// Q5_0 and Q5_1 (GGUF): groups of 32, w = d * (q - 16) and w = d * q + m, q in 0..31.
// Stored: float16 d (and m), 4 bytes with the fifth bits, lowest element first, 16 bytes of nibbles.
#pragma once

#include "grouped-inl.h"

namespace kt {
namespace {

KT_INLINE void five_bit_values(const uint8_t* fifth, uint8_t* q) {
    const uint32_t high = load_as<uint32_t>(fifth);
    split_nibbles(fifth + 4, 16, q);
    for (size_t i = 0; i < kGroup; ++i) q[i] = static_cast<uint8_t>(q[i] | (high >> i & 1) << 4);
}

struct Q5_0 : Grouped<Q5_0> {
    static constexpr FormatInfo info{"Q5_0", Policy::kInt8, 32, 22, 32, 352};
    static constexpr size_t kHead = 32;
    static constexpr bool kMinimum = false;
    using Planes = FiveBits<16>;

    static KT_INLINE void values(const uint8_t* block, uint8_t* q) { five_bit_values(block + 2, q); }
};

struct Q5_1 : Grouped<Q5_1> {
    static constexpr FormatInfo info{"Q5_1", Policy::kInt8, 32, 24, 32, 384};
    static constexpr size_t kHead = 64;
    static constexpr bool kMinimum = true;
    using Planes = FiveBits<0>;

    static KT_INLINE void values(const uint8_t* block, uint8_t* q) { five_bit_values(block + 4, q); }
};

}  // namespace
}  // namespace kt
