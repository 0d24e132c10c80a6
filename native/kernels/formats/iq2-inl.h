// IQ2_XXS, IQ2_XS and IQ2_S (GGUF): grids of eight magnitudes of 8, 25 and 43.
// IQ2_XXS: for 32 values 4 bytes of indices and 32 bits: 4 x 7 signs (the eighth makes their number even)
//   and a scale. 66 bytes for 256.
// IQ2_XS: 16 bits for 8 values: 9 of index, 7 of signs; 8 bytes of scales of 16 values. 74 bytes.
// IQ2_S: 32 bytes of indices, 32 of signs, 8 of the indices' upper two bits, 8 of scales. 82 bytes.
#pragma once

#include "grid-inl.h"

namespace kt {
namespace {

constexpr int kMagnitudes2[] = {8, 25, 43};
#ifdef KT_GRID_PERMUTES
constexpr Halves<256> kHalvesIQ2XXS = halves(kGridIQ2XXS);
constexpr Halves<512> kHalvesIQ2XS = halves(kGridIQ2XS);
constexpr Halves<1024> kHalvesIQ2S = halves(kGridIQ2S);
constexpr ValueTable<4> kValues2 = signed_table<4>(kMagnitudes2);
#else
constexpr Entries<256> kEntriesIQ2XXS = entries(kGridIQ2XXS, kMagnitudes2);
constexpr Entries<512> kEntriesIQ2XS = entries(kGridIQ2XS, kMagnitudes2);
constexpr Entries<1024> kEntriesIQ2S = entries(kGridIQ2S, kMagnitudes2);
#endif

struct IQ2_XXS : GridBlock<IQ2_XXS> {
    static constexpr FormatInfo info{"IQ2_XXS", Policy::kInt8, 256, 66, 256, 1056};
    static constexpr size_t kRecord = 8;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        put(group, 0, r, load_as<uint32_t>(block + 2 + 8 * g));
        put(group, 4, r, load_as<uint32_t>(block + 6 + 8 * g));
    }

#ifdef KT_GRID_PERMUTES
    static KT_INLINE EightCodes<kValues2, SignWords<2>> decode(const uint8_t*, size_t, const uint8_t* group,
                                                               uint8_t* scales) {
        return {codes(kHalvesIQ2XXS, load_words(group)), read_signs_and_scale<2>(group + 64, scales)};
    }
#else
    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        read_indices(group, index);
        read_entries(kEntriesIQ2XXS, index, out);
        read_signs_and_scale(group + 64, out);
    }
#endif
};

struct IQ2_XS : GridBlock<IQ2_XS> {
    static constexpr FormatInfo info{"IQ2_XS", Policy::kInt8, 256, 74, 256, 1184};
    static constexpr size_t kRecord = 9;
    static constexpr size_t kSub = 16;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t v = 0; v < 4; ++v) {
            const uint8_t* word = block + 2 + 8 * g + 2 * v;
            group[4 * r + v] = word[0];
            group[64 + 4 * r + v] = word[1];
        }
        put(group, 8, r, block[66 + g]);
    }

#ifdef KT_GRID_PERMUTES
    static KT_INLINE EightCodes<kValues2, SignWords<2>> decode(const uint8_t*, size_t, const uint8_t* group,
                                                               uint8_t* scales) {
        const __m512i index = load_words(group), above = load_words(group + 64);
        read_two_scales(group + 128, scales);
        return {codes(kHalvesIQ2XS, index, upper_bits<1>(index, above)),
                { even_signs(_mm512_srli_epi16(above, 1)) }};
    }
#else
    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                const uint8_t above = group[64 + 4 * r + v];
                index[v][r] = static_cast<uint16_t>(group[4 * r + v] | (above & 1) << 8);
                out->signs[v][r] = even_signs(above >> 1);
            }
        }
        read_entries(kEntriesIQ2XS, index, out);
        read_two_scales(group + 128, out);
    }
#endif
};

struct IQ2_S : GridBlock<IQ2_S> {
    static constexpr FormatInfo info{"IQ2_S", Policy::kInt8, 256, 82, 256, 1312};
    static constexpr size_t kRecord = 10;
    static constexpr size_t kSub = 16;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        put(group, 0, r, load_as<uint32_t>(block + 2 + 4 * g));
        put(group, 4, r, load_as<uint32_t>(block + 34 + 4 * g));
        put(group, 8, r, block[66 + g]);
        put(group, 9, r, block[74 + g]);
    }

#ifdef KT_GRID_PERMUTES
    static KT_INLINE EightCodes<kValues2, SignWords<2>> decode(const uint8_t*, size_t, const uint8_t* group,
                                                               uint8_t* scales) {
        const __m512i index = load_words(group), above = row_bits(widen(group + 128), 0, 2);
        read_two_scales(group + 144, scales);
        return {codes(kHalvesIQ2S, index, upper_bits<3>(index, above)), { load_words(group + 64) }};
    }
#else
    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                index[v][r] = static_cast<uint16_t>(group[4 * r + v] | (group[128 + r] >> (2 * v) & 3) << 8);
                out->signs[v][r] = group[64 + 4 * r + v];
            }
        }
        read_entries(kEntriesIQ2S, index, out);
        read_two_scales(group + 144, out);
    }
#endif
};

}  // namespace
}  // namespace kt
