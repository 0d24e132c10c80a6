// What formats share whose values are entries of a grid (GGUF: IQ1, IQ2, IQ3): super-blocks of 256,
// w = d * factor * scale_j * q, where eight (four) consecutive q are a grid entry, with signs of their own.
// Panel: for each super-block a head that begins with 16 float16 d, then for each group arrays of 16 rows: of
// each of its bytes, 16-bit or 32-bit words. A kernel decodes a group to bytes before it multiplies. Every
// entry takes a table read and a store, so it is the core, not the memory, that limits one row.
#pragma once

#include "grids-inl.h"
#include "super-inl.h"
#if defined(KT_VBMI) && defined(KT_VNNI)
#define KT_GRID_PERMUTES
#include "grid_vbmi-inl.h"
#endif

namespace kt {
namespace {

#ifndef KT_GRID_PERMUTES
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

// Decoded groups, as Eights reads them, and the scales of two halves.
struct Decoded {
    uint64_t values[4][16];
    uint8_t signs[4][16];
    uint8_t scales[2][16];
    uint8_t unused[32];
};
static_assert(sizeof(Decoded) == kScratch && offsetof(Decoded, scales) == Eights::kBytes);

// Indices of entries, [4][16] or [8][16].
using Indices = uint16_t[16];

// A row's four indices.
KT_INLINE void read_indices(const uint8_t* bytes, Indices* index) {
    for (size_t v = 0; v < 4; ++v) {
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) index[v][r] = bytes[4 * r + v];
    }
}

template <size_t N>
KT_INLINE void read_entries(const Entries<N>& grid, const Indices* index, Decoded* out) {
    for (size_t v = 0; v < 4; ++v) {
        for (size_t r = 0; r < 16; ++r) out->values[v][r] = grid.entry[index[v][r]];
    }
}

// Entries of four values, two for each eight.
template <size_t N>
KT_INLINE void read_half_entries(const Entries<N>& grid, const Indices* index, Decoded* out) {
    for (size_t v = 0; v < 4; ++v) {
        for (size_t r = 0; r < 16; ++r) {
            out->values[v][r] = grid.entry[index[2 * v][r]] | grid.entry[index[2 * v + 1][r]] << 32;
        }
    }
}

// Seven sign bits and the eighth, which makes their number even.
KT_INLINE uint8_t even_signs(uint32_t seven) {
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return static_cast<uint8_t>(seven | parity << 7);
}

// 16 words of 4 x 7 sign bits and, above, a scale: IQ2_XXS and IQ3_XXS.
KT_INLINE void read_signs_and_scale(const uint8_t* words, Decoded* out) {
    for (size_t v = 0; v < 4; ++v) {
        KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
            out->signs[v][r] = even_signs(load_as<uint32_t>(words + 4 * r) >> (7 * v) & 127);
        }
    }
    // A stored scale s stands for s + 1/2; the factor takes the doubling back.
    KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
        out->scales[0][r] = static_cast<uint8_t>(2 * (load_as<uint32_t>(words + 4 * r) >> 28) + 1);
    }
}

// 16 bytes with the scales of two halves: IQ2_XS and IQ2_S.
KT_INLINE void read_two_scales(const uint8_t* bytes, Decoded* out) {
    KT_VECTORISE for (size_t r = 0; r < 16; ++r) {
        out->scales[0][r] = static_cast<uint8_t>(2 * (bytes[r] & 15) + 1);
        out->scales[1][r] = static_cast<uint8_t>(2 * (bytes[r] >> 4) + 1);
    }
}

#endif

// Byte or word i of a group's arrays; size is that of all arrays before it, for one row.
template <class T>
KT_INLINE void put(uint8_t* group, size_t size, size_t r, T value) {
    store_as(group + 16 * size + sizeof(T) * r, value);
}

// F brings info, kRecord (a group's bytes of one row), kSub, kFactor, put_group (group g of a stored block,
// row r) and decode, and may replace kHead and put_head.
template <class F>
struct GridBlock : SuperBlock<F> {
    static constexpr bool kMinimum = false;
    static constexpr size_t kHead = 32;
#ifdef KT_GRID_PERMUTES
    using Planes = GridPlanes;
#else
    using Planes = Eights;
#endif

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
                    F::put_group(block, g, panel + F::kHead + g * kPanelRows * F::kRecord, r);
                }
            }
        }
    }

    static KT_INLINE Subs subs(const uint8_t*, uint8_t*) { return {nullptr, nullptr}; }

    static KT_INLINE F32x16 super_scale(const uint8_t* panel) {
        return multiply(load_f16(panel), F::kFactor);
    }

#ifdef KT_GRID_PERMUTES
    // Made in place: a copy would stay in memory.
    static KT_INLINE auto group(const uint8_t* panel, const Subs&, size_t g, uint8_t* scratch) {
        const uint8_t* const from = panel + F::kHead + g * kPanelRows * F::kRecord;
        return Group<decltype(F::decode(panel, g, from, scratch))>{F::decode(panel, g, from, scratch),
                                                                   scratch};
    }
#else
    // One copy, not one for each number of rows.
    __attribute__((noinline)) static void decode_group(const uint8_t* panel, size_t g, uint8_t* scratch) {
        F::decode(panel, g, panel + F::kHead + g * kPanelRows * F::kRecord,
                  reinterpret_cast<Decoded*>(scratch));
    }

    static KT_INLINE Group<const uint8_t*> group(const uint8_t* panel, const Subs&, size_t g,
                                                 uint8_t* scratch) {
        decode_group(panel, g, scratch);
        return {scratch, scratch + offsetof(Decoded, scales)};
    }
#endif
};

}  // namespace
}  // namespace kt
