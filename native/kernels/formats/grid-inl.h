// What formats share whose values are entries of a grid (GGUF: IQ1, IQ2, IQ3): super-blocks of 256,
// w = d * factor * scale_j * q, where eight (four) consecutive q are a grid entry, with signs of their own.
// Panel: for each super-block a head that begins with 16 float16 d, then for each group the records of 16
// rows: a group's own bytes one after another. A kernel decodes a group to bytes before it multiplies:
// one table read for each entry, so it is the core, not the memory, that limits one row.
#pragma once

#include "grids-inl.h"
#include "super-inl.h"

namespace kt {
namespace {

// Grid entries as bytes, 128 added.
template <size_t N>
struct Entries {
    uint64_t entry[N];
};

template <size_t Words, size_t Values>
constexpr Entries<4 * Words> entries(const uint64_t (&grid)[Words], const int (&values)[Values]) {
    constexpr int kBits = Values <= 4 ? 2 : 4;
    Entries<4 * Words> out{};
    for (size_t i = 0; i < 4 * Words; ++i) {
        const uint64_t code = grid[i / 4] >> (16 * (i % 4));
        for (int j = 0; j < 16 / kBits; ++j) {
            const int value = values[code >> (kBits * j) & ((1 << kBits) - 1)] + 128;
            out.entry[i] |= static_cast<uint64_t>(value) << (8 * j);
        }
    }
    return out;
}

// Eight sign bits as bytes of 0 or 255.
constexpr Entries<256> sign_bytes() {
    Entries<256> out{};
    for (size_t i = 0; i < 256; ++i) {
        for (size_t j = 0; j < 8; ++j) {
            if (i >> j & 1) out.entry[i] |= uint64_t{255} << (8 * j);
        }
    }
    return out;
}

// Seven sign bits; the eighth makes their number even.
constexpr Entries<128> even_sign_bytes() {
    Entries<128> out{};
    for (size_t i = 0; i < 128; ++i) {
        const size_t odd = (i ^ i >> 1 ^ i >> 2 ^ i >> 3 ^ i >> 4 ^ i >> 5 ^ i >> 6) & 1;
        out.entry[i] = sign_bytes().entry[i | odd << 7];
    }
    return out;
}

constexpr uint64_t kOnes = 0x0101010101010101u;
constexpr Entries<256> kSigns = sign_bytes();
constexpr Entries<128> kEvenSigns = even_sign_bytes();

// 128 + value where the sign's byte is 0, 128 - value where it is 255; values are 1..127.
KT_INLINE uint64_t with_signs(uint64_t entry, uint64_t signs) {
    return (entry ^ signs) + (signs & kOnes);
}

// Elements 8v .. 8v + 7 of a row; tile points at its place in vector 0.
KT_INLINE void put_eight(uint8_t* tile, size_t v, uint64_t bytes) {
    store_as(tile + 128 * v, static_cast<uint32_t>(bytes));
    store_as(tile + 128 * v + 64, static_cast<uint32_t>(bytes >> 32));
}

// A stored scale s stands for s + 1/2; the factor takes the doubling back.
KT_INLINE uint8_t odd_scale(uint32_t s) {
    return static_cast<uint8_t>(2 * s + 1);
}

// F brings info, kHead, kRecord, kSub, kFactor, put_head, put_record (group g of a stored block) and
// decode_row: a row's 32 values to put_eight(tile, ..), its scales to scale[0] (and scale[16]).
template <class F>
struct GridBlock : SuperBlock<F> {
    static constexpr bool kMinimum = false;
    static constexpr size_t kHead = 32;
    using Planes = WholeBytes;

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block));
    }

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        static_assert(F::kHead + kGroups * kPanelRows * F::kRecord == F::info.step_bytes);
        for (size_t i = 0; i < k / kSuper; ++i, panel += F::info.step_bytes) {
            for (size_t r = 0; r < kPanelRows; ++r) {
                const uint8_t* block = rows[r] + i * F::info.block_bytes;
                F::put_head(block, panel, r);
                for (size_t g = 0; g < kGroups; ++g) {
                    F::put_record(block, g, panel + F::kHead + (g * kPanelRows + r) * F::kRecord);
                }
            }
        }
    }

    static KT_INLINE Subs subs(const uint8_t*, uint8_t*) { return {nullptr, nullptr}; }

    static KT_INLINE F32x16 super_scale(const uint8_t* panel) {
        return multiply(load_f16(panel), F::kFactor);
    }

    __attribute__((noinline)) static void decode(const uint8_t* panel, size_t g, uint8_t* scratch) {
        const uint8_t* record = panel + F::kHead + g * kPanelRows * F::kRecord;
        for (size_t r = 0; r < kPanelRows; ++r, record += F::kRecord) {
            F::decode_row(panel, g, r, record, scratch + 4 * r, scratch + WholeBytes::kBytes + r);
        }
    }

    static KT_INLINE Group group(const uint8_t* panel, const Subs&, size_t g, uint8_t* scratch) {
        decode(panel, g, scratch);
        return {scratch, scratch + WholeBytes::kBytes};
    }
};

}  // namespace
}  // namespace kt
