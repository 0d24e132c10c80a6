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

    static KT_INLINE void put_record(const uint8_t* block, size_t g, uint8_t* record) {
        store_as(record, load_as<uint64_t>(block + 2 + 8 * g));
        store_as(record + 8, load_as<uint32_t>(block + 66 + 4 * g));
    }

    static KT_INLINE void decode_row(const uint8_t*, size_t, size_t, const uint8_t* record, uint8_t* tile,
                                     uint8_t* scale) {
        const uint32_t signs = load_as<uint32_t>(record + 8);
        for (size_t l = 0; l < 4; ++l) {
            const uint64_t entry =
                kEntriesIQ3XXS.entry[record[2 * l]] | kEntriesIQ3XXS.entry[record[2 * l + 1]] << 32;
            put_eight(tile, l, with_signs(entry, kEvenSigns.entry[signs >> (7 * l) & 127]));
        }
        scale[0] = odd_scale(signs >> 28);
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

    static KT_INLINE void put_record(const uint8_t* block, size_t g, uint8_t* record) {
        store_as(record, load_as<uint64_t>(block + 2 + 8 * g));
        record[8] = block[66 + g];
        store_as(record + 9, load_as<uint32_t>(block + 74 + 4 * g));
    }

    static KT_INLINE void decode_row(const uint8_t* panel, size_t g, size_t r, const uint8_t* record,
                                     uint8_t* tile, uint8_t* scale) {
        for (size_t l = 0; l < 4; ++l) {
            const size_t ninth = static_cast<size_t>(record[8]) >> (2 * l);
            const uint64_t entry = kEntriesIQ3S.entry[record[2 * l] | (ninth & 1) << 8] |
                                   kEntriesIQ3S.entry[record[2 * l + 1] | (ninth & 2) << 7] << 32;
            put_eight(tile, l, with_signs(entry, kSigns.entry[record[9 + l]]));
        }
        scale[0] = odd_scale(panel[32 + 16 * (g / 2) + r] >> (4 * (g % 2)) & 15);
    }
};

}  // namespace
}  // namespace kt
