// INT8_CHANNEL: w = scale * q, q int8, a scale for each row.
// Panel: 16 float32 scales, then [K / 4][16][4] bytes q + 128.
#pragma once

#include "stored-inl.h"

namespace kt {
namespace {

struct INT8_CHANNEL {
    static constexpr FormatInfo info{"INT8_CHANNEL", Policy::kInt8, 32,       32, 32, 0,
                                     Layout::kRows,  kPlainScales,  kWholeRow};

    static size_t panel_bytes(const StoredMatrix& stored) { return 64 + kPanelRows * stored.cols; }

    static void pack(const StoredMatrix& stored, size_t first, uint8_t* panel) {
        put_row_scales(stored, first, panel);
        const RowPointers rows = data_rows(stored, first);
        panel += 64;
        for (size_t k = 0; k < stored.cols; k += kGroup, panel += kPanelRows * kGroup) {
            for (size_t r = 0; r < kPanelRows; ++r) {
                for (size_t i = 0; i < kGroup / 4; ++i) {
                    const uint32_t q = load_as<uint32_t>(rows.at[r] + k + 4 * i);
                    store_as(panel + 64 * i + 4 * r, q ^ 0x80808080u);
                }
            }
        }
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        const F32x16 d = load_f32(panel);
        panel += 64;
        for (size_t at = 0; at < k / kGroup * sizeof(Group32); at += sizeof(Group32), panel += 512) {
            prefetch<R, 512, 4>(panel, ask);
            I32x16 dots[R];
            KT_UNROLL for (int r = 0; r < R; ++r) {
                dots[r] = start_128<1, 1>(rows[r] + at + offsetof(Group32, sums));
            }
            KT_UNROLL for (int j = 0; j < 8; ++j) {
                const Signed w = minus_128(load_bytes(panel + 64 * j));
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    dots[r] = dot(dots[r], w, reinterpret_cast<const int8_t*>(rows[r] + at + 4 * j));
                }
            }
            KT_UNROLL for (int r = 0; r < R; ++r) {
                const float s = load_as<float>(rows[r] + at + offsetof(Group32, scale));
                sum[r] = multiply_add(to_f32(dots[r]), s, sum[r]);
            }
        }
        KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = multiply_add(sum[r], d, zero_f32());
    }

    // scale * 128 is exact, and so is the sum with scale * (q + 128) before its one rounding.
    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        const F32x16 d = load_f32(panel), zero = multiply(d, -128.0f);
        for (size_t k = begin; k < end; k += 4, out += 64) {
            store_scaled(out, load_bytes(panel + 64 + kPanelRows * k), d, zero);
        }
    }
};

}  // namespace
}  // namespace kt
