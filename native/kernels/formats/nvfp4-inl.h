// NVFP4: w = multiplier * scale * v, v in E2M1, scale in E4M3 for 16 values of a row.
// Panel: 16 float32 factors, then for each 64 columns 4 x 16 scales and 2 groups of nibbles, which choose
// from a table of 2 v. Scales are kept without their sign, which is that of their values, and read as
// float16, which takes 2^-8 of them: so the factors are 128 times the multiplier. A row with a scale of NaN
// has a factor of NaN.
#pragma once

#include "planes-inl.h"
#include "stored-inl.h"

namespace kt {
namespace {

struct NVFP4 {
    static constexpr FormatInfo info{
        "NVFP4", Policy::kInt8, 32,  16, 32, 0, Layout::kRows, scale_kind(Scale::kE4m3), 16,
        1,       Zeros::kNever, true};
    static constexpr size_t kChunk = 64, kChunkBytes = 64 + kChunk * kPanelRows / 2;

    static size_t panel_bytes(const StoredMatrix& stored) {
        return 64 + (stored.cols + kChunk - 1) / kChunk * kChunkBytes;
    }

    static KT_INLINE const uint8_t* scales_of(const uint8_t* panel, size_t group) {
        return panel + 64 + group / 2 * kChunkBytes + 32 * (group % 2);
    }

    static KT_INLINE const uint8_t* nibbles_of(const uint8_t* panel, size_t group) {
        return panel + 128 + group / 2 * kChunkBytes + 256 * (group % 2);
    }

    static void pack(const StoredMatrix& stored, size_t first, uint8_t* panel) {
        const RowPointers rows = data_rows(stored, first);
        for (size_t r = 0; r < kPanelRows; ++r) {
            const uint8_t* const scales = stored.scales + row_of(stored, first, r) * stored.scale_stride;
            bool nan = false;
            for (size_t g = 0; g < stored.cols / kGroup; ++g) {
                const uint8_t low = scales[2 * g], high = scales[2 * g + 1];
                uint8_t* const to = const_cast<uint8_t*>(scales_of(panel, g)) + r;
                to[0] = low & 127;
                to[16] = high & 127;
                nan |= to[0] == 127 || to[16] == 127;
                const uint64_t kSigns = 0x8888888888888888u;
                const uint64_t flips[2] = {low & 128 ? kSigns : 0, high & 128 ? kSigns : 0};
                put_ordered_nibbles(const_cast<uint8_t*>(nibbles_of(panel, g)), r,
                                    rows.at[r] + g * (kGroup / 2), flips);
            }
            store_as(panel + 4 * r, nan ? __builtin_nanf("") : 128 * stored.multiplier);
        }
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        const size_t groups = k / kGroup;
        for (size_t g = 0, at = 0; g < groups; ++g, at += sizeof(Group32)) {
            const uint8_t *const scales = scales_of(panel, g), *const q = nibbles_of(panel, g);
            prefetch<R, kChunkBytes / 2>(scales + kChunkBytes / 2 * (g % 2) - 32 * (g % 2), ask);
            I32x16 first[R], second[R];
            KT_UNROLL for (int r = 0; r < R; ++r) {
                first[r] = E2M1::start<1, 0>(rows[r] + at + offsetof(Group32, sums));
                second[r] = E2M1::start<0, 1>(rows[r] + at + offsetof(Group32, sums));
            }
            dot_pairs_of<E2M1, 0, 2, R>(q, rows, at, first);
            dot_pairs_of<E2M1, 2, 4, R>(q, rows, at, second);
            const F32x16 d = load_e4m3_scales(scales), e = load_e4m3_scales(scales + 16);
            KT_UNROLL for (int r = 0; r < R; ++r) {
                const F32x16 both =
                    multiply_add(to_f32(second[r]), e, multiply_add(to_f32(first[r]), d, zero_f32()));
                sum[r] = multiply_add(both, load_as<float>(rows[r] + at + offsetof(Group32, scale)), sum[r]);
            }
        }
        const F32x16 factors = load_f32(panel);
        KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = multiply_add(sum[r], factors, zero_f32());
    }

    // scale * v is exact, so a weight is rounded by the factor, as on disk, and then to bfloat16.
    template <int V>
    static KT_INLINE void unpack_pair(const uint8_t* q, const uint8_t* scales, const F32x16& factors,
                                      uint16_t* out) {
        const F32x16 d = load_e4m3_scales(scales + 16 * (V / 2));
        const BytePair w = E2M1::pair<V>(q);
        unpack_bytes(w.first, d, factors, out + 128 * V);
        unpack_bytes(w.second, d, factors, out + 128 * V + 64);
    }

    static KT_INLINE void unpack_bytes(const Bytes& w, const F32x16& d, const F32x16& factors,
                                       uint16_t* out) {
        const auto value = [&](const F32x16& v) {
            return multiply_add(multiply_add(v, d, zero_f32()), factors, zero_f32());
        };
        store_pairs(out, value(byte_value<0>(w, E2M1::kZero)), value(byte_value<1>(w, E2M1::kZero)));
        store_pairs(out + 32, value(byte_value<2>(w, E2M1::kZero)), value(byte_value<3>(w, E2M1::kZero)));
    }

    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        const F32x16 factors = load_f32(panel);
        for (size_t g = begin / kGroup; g < end / kGroup; ++g, out += kGroup * kPanelRows) {
            const uint8_t *const scales = scales_of(panel, g), *const q = nibbles_of(panel, g);
            unpack_pair<0>(q, scales, factors, out);
            unpack_pair<1>(q, scales, factors, out);
            unpack_pair<2>(q, scales, factors, out);
            unpack_pair<3>(q, scales, factors, out);
        }
    }
};

}  // namespace
}  // namespace kt
