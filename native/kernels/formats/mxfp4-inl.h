// MXFP4: groups of 32, w = 2^(e - 127) * v with v in E2M1. Stored: GGUF e, then 16 bytes of nibbles; MXFP4_HF
// nibbles in order, and e beside them. Panel: 16 bytes e, then nibbles. The table holds 2 v.
#pragma once

#include "grouped-inl.h"
#include "stored-inl.h"

namespace kt {
namespace {

struct MXFP4 : Grouped<MXFP4> {
    static constexpr FormatInfo info{"MXFP4", Policy::kInt8, 32, 17, 32, 272};
    static constexpr size_t kHead = 16;
    static constexpr bool kMinimum = false;
    using Planes = E2M1;

    static KT_INLINE F32x16 scale(const uint8_t* panel) { return multiply(load_e8m0(panel), 0.5f); }

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) { panel[r] = block[0]; }

    static KT_INLINE void columns(const uint8_t* const* rows, size_t at, Bytes* v) {
        load_split_nibbles(rows, at + 1, v);
    }
};

struct MXFP4_HF {
    static constexpr FormatInfo info{"MXFP4_HF",
                                     Policy::kInt8,
                                     32,
                                     16,
                                     32,
                                     MXFP4::info.step_bytes,
                                     Layout::kRows,
                                     scale_kind(Scale::kE8m0),
                                     32};
    using Kernel = MXFP4;

    static void pack(const StoredMatrix& stored, size_t first, uint8_t* panel) {
        const RowPointers rows = data_rows(stored, first);
        for (size_t g = 0; g < stored.cols / kGroup; ++g, panel += info.step_bytes) {
            for (size_t r = 0; r < kPanelRows; ++r) {
                panel[r] = stored.scales[row_of(stored, first, r) * stored.scale_stride + g];
                put_ordered_nibbles(panel + MXFP4::kHead, r, rows.at[r] + g * (kGroup / 2));
            }
        }
    }
};

}  // namespace
}  // namespace kt
