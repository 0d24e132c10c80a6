// INT4, GPTQ and AWQ: w = scale * (q - zero), q in 0..15, a scale for each row and group of a multiple of 32
// along K; zero is 8 where the weight has no zero points.
// Stored: INT4 rows of nibbles in order; GPTQ words of 8 k of a row, zero points less one (0 as 15); AWQ
// words of 8 rows of a k, in an order of its own.
// Panel, the same for all three: a head, then for each group 16 scales of the stored kind, 16 int8 -zero
// where there are zero points, and the groups of 32 nibbles. A scale is read once for its group.
#pragma once

#include "planes-inl.h"
#include "stored-inl.h"

namespace kt {
namespace {

struct Int4Head {
    uint32_t group;
    Scale scale;
    bool zeros;
    uint16_t filling = 0;  // or the bytes of a panel would depend on what lay on the stack
};
constexpr size_t kInt4Head = 64;
// Bytes of a group before its nibbles, and of all of it.
struct Int4Sizes {
    size_t head, all;

    KT_INLINE explicit Int4Sizes(const Int4Head& h)
        : head(kPanelRows * (scale_bytes(h.scale) + h.zeros)), all(head + kPanelRows / 2 * h.group) {}
};

struct INT4 {
    static constexpr FormatInfo info{"INT4", Policy::kInt8,   32, 16, 32, 0, Layout::kRows, kPlainScales, 0,
                                     1,      Zeros::kOptional};

    static size_t panel_bytes(const StoredMatrix& stored) {
        const Int4Sizes sizes({static_cast<uint32_t>(stored.group), stored.scale, stored.zeros != nullptr});
        return kInt4Head + stored.cols / stored.group * sizes.all;
    }

    static void pack(const StoredMatrix& stored, size_t first, uint8_t* panel);

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        const Int4Head head = load_as<Int4Head>(panel);
        panel += kInt4Head;
        const size_t group_bytes = head.group / kGroup * sizeof(Group32);
        I32x16 zeros = all_zeros(-8);
        for (size_t at = 0; at < k / kGroup * sizeof(Group32);) {
            prefetch<R, kPanelRows * 5>(panel, ask);
            const F32x16 d = load_scales(head.scale, panel);
            panel += kPanelRows * scale_bytes(head.scale);
            if (head.zeros) {
                zeros = load_zeros(panel);
                panel += kPanelRows;
            }
            F32x16 part[R];
            KT_UNROLL for (int r = 0; r < R; ++r) part[r] = zero_f32();
            for (const size_t end = at + group_bytes; at < end; at += sizeof(Group32), panel += 256) {
                prefetch<R, 256>(panel, ask);
                I32x16 dots[R];
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    dots[r] = times_sums(zeros, rows[r] + at + offsetof(Group32, sums));
                }
                dot_pairs_of<Nibbles<0>, 0, 4, R>(panel, rows, at, dots);
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    const float s = load_as<float>(rows[r] + at + offsetof(Group32, scale));
                    part[r] = multiply_add(to_f32(dots[r]), s, part[r]);
                }
            }
            KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = multiply_add(part[r], d, sum[r]);
        }
    }

    // scale * (q - zero), rounded once before it becomes bfloat16.
    static KT_INLINE void unpack_apart(Bytes q, const F32x16& zeros, const F32x16& d, uint16_t* out) {
        const auto value = [&](const F32x16& v) {
            return multiply_add(multiply_add(v, 1.0f, zeros), d, zero_f32());
        };
        store_pairs(out, value(byte_value<0>(q, 0)), value(byte_value<1>(q, 0)));
        store_pairs(out + 32, value(byte_value<2>(q, 0)), value(byte_value<3>(q, 0)));
    }

    // Scales of 16 bits times q and zero are exact in float32: then the sum of both products is rounded once
    // as well, whether products are fused or not, and takes fewer instructions.
    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        const Int4Head head = load_as<Int4Head>(panel);
        const Int4Sizes sizes(head);
        const bool exact = head.scale != Scale::kF32;
        for (size_t k = begin; k < end; k += kGroup) {
            const uint8_t* const group = panel + kInt4Head + k / head.group * sizes.all;
            const F32x16 d = load_scales(head.scale, group);
            const F32x16 zeros =
                to_f32(head.zeros ? load_s8(group + sizes.head - kPanelRows) : add(zero_i32(), -8));
            const F32x16 offset = multiply_add(zeros, d, zero_f32());
            const uint8_t* const q = group + sizes.head + k % head.group * (kPanelRows / 2);
            for (size_t v = 0; v < 4; ++v, out += 128) {
                const Bytes both = load_bytes(q + 64 * v);
                if (exact) {
                    store_scaled(out, low_nibbles(both), d, offset);
                    store_scaled(out + 64, high_nibbles(both), d, offset);
                } else {
                    unpack_apart(low_nibbles(both), zeros, d, out);
                    unpack_apart(high_nibbles(both), zeros, d, out + 64);
                }
            }
        }
    }
};

// A source says where scales and zero points of a row and group lie and puts `count` columns of nibbles.
template <class Source>
void pack_int4(const StoredMatrix& stored, size_t first, uint8_t* panel) {
    const Int4Head head{static_cast<uint32_t>(stored.group), stored.scale, stored.zeros != nullptr};
    __builtin_memset(panel, 0, kInt4Head);
    store_as(panel, head);
    panel += kInt4Head;
    const size_t size = scale_bytes(stored.scale);
    const Source source(stored, first);
    for (size_t g = 0; g < stored.cols / stored.group; ++g) {
        for (size_t r = 0; r < kPanelRows; ++r) {
            const size_t row = row_of(stored, first, r);
            const uint8_t* const scale = source.scale(row, g, size);
            if (size == 4) {  // a copy of a size not known here would be a call
                store_as(panel + 4 * r, load_as<uint32_t>(scale));
            } else {
                store_as(panel + 2 * r, load_as<uint16_t>(scale));
            }
            if (head.zeros) panel[size * kPanelRows + r] = static_cast<uint8_t>(-source.zero(row, g));
        }
        panel += kPanelRows * (size + head.zeros);
        source.put(g * stored.group, stored.group, panel);
        panel += stored.group * (kPanelRows / 2);
    }
}

struct NibbleRows {
    const StoredMatrix& stored;
    const RowPointers rows;

    NibbleRows(const StoredMatrix& m, size_t first) : stored(m), rows(data_rows(m, first)) {}

    const uint8_t* scale(size_t row, size_t group, size_t size) const {
        return stored.scales + row * stored.scale_stride + group * size;
    }
    int zero(size_t row, size_t group) const {
        return stored.zeros[row * stored.zero_stride + group / 2] >> (4 * (group % 2)) & 15;
    }
    // A row's bytes are read together: rows a power of two apart share the cache's sets.
    void put(size_t k, size_t count, uint8_t* q) const {
        for (size_t r = 0; r < kPanelRows; ++r) {
            const uint8_t* const from = rows.at[r] + k / 2;
            for (size_t i = 0; i < count / 2; i += kGroup / 2) {
                put_ordered_nibbles(q + kPanelRows * i, r, from + i);
            }
        }
    }
};

inline void INT4::pack(const StoredMatrix& stored, size_t first, uint8_t* panel) {
    pack_int4<NibbleRows>(stored, first, panel);
}

// What GPTQ and AWQ share: groups are rows, and a row of the weight is a column.
struct Turned {
    const StoredMatrix& stored;
    const size_t first;

    Turned(const StoredMatrix& m, size_t row) : stored(m), first(row) {}

    const uint8_t* scale(size_t row, size_t group, size_t size) const {
        return stored.scales + group * stored.scale_stride + row * size;
    }
    // Nibble `place` of the word that holds rows 8 (row / 8) to 8 (row / 8) + 7.
    int nibble(size_t row, size_t group, size_t place) const {
        const uint32_t word = load_as<uint32_t>(stored.zeros + group * stored.zero_stride + row / 8 * 4);
        return word >> (4 * place) & 15;
    }
};

struct GptqWords : Turned {
    using Turned::Turned;

    int zero(size_t row, size_t group) const { return (nibble(row, group, row % 8) + 1) & 15; }

    void put(size_t k, size_t count, uint8_t* q) const {
        for (const size_t end = k + count; k < end; k += 8, q += 64) {
            const uint8_t* const words = stored.data + k / 8 * stored.stride;
            uint32_t x[kPanelRows];
            if (first + kPanelRows <= stored.rows) {
                __builtin_memcpy(x, words + 4 * first, sizeof x);
            } else {
                for (size_t r = 0; r < kPanelRows; ++r)
                    x[r] = load_as<uint32_t>(words + 4 * row_of(stored, first, r));
            }
            KT_VECTORISE for (size_t r = 0; r < kPanelRows; ++r) x[r] = interleaved(x[r]);
            __builtin_memcpy(q, x, sizeof x);
        }
    }
};

struct GPTQ {
    static constexpr FormatInfo info{"GPTQ", Policy::kInt8,   32, 16, 32, 0, Layout::kGptq, kPlainScales, 0,
                                     1,      Zeros::kOptional};
    using Kernel = INT4;

    static void pack(const StoredMatrix& stored, size_t row, uint8_t* panel) {
        pack_int4<GptqWords>(stored, row, panel);
    }
};

constexpr uint8_t kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // of a row's nibble in its word

// Swaps the upper Width nibbles of a with the lower ones of b, in every 2 Width nibbles.
template <int Width>
KT_INLINE void swap_nibbles(uint64_t& a, uint64_t& b) {
    constexpr uint64_t kLower = Width == 4   ? 0x0000ffff0000ffffu
                                : Width == 2 ? 0x00ff00ff00ff00ffu
                                             : 0x0f0f0f0f0f0f0f0fu;
    const uint64_t t = (a >> (4 * Width) ^ b) & kLower;
    b ^= t;
    a ^= t << (4 * Width);
}

struct AwqWords : Turned {
    using Turned::Turned;

    int zero(size_t row, size_t group) const { return nibble(row, group, kAwqPlace[row % 8]); }

    // 8 k by 2 words of 8 rows are turned by swapping halves, quarters and eighths.
    void put(size_t k, size_t count, uint8_t* q) const {
        const size_t low = first / 8 * 4, high = row_of(stored, first, 8) / 8 * 4;
        for (const size_t end = k + count; k < end; k += 8, q += 64) {
            uint64_t x[8];
            for (size_t i = 0; i < 8; ++i) {
                const uint8_t* const words = stored.data + (k + i) * stored.stride;
                x[i] = load_as<uint32_t>(words + low) | uint64_t{load_as<uint32_t>(words + high)} << 32;
            }
            KT_UNROLL for (size_t i = 0; i < 4; ++i) swap_nibbles<4>(x[i], x[i + 4]);
            KT_UNROLL for (size_t i = 0; i < 8; i += i % 4 == 1 ? 3 : 1) swap_nibbles<2>(x[i], x[i + 2]);
            KT_UNROLL for (size_t i = 0; i < 8; i += 2) swap_nibbles<1>(x[i], x[i + 1]);
            for (size_t r = 0; r < 8; ++r) {
                const uint64_t both = interleaved(x[kAwqPlace[r]]);
                store_as(q + 4 * r, static_cast<uint32_t>(both));
                store_as(q + 32 + 4 * r, static_cast<uint32_t>(both >> 32));
            }
        }
    }
};

struct AWQ {
    static constexpr FormatInfo info{"AWQ", Policy::kInt8, 32, 16, 32, 0, Layout::kAwq, kPlainScales, 0,
                                     1,     Zeros::kAlways};
    using Kernel = INT4;

    static void pack(const StoredMatrix& stored, size_t row, uint8_t* panel) {
        pack_int4<AwqWords>(stored, row, panel);
    }
};

}  // namespace
}  // namespace kt
