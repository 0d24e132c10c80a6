// MXFP4 (GGUF): groups of 32, w = 2^(e - 127) * v with v in E2M1. Stored: e, then 16 bytes of nibbles.
// Panel: 16 bytes e, then nibbles. The table holds 2 v, so the scale is taken as 2^(e - 128).
#pragma once

#include "grouped-inl.h"

namespace kt {
namespace {

struct MXFP4 : Grouped<MXFP4> {
    static constexpr FormatInfo info{"MXFP4", Policy::kInt8, 32, 17, 32, 272};
    static constexpr size_t kHead = 16;
    static constexpr bool kMinimum = false;
    using Planes = E2M1;

    static KT_INLINE F32x16 scale(const uint8_t* panel) { return load_half_e8m0(panel); }

    static KT_INLINE void put_head(const uint8_t* block, uint8_t* panel, size_t r) { panel[r] = block[0]; }

    static KT_INLINE void columns(const uint8_t* const* rows, size_t at, Bytes* v) {
        load_split_nibbles(rows, at + 1, v);
    }
};

}  // namespace
}  // namespace kt
