// IQ1_S and IQ1_M (GGUF): a grid of eight values -1, 0, 1, all moved by 1/8 or -1/8; q is 8 times that.
// IQ1_S: 32 bytes of indices, then for 32 values 16 bits: 4 x 3 upper bits of the indices, a scale, the
//   move's sign. 50 bytes for 256.
// IQ1_M: 32 bytes of indices, 16 of nibbles (three upper bits and the move's sign for 8 values), 4 words of
//   four 3-bit scales (of 16 values) with d, a float16, in their upper nibbles. 56 bytes. In the panel d is
//   put together, and 6 bytes of a row's head hold its scales, lowest first.
#pragma once

#include "grid-inl.h"

namespace kt {
namespace {

constexpr Entries<2048> kEntriesIQ1S = entries(kGridIQ1S, {-7, 1, 9});  // moved up

// down is 1 where an eight is moved down.
KT_INLINE void read_moved(const Indices* index, const uint8_t (*down)[16], Decoded* out) {
    constexpr uint64_t kOnes = 0x0101010101010101u;
    for (size_t v = 0; v < 4; ++v) {
        for (size_t r = 0; r < 16; ++r) {
            out->values[v][r] = kEntriesIQ1S.entry[index[v][r]] - (2 * kOnes & -uint64_t{down[v][r]});
        }
    }
    __builtin_memset(out->signs, 0, sizeof out->signs);
}

struct IQ1_S : GridBlock<IQ1_S> {
    static constexpr FormatInfo info{"IQ1_S", Policy::kInt8, 256, 50, 256, 800};
    static constexpr size_t kRecord = 6;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t v = 0; v < 4; ++v) put(group, v, r, block[2 + 4 * g + v]);
        put(group, 4, r, load_as<uint16_t>(block + 34 + 2 * g));
    }

    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        uint8_t down[4][16];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                const uint32_t high = load_as<uint16_t>(group + 64 + 2 * r);
                index[v][r] = static_cast<uint16_t>(group[16 * v + r] | (high >> (3 * v) & 7) << 8);
                down[v][r] = static_cast<uint8_t>(high >> 15);
            }
        }
        read_moved(index, down, out);
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            const uint32_t high = load_as<uint16_t>(group + 64 + 2 * r);
            out->scales[0][r] = static_cast<uint8_t>(2 * (high >> 12 & 7) + 1);
        }
    }
};

struct IQ1_M : GridBlock<IQ1_M> {
    static constexpr FormatInfo info{"IQ1_M", Policy::kInt8, 256, 56, 256, 896};
    static constexpr size_t kHead = 128;
    static constexpr size_t kRecord = 6;
    static constexpr size_t kSub = 16;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        uint64_t d = 0, scales = 0;
        for (size_t i = 0; i < 4; ++i) {
            const uint64_t word = load_as<uint16_t>(block + 48 + 2 * i);
            d |= word >> 12 << (4 * i);
            scales |= (word & 0xfff) << (12 * i);
        }
        store_as(panel + 2 * r, static_cast<uint16_t>(d));
        __builtin_memcpy(panel + 32 + 6 * r, &scales, 6);
    }

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t v = 0; v < 4; ++v) put(group, v, r, block[4 * g + v]);
        put(group, 4, r, load_as<uint16_t>(block + 32 + 2 * g));
    }

    static KT_INLINE void decode(const uint8_t* panel, size_t g, const uint8_t* group, Decoded* out) {
        Indices index[4];
        uint8_t down[4][16];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                const uint32_t high = load_as<uint16_t>(group + 64 + 2 * r) >> (4 * v);
                index[v][r] = static_cast<uint16_t>(group[16 * v + r] | (high & 7) << 8);
                down[v][r] = high >> 3 & 1;
            }
        }
        read_moved(index, down, out);
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            // six bits of each group; the second byte read after the last row's scales is a group's
            const uint32_t scales = load_as<uint16_t>(panel + 32 + 6 * r + 6 * g / 8) >> (6 * g % 8);
            out->scales[0][r] = static_cast<uint8_t>(2 * (scales & 7) + 1);
            out->scales[1][r] = static_cast<uint8_t>(2 * (scales >> 3 & 7) + 1);
        }
    }
};

}  // namespace
}  // namespace kt
