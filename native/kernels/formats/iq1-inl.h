// IQ1_S and IQ1_M (GGUF): a grid of eight values -1, 0, 1, all moved by 1/8 or -1/8; q is 8 times that.
// IQ1_S: 32 bytes of indices, then for 32 values 16 bits: 4 x 3 upper bits of the indices, a scale, the
//   move's sign. 50 bytes for 256.
// IQ1_M: 32 bytes of indices, 16 of nibbles (three upper bits and the move's sign for 8 values), 4 words of
//   four 3-bit scales (of 16 values) with d, a float16, in their upper nibbles. 56 bytes. In the panel d is
//   put together, and the head has an array for each group with both of its scales in a byte (4 % more).
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

// Finds the codes of a super-block before its groups. F brings kIndexBits, the distance of the three upper
// bits of a row's indices in its 16 bits after the indices.
template <class F>
struct MovedBlock : GridBlock<F> {
#ifdef KT_GRID_PERMUTES
    static constexpr size_t kBuffer = 128 * kGroups;

    static KT_INLINE Subs subs(const uint8_t* panel, uint8_t* buffer) {
        constexpr size_t kAtOnce = 4;
        for (size_t g = 0; g < kGroups; g += kAtOnce) {
            __m512i index[kAtOnce], upper[kAtOnce];
            KT_UNROLL for (size_t i = 0; i < kAtOnce; ++i) {
                const uint8_t* const group = panel + F::kHead + (g + i) * kPanelRows * F::kRecord;
                index[i] = load_words(group);
                upper[i] = upper_bits<7>(index[i], row_bits(widen_16(group + 64), 0, F::kIndexBits));
            }
            put_codes<kAtOnce>(kHalvesIQ1S, index, upper, buffer + 128 * g);
        }
        return {buffer, nullptr};
    }

    static KT_INLINE auto group(const uint8_t* panel, const Subs& subs, size_t g, uint8_t* scratch) {
        const __m512i high = widen_16(panel + F::kHead + g * kPanelRows * F::kRecord + 64);
        const uint8_t* const at = subs.scales + 128 * g;
        F::put_scales(panel, g, high, scratch);
        using Source = EightCodes<kValues1, decltype(F::down(high))>;
        return Group<Source>{Source{{load_words(at), load_words(at + 64)}, F::down(high)}, scratch};
    }
#endif
};

struct IQ1_S : MovedBlock<IQ1_S> {
    static constexpr FormatInfo info{"IQ1_S", Policy::kInt8, 256, 50, 256, 800};
    static constexpr size_t kRecord = 6;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        put(group, 0, r, load_as<uint32_t>(block + 2 + 4 * g));
        put(group, 4, r, load_as<uint16_t>(block + 34 + 2 * g));
    }

#ifdef KT_GRID_PERMUTES
    static constexpr int kIndexBits = 3;

    static KT_INLINE OneSign down(__m512i high) { return {row_bits(high, 15 - 2, 0)}; }

    static KT_INLINE void put_scales(const uint8_t*, size_t, __m512i high, uint8_t* scales) {
        put_scale(_mm512_and_si512(_mm512_srli_epi32(high, 12), _mm512_set1_epi32(7)), scales);
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

struct IQ1_M : MovedBlock<IQ1_M> {
    static constexpr FormatInfo info{"IQ1_M", Policy::kInt8, 256, 56, 256, 928};
    static constexpr size_t kHead = 160;
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
        for (size_t g = 0; g < kGroups; ++g)
            panel[32 + 16 * g + r] = static_cast<uint8_t>(scales >> (6 * g) & 63);
    }

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        put(group, 0, r, load_as<uint32_t>(block + 4 * g));
        put(group, 4, r, load_as<uint16_t>(block + 32 + 2 * g));
    }

#ifdef KT_GRID_PERMUTES
    static constexpr int kIndexBits = 4;

    static KT_INLINE SignOfEights down(__m512i high) { return {high}; }

    static KT_INLINE void put_scales(const uint8_t* panel, size_t g, __m512i, uint8_t* scales) {
        read_scales(panel, g, scales, scales + 16);
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

    // Two scales of three bits a byte.
    static KT_INLINE void read_scales(const uint8_t* panel, size_t g, uint8_t* first, uint8_t* second) {
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            const uint8_t both = panel[32 + 16 * g + r];
            first[r] = static_cast<uint8_t>((both << 1 & 14) | 1);
            second[r] = static_cast<uint8_t>((both >> 2 & 14) | 1);
        }
    }
};

}  // namespace
}  // namespace kt
