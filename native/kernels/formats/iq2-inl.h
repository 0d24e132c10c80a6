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

    static KT_INLINE void put_record(const uint8_t* block, size_t g, uint8_t* record) {
        store_as(record, load_as<uint64_t>(block + 2 + 8 * g));
    }

    static KT_INLINE void decode_row(const uint8_t*, size_t, size_t, const uint8_t* record, uint8_t* tile,
                                     uint8_t* scale) {
        const uint32_t signs = load_as<uint32_t>(record + 4);
        for (size_t l = 0; l < 4; ++l) {
            const uint64_t entry = kEntriesIQ2XXS.entry[record[l]];
            put_eight(tile, l, with_signs(entry, kEvenSigns.entry[signs >> (7 * l) & 127]));
        }
        scale[0] = odd_scale(signs >> 28);
    }
};

struct IQ2_XS : GridBlock<IQ2_XS> {
    static constexpr FormatInfo info{"IQ2_XS", Policy::kInt8, 256, 74, 256, 1184};
    static constexpr size_t kRecord = 9;
    static constexpr size_t kSub = 16;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_record(const uint8_t* block, size_t g, uint8_t* record) {
        store_as(record, load_as<uint64_t>(block + 2 + 8 * g));
        record[8] = block[66 + g];
    }

    static KT_INLINE void decode_row(const uint8_t*, size_t, size_t, const uint8_t* record, uint8_t* tile,
                                     uint8_t* scale) {
        for (size_t l = 0; l < 4; ++l) {
            const uint32_t both = load_as<uint16_t>(record + 2 * l);
            put_eight(tile, l, with_signs(kEntriesIQ2XS.entry[both & 511], kEvenSigns.entry[both >> 9]));
        }
        scale[0] = odd_scale(record[8] & 15);
        scale[16] = odd_scale(record[8] >> 4);
    }
};

struct IQ2_S : GridBlock<IQ2_S> {
    static constexpr FormatInfo info{"IQ2_S", Policy::kInt8, 256, 82, 256, 1312};
    static constexpr size_t kRecord = 10;
    static constexpr size_t kSub = 16;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_record(const uint8_t* block, size_t g, uint8_t* record) {
        store_as(record, load_as<uint32_t>(block + 2 + 4 * g));
        store_as(record + 4, load_as<uint32_t>(block + 34 + 4 * g));
        record[8] = block[66 + g];
        record[9] = block[74 + g];
    }

    static KT_INLINE void decode_row(const uint8_t*, size_t, size_t, const uint8_t* record, uint8_t* tile,
                                     uint8_t* scale) {
        for (size_t l = 0; l < 4; ++l) {
            const size_t index = record[l] | (record[8] >> (2 * l) & 3) << 8;
            put_eight(tile, l, with_signs(kEntriesIQ2S.entry[index], kSigns.entry[record[4 + l]]));
        }
        scale[0] = odd_scale(record[9] & 15);
        scale[16] = odd_scale(record[9] >> 4);
    }
};

}  // namespace
}  // namespace kt
