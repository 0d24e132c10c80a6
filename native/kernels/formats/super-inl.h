// What super-blocks of 256 share: w = d * scale_j * (q - zero) - dmin * min_j, with small integers scale_j
// and min_j for each sub-block of 16 or 32 values.
// Panel: for each super-block 16 float16 d, for some 16 float16 dmin, arrays of 16 for the sub-blocks'
// scales and minimums, then 8 groups of planes.
//
// An integer sum of one group times its sub-block's scale is at most 32 * 32 * 127 * 128 = 1.7e7, about
// 2^24, so its float is exact but for a last bit. Activations have a float scale for each group: the float
// sum over a super-block takes those, and meets d once.
#pragma once

#include "planes-inl.h"

namespace kt {
namespace {

constexpr size_t kSuper = 256;
constexpr size_t kGroups = kSuper / kGroup;

// Arrays of 16 bytes, one for each sub-block.
struct Subs {
    const uint8_t* scales;
    const uint8_t* minimums;
};

// Sixteen 6-bit numbers of row r as 12 arrays of 16 bytes: number j's low nibble shares a byte with that of
// j + 4 (j < 4, and 8 <= j < 12); the upper two bits of j, j + 4, j + 8 and j + 12 share one.
KT_INLINE void put_six_bits(uint8_t* p, size_t r, const uint8_t* numbers) {
    for (size_t j = 0; j < 4; ++j) {
        const uint8_t *a = numbers + j, *b = a + 4, *c = a + 8, *d = a + 12;
        p[16 * j + r] = static_cast<uint8_t>((*a & 15) | *b << 4);
        p[64 + 16 * j + r] = static_cast<uint8_t>((*c & 15) | *d << 4);
        p[128 + 16 * j + r] = static_cast<uint8_t>(*a >> 4 | *b >> 4 << 2 | *c >> 4 << 4 | *d >> 4 << 6);
    }
}

// The same for 16 rows at once: arrays of 16 of the numbers 0..3, 4..7, 8..11 and 12..15.
KT_INLINE void put_six_bits(uint8_t* p, const Bytes& a, const Bytes& b, const Bytes& c, const Bytes& d) {
    store_bytes(p, with_bits<0xf0, 4>(bits<0x0f, 0>(a), b));
    store_bytes(p + 64, with_bits<0xf0, 4>(bits<0x0f, 0>(c), d));
    const Bytes lower = with_bits<0x0c, -2>(bits<0x03, -4>(a), b);
    store_bytes(p + 128, with_bits<0xc0, 2>(with_bits<0x30, 0>(lower, c), d));
}

// Those numbers as 16 arrays of 16 bytes.
KT_INLINE void six_bits(const uint8_t* p, uint8_t* out) {
    const Bytes first = load_bytes(p), second = load_bytes(p + 64), high = load_bytes(p + 128);
    store_bytes(out, with_bits<0x30, 4>(low_nibbles(first), high));
    store_bytes(out + 64, with_bits<0x30, 2>(high_nibbles(first), high));
    store_bytes(out + 128, with_bits<0x30, 0>(low_nibbles(second), high));
    store_bytes(out + 192, with_bits<0x30, -2>(high_nibbles(second), high));
}

// One group: its planes, or what else F::Planes reads, and the scales of its sub-blocks.
template <class Source>
struct Group {
    Source q;
    const uint8_t* scales;
};
constexpr size_t kScratch = 576 + 64;

// F brings info, Planes, kHead, kSub, kMinimum, subs, and of one row put_head and values (a group's 32
// integers) or, faster, of 16 rows put_heads and put_values; it may replace what stands first here.
template <class F>
struct SuperBlock {
    static constexpr size_t kBuffer = 2 * kSuper;  // bytes that subs may use
    static constexpr int kAskFrom = 3;             // rows with which weights are asked for ahead

    static KT_INLINE I32x16 sub_scale(const uint8_t* p) { return load_u8(p); }

    static KT_INLINE I32x16 sub_minimum(const uint8_t* p) { return load_u8(p); }

    static KT_INLINE F32x16 super_scale(const uint8_t* panel) { return load_f16(panel); }

    // scratch has kScratch bytes, for formats that decode a group before they multiply.
    static KT_INLINE Group<const uint8_t*> group(const uint8_t* panel, const Subs& subs, size_t g, uint8_t*) {
        return {panel + F::kHead + g * F::Planes::kBytes, subs.scales + g * (kGroup / F::kSub) * 16};
    }

    static KT_INLINE void put_heads(const uint8_t* const* rows, size_t at, uint8_t* panel) {
        for (size_t r = 0; r < kPanelRows; ++r) F::put_head(rows[r] + at, panel, r);
    }

    static KT_INLINE void put_values(const uint8_t* const* rows, size_t at, uint8_t* q) {
        for (size_t g = 0; g < kGroups; ++g, q += F::Planes::kBytes) {
            Unpacked unpacked;
            for (size_t r = 0; r < kPanelRows; ++r) F::values(rows[r] + at, g, unpacked.values[r]);
            Bytes v[8];
            unpacked.to_columns(v);
            F::Planes::put(q, v);
        }
    }

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        static_assert(F::kHead + kGroups * F::Planes::kBytes == F::info.step_bytes);
        for (size_t i = 0; i < k / kSuper; ++i, panel += F::info.step_bytes) {
            F::put_heads(rows, i * F::info.block_bytes, panel);
            F::put_values(rows, i * F::info.block_bytes, panel + F::kHead);
        }
    }

    // sums[r] += integer sum of group g of row r, sub-block scales included
    template <int R, int Begin, int End, class Source>
    static KT_INLINE void add_part(const Source& q, const uint8_t* scale, const uint8_t* const* rows,
                                   size_t at, I32x16* sums) {
        I32x16 dots[R];
        KT_UNROLL for (int r = 0; r < R; ++r) {
            dots[r] =
                F::Planes::template start<(Begin == 0), (End == 4)>(rows[r] + at + offsetof(Group32, sums));
        }
        dot_pairs_of<typename F::Planes, Begin, End, R>(q, rows, at, dots);
        const I32x16 factor = F::sub_scale(scale);
        KT_UNROLL for (int r = 0; r < R; ++r) sums[r] = multiply_add(dots[r], factor, sums[r]);
    }

    // Sum of the activations of a group's sub-block.
    static KT_INLINE float sub_total(const uint8_t* group, size_t sub) {
        if constexpr (F::kSub == kGroup) return load_as<float>(group + offsetof(Group32, total));
        return load_as<float>(group + offsetof(Group32, scale)) *
               static_cast<float>(load_as<int16_t>(group + offsetof(Group32, sums) + 2 * sub));
    }

    // sum[r] -= dmin * sum over sub-blocks of min_j * (sum of their activations)
    template <int R>
    static KT_INLINE void take_minimums(const uint8_t* panel, const uint8_t* minimums,
                                        const uint8_t* const* rows, size_t at, F32x16* sum) {
        F32x16 low[R];
        KT_UNROLL for (int r = 0; r < R; ++r) low[r] = zero_f32();
        for (size_t g = 0; g < kGroups; ++g, at += sizeof(Group32)) {
            KT_UNROLL for (size_t sub = 0; sub < kGroup / F::kSub; ++sub, minimums += 16) {
                const F32x16 minimum = to_f32(F::sub_minimum(minimums));
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    low[r] = multiply_add(minimum, sub_total(rows[r] + at, sub), low[r]);
                }
            }
        }
        const F32x16 minus = multiply(load_f16(panel + 32), -1.0f);
        KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = multiply_add(low[r], minus, sum[r]);
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        alignas(64) uint8_t buffer[F::kBuffer], scratch[kScratch];
        for (size_t at = 0; at < k / kGroup * sizeof(Group32); panel += F::info.step_bytes) {
            const Subs subs = F::subs(panel, buffer);
            if constexpr (F::kMinimum) take_minimums<R>(panel, subs.minimums, rows, at, sum);
            F32x16 totals[R];
            KT_UNROLL for (int r = 0; r < R; ++r) totals[r] = zero_f32();
            for (size_t g = 0; g < kGroups; ++g, at += sizeof(Group32)) {
                const auto [q, scales] = F::group(panel, subs, g, scratch);
                prefetch<R, F::info.step_bytes / kGroups, F::kAskFrom>(
                    panel + g * (F::info.step_bytes / kGroups), ask);
                I32x16 sums[R];
                KT_UNROLL for (int r = 0; r < R; ++r) sums[r] = zero_i32();
                if constexpr (F::kSub == kGroup) {
                    add_part<R, 0, 4>(q, scales, rows, at, sums);
                } else {
                    add_part<R, 0, 2>(q, scales, rows, at, sums);
                    add_part<R, 2, 4>(q, scales + 16, rows, at, sums);
                }
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    const float s = load_as<float>(rows[r] + at + offsetof(Group32, scale));
                    totals[r] = multiply_add(to_f32(sums[r]), s, totals[r]);
                }
            }
            const F32x16 d = F::super_scale(panel);
            KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = multiply_add(totals[r], d, sum[r]);
        }
    }

    template <int Begin, int End, class Source>
    static KT_INLINE void unpack_part(const uint8_t* panel, const Source& q, const uint8_t* scale,
                                      const uint8_t* minimum, uint16_t* out) {
        const F32x16 d = multiply_add(to_f32(F::sub_scale(scale)), F::super_scale(panel), zero_f32());
        F32x16 offset = zero_f32();
        if constexpr (F::kMinimum) {
            offset =
                multiply_add(to_f32(F::sub_minimum(minimum)), multiply(load_f16(panel + 32), -1.0f), offset);
        }
        unpack_pairs<typename F::Planes, Begin, End>(q, d, offset, out);
    }

    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        alignas(64) uint8_t buffer[F::kBuffer], scratch[kScratch];
        for (size_t k = begin; k < end; k += kSuper) {
            const uint8_t* from = panel + k / kSuper * F::info.step_bytes;
            const Subs subs = F::subs(from, buffer);
            const uint8_t* minimum = subs.minimums;
            for (size_t g = 0; g < kGroups; ++g, out += kGroup * kPanelRows) {
                const auto [q, scales] = F::group(from, subs, g, scratch);
                if constexpr (F::kSub == kGroup) {
                    unpack_part<0, 4>(from, q, scales, minimum, out);
                } else {
                    unpack_part<0, 2>(from, q, scales, minimum, out);
                    unpack_part<2, 4>(from, q, scales + 16, F::kMinimum ? minimum + 16 : nullptr, out);
                }
                if constexpr (F::kMinimum) minimum += 16 * (kGroup / F::kSub);
            }
        }
    }
};

}  // namespace
}  // namespace kt
