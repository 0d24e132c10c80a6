// F32: panel [K][16] float32.
#pragma once

namespace kt {
namespace {

struct F32 {
    static constexpr FormatInfo info{"F32", Policy::kF32, 1, 4, 1, 64};

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        size_t i = 0;
        for (; i + 4 <= k; i += 4) {
            Bytes columns[4];
            load_columns(rows, 4 * i, columns);
            KT_UNROLL for (int j = 0; j < 4; ++j) store_bytes(panel + 64 * (i + j), columns[j]);
        }
        for (; i < k; ++i) {
            for (size_t r = 0; r < kPanelRows; ++r) {
                store_as(panel + 64 * i + 4 * r, load_as<uint32_t>(rows[r] + 4 * i));
            }
        }
    }

    static KT_INLINE F32x16 load(const uint8_t* panel, size_t i) { return load_f32(panel + 64 * i); }
};

}  // namespace
}  // namespace kt
