// Q4_1 (GGUF): groups of 32 along K, w = d * q + m with float16 d and m, q in 0..15.
// Stored: d, m, 16 bytes (low nibbles: elements 0..15, high nibbles: 16..31): 20 bytes. Panel: for each
// group 16 float16 d, 16 float16 m, then 4 vectors of 64 bytes; vector v holds, for 16 rows, elements
// 8v..8v+3 in the low and 8v+4..8v+7 in the high nibbles.
// With activations s * a:  sum w x = d s sum(q a) + m s sum(a); sum(a) comes with the prepared row.
#pragma once

#include "planes-inl.h"

namespace kt {
namespace {

struct Q4_1 {
    static constexpr FormatInfo info{"Q4_1", Policy::kInt8, 32, 20, 32, 320};

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        for (size_t g = 0; g < k / kGroup; ++g, panel += info.step_bytes) {
            const size_t at = g * info.block_bytes;
            for (size_t r = 0; r < kPanelRows; ++r) {
                store_as(panel + 2 * r, load_as<uint16_t>(rows[r] + at));
                store_as(panel + 32 + 2 * r, load_as<uint16_t>(rows[r] + at + 2));
            }
            Bytes v[8];
            load_split_nibbles(rows, at + 4, v);
            put_nibbles(panel + 64, v);
        }
    }

    // d q is exact in float32, so a weight is rounded to float32 by the sum with m, as on disk, and then
    // to bfloat16.
    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        panel += begin / kGroup * info.step_bytes;
        for (; begin < end; begin += kGroup, panel += info.step_bytes) {
            const F32x16 d = load_f16(panel), m = load_f16(panel + 32);
            for (size_t v = 0; v < 4; ++v, out += 128) {
                const Bytes both = load_bytes(panel + 64 + 64 * v);
                store_scaled(out, low_nibbles(both), d, m);
                store_scaled(out + 64, high_nibbles(both), d, m);
            }
        }
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        for (size_t at = 0; at < k / kGroup * sizeof(Group32);
             at += sizeof(Group32), panel += info.step_bytes) {
            prefetch<R, info.step_bytes>(panel, ask);
            NibbleSum dots[R];
            KT_UNROLL for (int r = 0; r < R; ++r) dots[r] = nibble_start();
            KT_UNROLL for (int v = 0; v < 4; ++v) {
                const Bytes both = load_bytes(panel + 64 + 64 * v);
                const Bytes low = low_nibbles(both), high = high_nibbles(both);
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    const int8_t* a = reinterpret_cast<const int8_t*>(rows[r] + at + 8 * v);
                    dots[r] = nibble_dot(nibble_dot(dots[r], low, a), high, a + 4);
                }
            }
            const F32x16 d = load_f16(panel), m = load_f16(panel + 32);
            KT_UNROLL for (int r = 0; r < R; ++r) {
                const float scale = load_as<float>(rows[r] + at + offsetof(Group32, scale));
                const float all = load_as<float>(rows[r] + at + offsetof(Group32, total));
                sum[r] = multiply_add(m, all, sum[r]);
                sum[r] = multiply_add(to_f32(nibble_total(dots[r])), multiply(d, scale), sum[r]);
            }
        }
    }
};

}  // namespace
}  // namespace kt
