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
    static constexpr int kAskFrom = 2;
    using Planes = SixBits<32>;

    static KT_INLINE void put_heads(const uint8_t* const* rows, size_t at, uint8_t* panel) {
        for (size_t r = 0; r < kPanelRows; ++r) {
            store_as(panel + 2 * r, load_as<uint16_t>(rows[r] + at + 208));
        }
        Bytes scales[4];
        load_columns(rows, at + 192, scales);
        KT_UNROLL for (int i = 0; i < 4; ++i) store_bytes(panel + 32 + 64 * i, by_byte(scales[i]));
    }

    // Group G of a half: low or high nibbles, with the upper bits that belong to them.
    template <int G>
    static KT_INLINE void put_group(const Bytes* nibbles, const Bytes* high, uint8_t* q) {
        Bytes v[8];
        KT_UNROLL for (int i = 0; i < 8; ++i) {
            const Bytes low = G < 2 ? low_nibbles(nibbles[i]) : high_nibbles(nibbles[i]);
            v[i] = with_bits<0x30, 4 - 2 * G>(low, high[i]);
        }
        Planes::put(q + G * Planes::kBytes, v);
    }

    static KT_INLINE void put_values(const uint8_t* const* rows, size_t at, uint8_t* q) {
        for (size_t half = 0; half < 2; ++half, q += 4 * Planes::kBytes) {
            Bytes even[8], odd[8], high[8];
            load_eight_columns(rows, at + 64 * half, even);
            load_eight_columns(rows, at + 64 * half + 32, odd);
            load_eight_columns(rows, at + 128 + 32 * half, high);
            put_group<0>(even, high, q);
            put_group<1>(odd, high, q);
            put_group<2>(even, high, q);
            put_group<3>(odd, high, q);
        }
    }

    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t*) { return {panel + 32, nullptr}; }

    static KT_INLINE I32x16 sub_scale(const uint8_t* p) { return load_s8(p); }
};

}  // namespace
}  // namespace kt
