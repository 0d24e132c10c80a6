// IQ3_XXS and IQ3_S (GGUF): grids of four magnitudes, eight different ones.
// IQ3_XXS: 64 bytes of indices, then for 32 values 32 bits as in IQ2_XXS. 98 bytes for 256.
// IQ3_S: 64 bytes of indices, 8 of their ninth bits, 32 of signs, 4 of scales (two groups in a byte). 110
// bytes. In the panel the scales are 4 arrays of the head.
#pragma once

#include "grid-inl.h"

namespace kt {
namespace {

constexpr int kMagnitudes3XXS[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int kMagnitudes3S[] = {1, 3, 5, 7, 9, 11, 13, 15};
#ifdef KT_GRID_PERMUTES
constexpr Halves<256> kHalvesIQ3XXS = halves(kGridIQ3XXS);
constexpr Halves<512> kHalvesIQ3S = halves(kGridIQ3S);
constexpr ValueTable<8> kValues3XXS = signed_table<8>(kMagnitudes3XXS);
constexpr ValueTable<8> kValues3S = signed_table<8>(kMagnitudes3S);
#else
constexpr Entries<256> kEntriesIQ3XXS = entries(kGridIQ3XXS, kMagnitudes3XXS);
constexpr Entries<512> kEntriesIQ3S = entries(kGridIQ3S, kMagnitudes3S);
#endif

// Where index i of row r lies in a group: such that, after two halves of each code are put side by side, two
// rows' codes of two indices share 64 bits.
constexpr size_t four_place(size_t i, size_t r) {
    return 64 * (i / 4) + 16 * (r / 4) + 8 * (i / 2 % 2) + 4 * (r / 2 % 2) + 2 * (i % 2) + r % 2;
}

#ifdef KT_GRID_PERMUTES
// Bit i of a row's byte, for the places of indices 4 Half .. 4 Half + 3.
template <int Half>
KT_INLINE __m512i ninth_bits(const uint8_t* bytes) {
    alignas(64) static constexpr auto kPlaces = [] {
        struct {
            uint8_t row[64], bit[64];
        } out{};
        for (size_t i = 0; i < 4; ++i) {
            for (size_t r = 0; r < 16; ++r) {
                out.row[four_place(i, r)] = static_cast<uint8_t>(r);
                out.bit[four_place(i, r)] = static_cast<uint8_t>(1 << (4 * Half + i));
            }
        }
        return out;
    }();
    const __m512i all =
        _mm512_permutexvar_epi8(load_words(kPlaces.row), _mm512_broadcast_i32x4(load_16(bytes)));
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(all, load_words(kPlaces.bit)), _mm512_set1_epi8(1));
}
#endif

struct IQ3_XXS : GridBlock<IQ3_XXS> {
    static constexpr FormatInfo info{"IQ3_XXS", Policy::kInt8, 256, 98, 256, 1568};
    static constexpr size_t kRecord = 12;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.25f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t i = 0; i < 8; ++i) group[four_place(i, r)] = block[2 + 8 * g + i];
        put(group, 8, r, load_as<uint32_t>(block + 66 + 4 * g));
    }

#ifdef KT_GRID_PERMUTES
    static KT_INLINE FourCodes<kValues3XXS, SignWords<3>> decode(const uint8_t*, size_t, const uint8_t* group,
                                                                 uint8_t* scales) {
        return {codes(kHalvesIQ3XXS, load_words(group)), codes(kHalvesIQ3XXS, load_words(group + 64)),
                read_signs_and_scale<3>(group + 128, scales)};
    }
#else
    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[8];
        for (size_t i = 0; i < 8; ++i) {
            for (size_t r = 0; r < 16; ++r) index[i][r] = group[four_place(i, r)];
        }
        read_half_entries(kEntriesIQ3XXS, index, out);
        read_signs_and_scale(group + 128, out);
    }
#endif
};

struct IQ3_S : GridBlock<IQ3_S> {
    static constexpr FormatInfo info{"IQ3_S", Policy::kInt8, 256, 110, 256, 1760};
    static constexpr size_t kHead = 96;
    static constexpr size_t kRecord = 13;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 1;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block));
        for (size_t j = 0; j < 4; ++j) panel[32 + 16 * j + r] = block[106 + j];
    }

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t i = 0; i < 8; ++i) group[four_place(i, r)] = block[2 + 8 * g + i];
        put(group, 8, r, load_as<uint32_t>(block + 74 + 4 * g));
        put(group, 12, r, block[66 + g]);
    }

#ifdef KT_GRID_PERMUTES
    static KT_INLINE FourCodes<kValues3S, SignWords<3>> decode(const uint8_t* panel, size_t g,
                                                               const uint8_t* group, uint8_t* scales) {
        const __m512i first = load_words(group), second = load_words(group + 64);
        const __m128i nibbles = load_16(panel + 32 + 16 * (g / 2));
        put_nibble_scale(_mm_srl_epi16(nibbles, _mm_cvtsi32_si128(static_cast<int>(4 * (g % 2)))), scales);
        return {codes(kHalvesIQ3S, first, upper_bits<1>(first, ninth_bits<0>(group + 192))),
                codes(kHalvesIQ3S, second, upper_bits<1>(second, ninth_bits<1>(group + 192))),
                { load_words(group + 128) }};
    }
#else
    static KT_INLINE void decode(const uint8_t* panel, size_t g, const uint8_t* group, Decoded* out) {
        const uint8_t* scales = panel + 32 + 16 * (g / 2);
        Indices index[8];
        for (size_t i = 0; i < 8; ++i) {
            for (size_t r = 0; r < 16; ++r) {
                index[i][r] = static_cast<uint16_t>(group[four_place(i, r)] | (group[192 + r] >> i & 1) << 8);
            }
        }
        read_half_entries(kEntriesIQ3S, index, out);
        for (size_t v = 0; v < 4; ++v) {
            for (size_t r = 0; r < 16; ++r) out->signs[v][r] = group[128 + 4 * r + v];
        }
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            out->scales[0][r] = static_cast<uint8_t>(2 * (scales[r] >> (4 * (g % 2)) & 15) + 1);
        }
    }
#endif
};

}  // namespace
}  // namespace kt
