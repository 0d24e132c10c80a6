// IQ3_XXS and IQ3_S (GGUF): grids of four magnitudes, eight different ones.
// IQ3_XXS: 64 bytes of indices, then for 32 values 32 bits as in IQ2_XXS. 98 bytes for 256.
// IQ3_S: 64 bytes of indices, 8 of their ninth bits, 32 of signs, 4 of scales (two groups in a byte). 110
// bytes. In the panel the scales are 4 arrays of the head.
#pragma once

#include "grid-inl.h"

namespace kt {
namespace {

constexpr Entries<256> kEntriesIQ3XXS = entries(kGridIQ3XXS, {4, 12, 20, 28, 36, 44, 52, 62});
constexpr Entries<512> kEntriesIQ3S = entries(kGridIQ3S, {1, 3, 5, 7, 9, 11, 13, 15});

struct IQ3_XXS : GridBlock<IQ3_XXS> {
    static constexpr FormatInfo info{"IQ3_XXS", Policy::kInt8, 256, 98, 256, 1568};
    static constexpr size_t kRecord = 12;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.25f;

    static KT_INLINE void put_group(const uint8_t* block, size_t g, uint8_t* group, size_t r) {
        for (size_t i = 0; i < 8; ++i) put(group, i, r, block[2 + 8 * g + i]);
        put(group, 8, r, load_as<uint32_t>(block + 66 + 4 * g));
    }

    static KT_INLINE void decode(const uint8_t*, size_t, const uint8_t* group, Decoded* out) {
        Indices index[8];
        read_indices(group, 8, index);
        read_half_entries(kEntriesIQ3XXS, index, out);
        read_signs_and_scale(group + 128, out);
    }
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
        for (size_t i = 0; i < 8; ++i) put(group, i, r, block[2 + 8 * g + i]);
        for (size_t v = 0; v < 4; ++v) put(group, 8 + v, r, block[74 + 4 * g + v]);
        put(group, 12, r, block[66 + g]);
    }

    static KT_INLINE void decode(const uint8_t* panel, size_t g, const uint8_t* group, Decoded* out) {
        Indices index[8];
        for (size_t i = 0; i < 8; ++i) {
            KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
                index[i][r] = static_cast<uint16_t>(group[16 * i + r] | (group[192 + r] >> i & 1) << 8);
            }
        }
        read_half_entries(kEntriesIQ3S, index, out);
        __builtin_memcpy(out->signs, group + 128, 64);
        const uint8_t* scales = panel + 32 + 16 * (g / 2);
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            out->scales[0][r] = static_cast<uint8_t>(2 * (scales[r] >> (4 * (g % 2)) & 15) + 1);
        }
    }
};

}  // namespace
}  // namespace kt
