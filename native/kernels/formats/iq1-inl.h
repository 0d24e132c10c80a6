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

constexpr Entries<2048> kEntriesIQ1S = entries(kGridIQ1S, {-8, 0, 8});

KT_INLINE uint64_t moved(uint64_t entry, bool down) {
    return down ? entry - kOnes : entry + kOnes;
}

struct IQ1_S : GridBlock<IQ1_S> {
    static constexpr FormatInfo info{"IQ1_S", Policy::kInt8, 256, 50, 256, 800};
    static constexpr size_t kRecord = 6;
    static constexpr size_t kSub = 32;
    static constexpr float kFactor = 0.125f;

    static KT_INLINE void put_record(const uint8_t* block, size_t g, uint8_t* record) {
        store_as(record, load_as<uint32_t>(block + 2 + 4 * g));
        store_as(record + 4, load_as<uint16_t>(block + 34 + 2 * g));
    }

    static KT_INLINE void decode_row(const uint8_t*, size_t, size_t, const uint8_t* record, uint8_t* tile,
                                     uint8_t* scale) {
        const uint32_t high = load_as<uint16_t>(record + 4);
        for (size_t l = 0; l < 4; ++l) {
            const size_t index = record[l] | (high >> (3 * l) & 7) << 8;
            put_eight(tile, l, moved(kEntriesIQ1S.entry[index], high >> 15));
        }
        scale[0] = odd_scale(high >> 12 & 7);
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

    static KT_INLINE void put_record(const uint8_t* block, size_t g, uint8_t* record) {
        store_as(record, load_as<uint32_t>(block + 4 * g));
        store_as(record + 4, load_as<uint16_t>(block + 32 + 2 * g));
    }

    static KT_INLINE void decode_row(const uint8_t* panel, size_t g, size_t r, const uint8_t* record,
                                     uint8_t* tile, uint8_t* scale) {
        const uint32_t high = load_as<uint16_t>(record + 4);
        for (size_t l = 0; l < 4; ++l) {
            const size_t index = record[l] | (high >> (4 * l) & 7) << 8;
            put_eight(tile, l, moved(kEntriesIQ1S.entry[index], high >> (4 * l + 3) & 1));
        }
        // six bits of each group; the second byte read after the last row's scales is a record's
        const uint32_t scales = load_as<uint16_t>(panel + 32 + 6 * r + 6 * g / 8) >> (6 * g % 8);
        scale[0] = odd_scale(scales & 7);
        scale[16] = odd_scale(scales >> 3 & 7);
    }
};

}  // namespace
}  // namespace kt
