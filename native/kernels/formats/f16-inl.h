// F16: panel [K][16] float16; activations stay float32.
#pragma once

namespace kt {
namespace {

struct F16 {
    static constexpr FormatInfo info{"F16", Policy::kF32, 1, 2, 1, 32};

    static void pack(const uint8_t* const rows[kPanelRows], size_t k, uint8_t* panel) {
        for (size_t i = 0; i < k; ++i) {
            for (size_t r = 0; r < kPanelRows; ++r) {
                store_as(panel + 32 * i + 2 * r, load_as<uint16_t>(rows[r] + 2 * i));
            }
        }
    }

    static KT_INLINE F32x16 load(const uint8_t* panel, size_t i) { return load_f16(panel + 32 * i); }
};

}  // namespace
}  // namespace kt
