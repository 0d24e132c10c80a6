// BF16: panel [K/2][16][2] bfloat16, the order of vdpbf16ps and of an AMX B tile; odd K gets a zero.
#pragma once

namespace kt {
namespace {

struct BF16 {
    static constexpr FormatInfo info{"BF16", Policy::kBf16, 1, 2, 2, 64};

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        size_t i = 0;
        for (; i + 8 <= k; i += 8) {
            Bytes pairs[4];
            load_columns(rows, 2 * i, pairs);
            KT_UNROLL for (int j = 0; j < 4; ++j) store_bytes(panel + 32 * i + 64 * j, pairs[j]);
        }
        for (; i + 2 <= k; i += 2) {
            for (size_t r = 0; r < kPanelRows; ++r) {
                store_as(panel + 32 * i + 4 * r, load_as<uint32_t>(rows[r] + 2 * i));
            }
        }
        if (k % 2 == 0) return;
        for (size_t r = 0; r < kPanelRows; ++r) {
            store_as(panel + 32 * (k - 1) + 4 * r, uint32_t{load_as<uint16_t>(rows[r] + 2 * (k - 1))});
        }
    }

    template <int R>
    static KT_INLINE void block(const uint8_t* panel, size_t k, const uint8_t* const* rows, F32x16* sum,
                                auto ask) {
        for (size_t i = 0; i < k; i += 2) {
            prefetch<R, info.step_bytes, 4>(panel + 32 * i, ask);
            const Pairs w = load_pairs(panel + 32 * i);
            KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = dot_pairs(sum[r], w, rows[r] + 2 * i);
        }
    }
};

}  // namespace
}  // namespace kt
