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

constexpr int kMovedUp[] = {-7, 1, 9};
#ifdef KT_GRID_PERMUTES
constexpr int kMovedDown[] = {-9, -1, 7};
constexpr Halves<2048> kHalvesIQ1S = halves(kGridIQ1S);
constexpr ValueTable<4> kValues1 = value_table<4>(kMovedUp, kMovedDown);

// Whether values are moved down: one bit for a group, or for each eight above the three bits of its index.
struct OneSign {
    __m512i all;
    KT_INLINE __m512i operator()(int) const { return all; }
};
struct SignOfEights {
    __m512i words;
    KT_INLINE __m512i operator()(int first) const { return row_bits(words, first / 8 * 4 + 3 - 2, 0); }
};
#else
constexpr Entries<2048> kEntriesIQ1S = entries(kGridIQ1S, kMovedUp);

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
#endif

struct IQ1_S : GridBlock<IQ1_S> {
    static constexpr FormatInfo info{"IQ1_S", Policy::kInt8, 256, 50, 256, 800};
    static constexpr size_t kRecord = 6;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        put(group, 0, r, load_as<uint32_t>(block + 2 + 4 * g));
        put(group, 4, r, load_as<uint16_t>(block + 34 + 2 * g));
    }

#ifdef KT_GRID_PERMUTES
    static KT_INLINE EightCodes<OneSign> decode(const uint8_t*, size_t, const uint8_t* group,
                                                uint8_t* scales) {
        const __m512i index = load_words(group), high = widen_16(group + 64);
        put_scale(_mm512_and_si512(_mm512_srli_epi32(high, 12), _mm512_set1_epi32(7)), scales);
        return {kValues1,
                codes(kHalvesIQ1S, index, upper_bits<7>(index, row_bits(high, 0, 3))),
                { row_bits(high, 15 - 2, 0) }};
    }
#else
    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        uint8_t down[4][16];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                const uint32_t high = load_as<uint16_t>(group + 64 + 2 * r);
                index[v][r] = static_cast<uint16_t>(group[4 * r + v] | (high >> (3 * v) & 7) << 8);
                down[v][r] = static_cast<uint8_t>(high >> 15);
            }
        }
        read_moved(index, down, out);
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            const uint32_t high = load_as<uint16_t>(group + 64 + 2 * r);
            out->scales[0][r] = static_cast<uint8_t>(2 * (high >> 12 & 7) + 1);
        }
    }
#endif
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
        put(group, 0, r, load_as<uint32_t>(block + 4 * g));
        put(group, 4, r, load_as<uint16_t>(block + 32 + 2 * g));
    }

#ifdef KT_GRID_PERMUTES
    static KT_INLINE EightCodes<SignOfEights> decode(const uint8_t* panel, size_t g, const uint8_t* group,
                                                     uint8_t* scales) {
        const __m512i index = load_words(group), high = widen_16(group + 64);
        read_scales(panel, g, scales, scales + 16);
        return {kValues1, codes(kHalvesIQ1S, index, upper_bits<7>(index, row_bits(high, 0, 4))), { high }};
    }
#else
    static KT_INLINE void decode(const uint8_t* panel, size_t g, const uint8_t* group, Decoded* out) {
        Indices index[4];
        uint8_t down[4][16];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                const uint32_t high = load_as<uint16_t>(group + 64 + 2 * r) >> (4 * v);
                index[v][r] = static_cast<uint16_t>(group[4 * r + v] | (high & 7) << 8);
                down[v][r] = high >> 3 & 1;
            }
        }
        read_moved(index, down, out);
        read_scales(panel, g, out->scales[0], out->scales[1]);
    }
#endif

    static KT_INLINE void read_scales(const uint8_t* panel, size_t g, uint8_t* first, uint8_t* second) {
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            // six bits of each group; the second byte read after the last row's scales is a group's
            const uint32_t scales = load_as<uint16_t>(panel + 32 + 6 * r + 6 * g / 8) >> (6 * g % 8);
            first[r] = static_cast<uint8_t>(2 * (scales & 7) + 1);
            second[r] = static_cast<uint8_t>(2 * (scales >> 3 & 7) + 1);
        }
    }
};

}  // namespace
}  // namespace kt
