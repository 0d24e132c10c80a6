// Q8_0 (GGUF): groups of 32 along K, w = d * q with d float16 and q int8.
// Stored: d, q[32]: 34 bytes. Panel: for each group 16 float16 scales, then [8][16][4] bytes q + 128
// (4 consecutive k of 16 rows are one 64-byte vector: vpdpbusd's order and an AMX B tile's).
#pragma once

#include "planes-inl.h"

namespace kt {
namespace {

struct Q8_0 {
    static constexpr FormatInfo info{"Q8_0", Policy::kInt8, 32, 34, 32, 544};

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        for (size_t g = 0; g < k / kGroup; ++g, panel += info.step_bytes) {
            const size_t at = g * info.block_bytes;
            for (size_t r = 0; r < kPanelRows; ++r) {
                store_as(panel + 2 * r, load_as<uint16_t>(rows[r] + at));
            }
            Bytes v[8];
            load_eight_columns(rows, at + 2, v);
            KT_UNROLL for (int j = 0; j < 8; ++j) store_bytes(panel + 32 + 64 * j, plus_128(v[j]));
        }
    }

    // d q is exact in float32, so a weight is rounded once.
    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        panel += begin / kGroup * info.step_bytes;
        for (; begin < end; begin += kGroup, panel += info.step_bytes) {
            const F32x16 d = load_f16(panel), zero = multiply(d, -128.0f);
            for (size_t j = 0; j < 8; ++j, out += 64) {
                store_scaled(out, load_bytes(panel + 32 + 64 * j), d, zero);
            }
        }
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        for (size_t at = 0; at < k / kGroup * sizeof(Group32);
             at += sizeof(Group32), panel += info.step_bytes) {
            prefetch<R, info.step_bytes, 4>(panel, ask);
            I32x16 dots[R];
            KT_UNROLL for (int r = 0; r < R; ++r) {
                dots[r] = start_128<1, 1>(rows[r] + at + offsetof(Group32, sums));
            }
            KT_UNROLL for (int j = 0; j < 8; ++j) {
                const Signed w = minus_128(load_bytes(panel + 32 + 64 * j));
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    dots[r] = dot(dots[r], w, reinterpret_cast<const int8_t*>(rows[r] + at + 4 * j));
                }
            }
            const F32x16 d = load_f16(panel);
            KT_UNROLL for (int r = 0; r < R; ++r) {
                const float scale = load_as<float>(rows[r] + at + offsetof(Group32, scale));
                sum[r] = multiply_add(to_f32(dots[r]), multiply(d, scale), sum[r]);
            }
        }
    }
};

}  // namespace
}  // namespace kt
