// FP8_BLOCK, FP8_CHANNEL and MXFP8: w = scale * v, v in E4M3. Values become bfloat16, exactly, and scales
// multiply float32 sums: of 128 x 128 weights, of a whole row, or of 32 weights of a row (E8M0).
// In panels 4 k of 16 rows are 64 bytes in the order of load_e4m3.
#pragma once

#include "stored-inl.h"

namespace kt {
namespace {

// 32 k of 16 rows. A row's bytes are read together: rows a power of two apart share the cache's sets.
KT_INLINE void put_group(const RowPointers& rows, size_t k, uint8_t* q) {
    for (size_t r = 0; r < kPanelRows; ++r) {
        const uint8_t* const from = rows.at[r] + k;
        uint8_t* const to = q + 16 * (r / 4) + 2 * (r % 4);
        for (size_t i = 0; i < kGroup / 4; ++i) {
            store_as(to + 64 * i, load_as<uint16_t>(from + 4 * i));
            store_as(to + 64 * i + 8, load_as<uint16_t>(from + 4 * i + 2));
        }
    }
}

// sum[r] += scale * products of `count` columns, which begin `at` bytes into the prepared rows.
template <int R, class Factor>
KT_INLINE void add_fours(const uint8_t* q, size_t count, const uint8_t* const* rows, size_t at, Factor scale,
                         F32x16* sum, auto ask) {
    F32x16 part[R][kChains];
    KT_UNROLL for (int r = 0; r < R; ++r) {
        KT_UNROLL for (int c = 0; c < kChains; ++c) part[r][c] = zero_f32();
    }
    for (const size_t end = at + 2 * count; at < end; at += 2 * kGroup) {
        // Unrolled, so that the end of so short a loop is foreseen.
        KT_UNROLL for (size_t i = 0; i < kGroup / 4; ++i, q += 64) {
            prefetch<R, 64, 2>(q, ask);
            const Fours w = load_e4m3(q);
            KT_UNROLL for (int r = 0; r < R; ++r) {
                const uint8_t* const a = rows[r] + at + 8 * i;
                part[r][0] = dot_pairs(part[r][0], w.first, a);
                part[r][kChains - 1] = dot_pairs(part[r][kChains - 1], w.second, a + 4);
            }
        }
    }
    KT_UNROLL for (int r = 0; r < R; ++r) {
        const F32x16 all = kChains == 1 ? part[r][0] : multiply_add(part[r][0], 1.0f, part[r][kChains - 1]);
        sum[r] = multiply_add(all, scale, sum[r]);
    }
}

KT_INLINE void unpack_fours(const uint8_t* q, const F32x16& scale, uint16_t* out) {
    const Fours w = load_e4m3(q);
    const F32x16 zero = zero_f32();
    const auto scaled = [&](const F32x16& value) {
        return multiply_add(multiply(value, kE4m3Unit), scale, zero);
    };
    store_pairs(out, scaled(even_of(w.first)), scaled(odd_of(w.first)));
    store_pairs(out + 32, scaled(even_of(w.second)), scaled(odd_of(w.second)));
}

// F brings info, kStep (columns of a scale), kChunk (columns whose scales are 64 bytes), `put_scales` of a
// chunk and their `factor` of column k, and may replace `put_row_scales`. Panel: 16 float32 row scales, then
// chunks: 64 bytes of scales, [kChunk / 4][64] values.
template <class F>
struct E4m3Values {
    static size_t panel_bytes(const StoredMatrix& stored) {
        return 64 + (stored.cols + F::kChunk - 1) / F::kChunk * 64 + kPanelRows * stored.cols;
    }

    static void put_row_scales(const StoredMatrix&, size_t, uint8_t* out) {
        for (size_t r = 0; r < kPanelRows; ++r) store_as(out + 4 * r, 1.0f);
    }

    static void pack(const StoredMatrix& stored, size_t first, uint8_t* panel) {
        F::put_row_scales(stored, first, panel);
        const RowPointers rows = data_rows(stored, first);
        panel += 64;
        for (size_t k = 0; k < stored.cols; k += kGroup, panel += kPanelRows * kGroup) {
            if (k % F::kChunk == 0) {
                F::put_scales(stored, first, k, panel);
                panel += 64;
            }
            put_group(rows, k, panel);
        }
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        const F32x16 row_scales = multiply(load_f32(panel), kE4m3Unit);
        const uint8_t *q = panel + 64, *scales = q;
        for (size_t begin = 0; begin < k; begin += F::kStep) {
            if (begin % F::kChunk == 0) {
                scales = q;
                q += 64;
                prefetch<R, 64, 2>(scales, ask);
            }
            const size_t count = k - begin < F::kStep ? k - begin : F::kStep;
            add_fours<R>(q, count, rows, 2 * begin, F::factor(scales, begin % F::kChunk), sum, ask);
            q += kPanelRows * count;
        }
        KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = multiply_add(sum[r], row_scales, zero_f32());
    }

    // Of the two scales of a value one is 1, so their product is exact and a weight rounded once to float32.
    static void unpack(const uint8_t* panel, size_t begin, size_t end, uint16_t* out) {
        const F32x16 row_scales = load_f32(panel);
        for (size_t k = begin; k < end; k += kGroup) {
            const uint8_t* const scales = panel + 64 + k / F::kChunk * (64 + kPanelRows * F::kChunk);
            const uint8_t* const q = scales + 64 + k % F::kChunk * kPanelRows;
            const F32x16 scale = multiply_add(row_scales, F::factor(scales, k % F::kChunk), zero_f32());
            for (size_t i = 0; i < kGroup / 4; ++i, out += 64) unpack_fours(q + 64 * i, scale, out);
        }
    }
};

struct FP8_BLOCK : E4m3Values<FP8_BLOCK> {
    static constexpr uint32_t kScaleKinds = scale_kind(Scale::kF32) | scale_kind(Scale::kBf16);
    static constexpr FormatInfo info{"FP8_BLOCK", Policy::kBf16, 32,          32,  32,
                                     0,           Layout::kRows, kScaleKinds, 128, 128};
    static constexpr size_t kStep = 128, kChunk = 16 * kStep;

    static KT_INLINE float factor(const uint8_t* scales, size_t k) {
        return load_as<float>(scales + k / kStep * 4);
    }

    // The 16 rows of a panel are of one block.
    static void put_scales(const StoredMatrix& stored, size_t first, size_t k, uint8_t* out) {
        const uint8_t* const scales = stored.scales + first / info.scale_rows * stored.scale_stride;
        const size_t size = scale_bytes(stored.scale), left = (stored.cols - k + kStep - 1) / kStep;
        uint8_t raw[64] = {};
        __builtin_memcpy(raw, scales + k / kStep * size, size * (left < 16 ? left : 16));
        float wide[16];
        store(wide, load_scales(stored.scale, raw));
        __builtin_memcpy(out, wide, sizeof wide);
    }
};

// The same kernel: the factors of 128 columns are 1.
struct FP8_CHANNEL : E4m3Values<FP8_CHANNEL> {
    static constexpr FormatInfo info{"FP8_CHANNEL", Policy::kBf16, 32,       32, 32, 0,
                                     Layout::kRows, kPlainScales,  kWholeRow};
    static constexpr size_t kChunk = FP8_BLOCK::kChunk;
    using Kernel = FP8_BLOCK;

    static void put_row_scales(const StoredMatrix& stored, size_t first, uint8_t* out) {
        kt::put_row_scales(stored, first, out);
    }

    static void put_scales(const StoredMatrix&, size_t, size_t, uint8_t* out) {
        for (size_t b = 0; b < 16; ++b) store_as(out + 4 * b, 1.0f);
    }
};

struct MXFP8 : E4m3Values<MXFP8> {
    static constexpr FormatInfo info{
        "MXFP8", Policy::kBf16, 32, 32, 32, 0, Layout::kRows, scale_kind(Scale::kE8m0), 32};
    static constexpr size_t kStep = 32, kChunk = 4 * kStep;

    static KT_INLINE F32x16 factor(const uint8_t* scales, size_t k) { return load_e8m0(scales + k / 2); }

    static void put_scales(const StoredMatrix& stored, size_t first, size_t k, uint8_t* out) {
        for (size_t r = 0; r < kPanelRows; ++r) {
            const uint8_t* const scales = stored.scales + row_of(stored, first, r) * stored.scale_stride;
            for (size_t g = 0; g < 4; ++g) {
                const bool is_there = k + g * kStep < stored.cols;
                out[16 * g + r] = is_there ? scales[k / kStep + g] : uint8_t{0};
            }
        }
    }
};

}  // namespace
}  // namespace kt
