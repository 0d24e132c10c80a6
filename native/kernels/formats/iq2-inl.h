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
constexpr Entries<256> kEntriesIQ2XXS = entries(kGridIQ2XXS, kMagnitudes2);
constexpr Entries<512> kEntriesIQ2XS = entries(kGridIQ2XS, kMagnitudes2);
constexpr Entries<1024> kEntriesIQ2S = entries(kGridIQ2S, kMagnitudes2);

struct IQ2_XXS : GridBlock<IQ2_XXS> {
    static constexpr FormatInfo info{"IQ2_XXS", Policy::kInt8, 256, 66, 256, 1056};
    static constexpr size_t kRecord = 8;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t v = 0; v < 4; ++v) put(group, v, r, block[2 + 8 * g + v]);
        put(group, 4, r, load_as<uint32_t>(block + 6 + 8 * g));
    }

    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        read_indices(group, 4, index);
        read_entries(kEntriesIQ2XXS, index, out);
        read_signs_and_scale(group + 64, out);
    }
};

struct IQ2_XS : GridBlock<IQ2_XS> {
    static constexpr FormatInfo info{"IQ2_XS", Policy::kInt8, 256, 74, 256, 1184};
    static constexpr size_t kRecord = 9;
    static constexpr size_t kSub = 16;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t v = 0; v < 4; ++v) put(group, 2 * v, r, load_as<uint16_t>(block + 2 + 8 * g + 2 * v));
        put(group, 8, r, block[66 + g]);
    }

    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                const uint32_t both = load_as<uint16_t>(group + 32 * v + 2 * r);
                index[v][r] = both & 511;
                out->signs[v][r] = even_signs(both >> 9);
            }
        }
        read_entries(kEntriesIQ2XS, index, out);
        read_two_scales(group + 128, out);
    }
};

struct IQ2_S : GridBlock<IQ2_S> {
    static constexpr FormatInfo info{"IQ2_S", Policy::kInt8, 256, 82, 256, 1312};
    static constexpr size_t kRecord = 10;
    static constexpr size_t kSub = 16;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t v = 0; v < 4; ++v) {
            put(group, v, r, block[2 + 4 * g + v]);
            put(group, 4 + v, r, block[34 + 4 * g + v]);
        }
        put(group, 8, r, block[66 + g]);
        put(group, 9, r, block[74 + g]);
    }

    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[4];
        for (size_t v = 0; v < 4; ++v) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                index[v][r] = static_cast<uint16_t>(group[16 * v + r] | (group[128 + r] >> (2 * v) & 3) << 8);
            }
        }
        read_entries(kEntriesIQ2S, index, out);
        __builtin_memcpy(out->signs, group + 64, 64);
        read_two_scales(group + 144, out);
    }
};

}  // namespace
}  // namespace kt
