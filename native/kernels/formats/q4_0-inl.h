// Q4_0 (GGUF): groups of 32, w = d * (q - 8), q in 0..15.
// Stored: d float16, 16 bytes of nibbles: 18 bytes.
#pragma once

#include "grouped-inl.h"

namespace kt {
namespace {

struct Q4_0 : Grouped<Q4_0> {
    static constexpr FormatInfo info{"Q4_0", Policy::kInt8, 32, 18, 32, 288};
    static constexpr size_t kHead = 32;
    static constexpr bool kMinimum = false;
    using Planes = Nibbles<8>;

    static KT_INLINE void columns(const uint8_t* const* rows, size_t at, Bytes* v) {
        load_split_nibbles(rows, at + 2, v);
    }
};

}  // namespace
}  // namespace kt
