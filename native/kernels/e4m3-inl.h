// E4M3 (the "fn" kind: no infinities, NaN is all ones below the sign) as bfloat16, exactly: magnitudes by
// code.
#pragma once

#include "common-inl.h"

namespace kt {
namespace {

struct E4m3Table {
    alignas(64) uint16_t bf16[128];
    alignas(64) uint8_t low[128];
    alignas(64) uint8_t high[128];
};

constexpr E4m3Table make_e4m3_table() {
    E4m3Table out{};
    for (uint32_t code = 0; code < 128; ++code) {
        const uint32_t exponent = code >> 3, mantissa = code & 7;
        uint32_t value = (exponent + 120) << 7 | mantissa << 4;  // 2^(exponent - 7) * (1 + mantissa / 8)
        if (exponent == 0) {                                     // mantissa * 2^-9
            value = mantissa == 0   ? 0
                    : mantissa == 1 ? 118 << 7
                    : mantissa < 4  ? 119 << 7 | (mantissa - 2) << 6
                                    : 120 << 7 | (mantissa - 4) << 5;
        }
        if (code == 127) value = 0x7fc0;
        out.bf16[code] = static_cast<uint16_t>(value);
        out.low[code] = static_cast<uint8_t>(value);
        out.high[code] = static_cast<uint8_t>(value >> 8);
    }
    return out;
}

constexpr E4m3Table kE4m3 = make_e4m3_table();

}  // namespace
}  // namespace kt
