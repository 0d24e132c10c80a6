// Q6_K (GGUF): super-blocks of 256, sub-blocks of 16, w = d * scale * (q - 32), q in 0..63, scale int8.
// Stored: 2 x 64 bytes of nibbles, 2 x 32 bytes of upper bits, 16 scales, d float16: 210 bytes. Element i of
// group g of a half of 128 has its nibble in byte 32 (g % 2) + i, low for g < 2, and its upper bits at 2g of
// byte i.
#pragma once

#include "super-inl.h"

namespace kt {
namespace {

struct Q6_K : SuperBlock<Q6_K> {
    static constexpr FormatInfo info{"Q6_K", Policy::kInt8, 256, 210, 256, 3360};
    static constexpr size_t kHead = 288;
    static constexpr size_t kSub = 16;
    static constexpr bool kMinimum = false;
    using Planes = SixBits<32>;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block + 208));
        for (size_t j = 0; j < 16; ++j) panel[32 + 16 * j + r] = block[192 + j];
    }

    static KT_INLINE void values(const uint8_t* block, size_t group, uint8_t* q) {
        const size_t half = group / 4, g = group % 4;
        const uint8_t *low = block + 64 * half + 32 * (g % 2), *high = block + 128 + 32 * half;
        for (size_t i = 0; i < kGroup; ++i) {
            const int nibble = low[i] >> (4 * (g / 2)) & 15;
            q[i] = static_cast<uint8_t>(nibble | (high[i] >> (2 * g) & 3) << 4);
        }
    }

    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t*) { return {panel + 32, nullptr}; }

    static KT_INLINE I32x16 sub_scale(const uint8_t* p) { return load_s8(p); }
};

}  // namespace
}  // namespace kt
