// What packing needs of stored weights that have more than rows of blocks.
#pragma once

namespace kt {
namespace {

constexpr uint32_t scale_kind(Scale kind) {
    return 1u << static_cast<int>(kind);
}
constexpr uint32_t kPlainScales =
    scale_kind(Scale::kF32) | scale_kind(Scale::kF16) | scale_kind(Scale::kBf16);

// Rows after the last repeat it: nobody reads their results.
KT_INLINE size_t row_of(const StoredMatrix& stored, size_t first, size_t r) {
    return first + r < stored.rows ? first + r : stored.rows - 1;
}

struct RowPointers {
    const uint8_t* at[kPanelRows];
};

inline RowPointers data_rows(const StoredMatrix& stored, size_t first) {
    RowPointers rows;
    for (size_t r = 0; r < kPanelRows; ++r) {
        rows.at[r] = stored.data + row_of(stored, first, r) * stored.stride;
    }
    return rows;
}

KT_INLINE size_t scale_bytes(Scale kind) {
    return kind == Scale::kF32 ? 4 : 2;
}

KT_INLINE F32x16 load_scales(Scale kind, const uint8_t* p) {
    if (kind == Scale::kBf16) return load_bf16(p);
    return kind == Scale::kF16 ? load_f16(p) : load_f32(p);
}

// Whole-row scales of 16 rows as float32.
inline void put_row_scales(const StoredMatrix& stored, size_t first, uint8_t* panel) {
    uint8_t scales[64];
    const size_t size = scale_bytes(stored.scale);
    for (size_t r = 0; r < kPanelRows; ++r) {
        const uint8_t* const row = stored.scales + row_of(stored, first, r) * stored.scale_stride;
        __builtin_memcpy(scales + size * r, row, size);
    }
    float wide[kPanelRows];
    store(wide, load_scales(stored.scale, scales));
    __builtin_memcpy(panel, wide, sizeof wide);
}

// Eight nibbles in order, or twice eight, as the bytes (n0, n4), (n1, n5), (n2, n6), (n3, n7) of a panel.
template <class Word>
KT_INLINE Word interleaved(Word x) {
    constexpr Word kBytes = static_cast<Word>(0x0000ff000000ff00u),
                   kNibbles = static_cast<Word>(0x00f000f000f000f0u);
    Word t = (x ^ x >> 8) & kBytes;
    x ^= t ^ t << 8;
    t = (x ^ x >> 4) & kNibbles;
    return x ^ t ^ t << 4;
}

// 32 nibbles of row r, stored in order, to their places in Nibbles; flips: for each half, bits to turn over.
KT_INLINE void put_ordered_nibbles(uint8_t* q, size_t r, const uint8_t* bytes,
                                   const uint64_t* flips = nullptr) {
    for (size_t half = 0; half < 2; ++half, q += 128) {
        const uint64_t stored = load_as<uint64_t>(bytes + 8 * half);
        const uint64_t both = interleaved(flips ? stored ^ flips[half] : stored);
        store_as(q + 4 * r, static_cast<uint32_t>(both));
        store_as(q + 64 + 4 * r, static_cast<uint32_t>(both >> 32));
    }
}

}  // namespace
}  // namespace kt
