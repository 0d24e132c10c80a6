// IQ4_NL and IQ4_XS (GGUF): nibbles choose from a table of 16 uneven steps t.
// IQ4_NL: groups of 32, w = d * t. Stored: d float16, 16 bytes of nibbles.
// IQ4_XS: super-blocks of 256, w = d * (l - 32) * t, l a 6-bit scale of 32 values. Stored: d float16, the
// upper two bits of the eight l (16 bits, group 0 lowest), their lower nibbles (4 bytes), 8 x 16 bytes.
// IQ4_K: super-blocks of 256 with sub-blocks of 16, w = d * (l - 32) * (t + 4 b), b a bit of each that
// chooses the second table. Stored: d float16, the 16 bits b, the upper two bits of the l (4 bytes), their
// lower nibbles (8 bytes), 8 x 16 bytes. Its panel has minus d too, the l as super-inl.h has 6-bit numbers,
// and the bits. In the panel of IQ4_XS the scales are 4 arrays of nibbles (groups j and j + 4 in a byte) and
// 2 arrays of upper bits (groups j, j + 2, j + 4, j + 6).
#pragma once

#include "grouped-inl.h"
#include "super-inl.h"

namespace kt {
namespace {

struct IQ4_NL : Grouped<IQ4_NL> {
    static constexpr FormatInfo info{"IQ4_NL", Policy::kInt8, 32, 18, 32, 288};
    static constexpr size_t kHead = 32;
    static constexpr bool kMinimum = false;
    using Planes = UnevenNibbles;

    static KT_INLINE void columns(const uint8_t* const* rows, size_t at, Bytes* v) {
        load_split_nibbles(rows, at + 2, v);
    }
};

struct IQ4_XS : SuperBlock<IQ4_XS> {
    static constexpr FormatInfo info{"IQ4_XS", Policy::kInt8, 256, 136, 256, 2176};
    static constexpr size_t kHead = 128;
    static constexpr size_t kSub = 32;
    static constexpr bool kMinimum = false;
    using Planes = UnevenNibbles;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block));
        const uint32_t high = load_as<uint16_t>(block + 2);
        for (size_t j = 0; j < 4; ++j) {  // stored: groups 2i and 2i + 1 in a byte
            const int first = block[4 + j / 2] >> (4 * (j % 2)) & 15;
            const int fourth = block[6 + j / 2] >> (4 * (j % 2)) & 15;
            panel[32 + 16 * j + r] = static_cast<uint8_t>(first | fourth << 4);
        }
        for (size_t j = 0; j < 2; ++j) {
            uint32_t all = 0;
            for (size_t i = 0; i < 4; ++i) all |= (high >> (2 * (j + 2 * i)) & 3) << (2 * i);
            panel[96 + 16 * j + r] = static_cast<uint8_t>(all);
        }
    }

    static KT_INLINE void put_values(const uint8_t* const* rows, size_t at, uint8_t* q) {
        for (size_t g = 0; g < kGroups; ++g, q += Planes::kBytes) {
            Bytes v[8];
            load_split_nibbles(rows, at + 8 + 16 * g, v);
            Planes::put(q, v);
        }
    }

    // The scales of 8 groups, one byte each.
    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t* buffer) {
        const Bytes low = load_bytes(panel + 32);
        const Bytes high = load_bytes(panel + 96);  // 32 bytes; what follows is overwritten
        store_bytes(buffer, high);
        store_bytes(buffer + 32, bits<0x3f, -2>(high));
        const Bytes both = load_bytes(buffer);
        store_bytes(buffer, with_bits<0x30, 4>(low_nibbles(low), both));
        store_bytes(buffer + 64, with_bits<0x30, 0>(high_nibbles(low), both));
        return {buffer, nullptr};
    }

    static KT_INLINE I32x16 sub_scale(const uint8_t* p) { return add(load_u8(p), -32); }
};

struct IQ4_K : SuperBlock<IQ4_K> {
    static constexpr FormatInfo info{"IQ4_K", Policy::kInt8, 256, 144, 256, 2336};
    static constexpr size_t kHead = 288;
    static constexpr size_t kSub = 16;
    static constexpr bool kMinimum = true;
    using Planes = UnevenNibbles;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        const uint16_t d = load_as<uint16_t>(block);
        store_as(panel + 2 * r, d);
        store_as(panel + 32 + 2 * r, static_cast<uint16_t>(d ^ 0x8000));
        uint8_t numbers[16];
        for (size_t g = 0; g < kGroups; ++g) {
            const int low = block[8 + g], high = block[4 + g / 2] >> (4 * (g % 2));
            numbers[2 * g] = static_cast<uint8_t>((low & 15) | (high & 3) << 4);
            numbers[2 * g + 1] = static_cast<uint8_t>(low >> 4 | (high & 12) << 2);
        }
        put_six_bits(panel + 64, r, numbers);
        panel[256 + r] = block[2];
        panel[272 + r] = block[3];
    }

    static KT_INLINE void put_values(const uint8_t* const* rows, size_t at, uint8_t* q) {
        for (size_t g = 0; g < kGroups; ++g, q += Planes::kBytes) {
            Bytes v[8];
            load_split_nibbles(rows, at + 16 + 16 * g, v);
            Planes::put(q, v);
        }
    }

    // What the second table has more is a minimum of -4 (l - 32), with minus d as its factor.
    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t* buffer) {
        six_bits(panel + 64, buffer);
        for (size_t j = 0; j < 16; ++j) {
            const uint8_t* const second = panel + 256 + 16 * (j / 8);
            for (size_t r = 0; r < kPanelRows; ++r) {
                const int moved = second[r] >> (j % 8) & 1 ? 4 * (buffer[16 * j + r] - 32) : 0;
                buffer[kSuper + 16 * j + r] = static_cast<uint8_t>(moved);
            }
        }
        return {buffer, buffer + kSuper};
    }

    static KT_INLINE I32x16 sub_scale(const uint8_t* p) { return add(load_u8(p), -32); }
    static KT_INLINE I32x16 sub_minimum(const uint8_t* p) { return load_s8(p); }
};

}  // namespace
}  // namespace kt
