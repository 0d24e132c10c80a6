// What formats with one scale for 32 values share (GGUF: Q4_0, Q5_0, Q5_1, IQ4_NL, MXFP4).
// Panel: for each group 16 scales, for some 16 minimums (both float16 unless said otherwise), then planes.
// With activations s * a:  sum w x = d s sum((q - zero) a) + m s sum(a).
#pragma once

#include "planes-inl.h"

namespace kt {
namespace {

// F brings info, Planes, kHead (bytes before the planes), kMinimum, and values (a stored block's 32 integers)
// or, faster, columns (the same of 16 rows as vectors). It may replace `scale` and `put_head`.
template <class F>
struct Grouped {
    static KT_INLINE F32x16 scale(const uint8_t* panel) { return load_f16(panel); }

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) {
        store_as(panel + 2 * r, load_as<uint16_t>(block));
        if (F::kMinimum) store_as(panel + 32 + 2 * r, load_as<uint16_t>(block + 2));
    }

    static KT_INLINE void columns(const uint8_t* const* rows, size_t at, Bytes* v) {
        Unpacked unpacked;
        for (size_t r = 0; r < kPanelRows; ++r) F::values(rows[r] + at, unpacked.values[r]);
        unpacked.to_columns(v);
    }

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        static_assert(F::kHead + F::Planes::kBytes == F::info.step_bytes);
        for (size_t at = 0; at < k / kGroup * F::info.block_bytes;
             at += F::info.block_bytes, panel += F::info.step_bytes) {
            for (size_t r = 0; r < kPanelRows; ++r) F::put_head(rows[r] + at, panel, r);
            Bytes v[8];
            F::columns(rows, at, v);
            F::Planes::put(panel + F::kHead, v);
        }
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        for (size_t at = 0; at < k / kGroup * sizeof(Group32);
             at += sizeof(Group32), panel += F::info.step_bytes) {
            prefetch<R, F::info.step_bytes>(panel, ask);
            I32x16 dots[R];
            KT_UNROLL for (int r = 0; r < R; ++r) {
                dots[r] = F::Planes::template start<1, 1>(rows[r] + at + offsetof(Group32, sums));
            }
            dot_pairs_of<typename F::Planes, 0, 4, R>(panel + F::kHead, rows, at, dots);
            const F32x16 d = F::scale(panel);
            KT_UNROLL for (int r = 0; r < R; ++r) {
                const float s = load_as<float>(rows[r] + at + offsetof(Group32, scale));
                if constexpr (F::kMinimum) {
                    const float all = load_as<float>(rows[r] + at + offsetof(Group32, total));
                    sum[r] = multiply_add(load_f16(panel + 32), all, sum[r]);
                }
                sum[r] = multiply_add(to_f32(dots[r]), multiply(d, s), sum[r]);
            }
        }
    }

    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        for (size_t k = begin; k < end; k += kGroup, out += kGroup * kPanelRows) {
            const uint8_t* group = panel + k / kGroup * F::info.step_bytes;
            const F32x16 offset = F::kMinimum ? load_f16(group + 32) : zero_f32();
            unpack_pairs<typename F::Planes, 0, 4>(group + F::kHead, F::scale(group), offset, out);
        }
    }
};

}  // namespace
}  // namespace kt
