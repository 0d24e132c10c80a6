// Small helpers of the kernel text. Re-included by every tier, always in an anonymous namespace.
#pragma once

#include "kt/table.h"

#define KT_INLINE inline __attribute__((always_inline))
// Row loops must be unrolled fully, else accumulators live in memory; GCC's own limit is too low for 8 rows.
#define KT_UNROLL _Pragma("GCC unroll 16")
// A loop for the compiler to vectorise: its iterations do not depend on each other, and it is not to be
// unrolled away before that, as GCC does with 16 iterations.
#define KT_VECTORISE _Pragma("GCC ivdep") _Pragma("GCC unroll 1")

namespace kt {
namespace {

template <class T>
KT_INLINE T load_as(const void* p) {
    T value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
}

template <class T>
KT_INLINE void store_as(void* p, T value) {
    __builtin_memcpy(p, &value, sizeof value);
}

// What was written lies in memory from here on. GCC 12 takes ldtilecfg to read eight bytes, and loads of
// tiles none, and leaves the rest of a local configuration unwritten.
KT_INLINE void write_out(const void* p) {
    __asm__ volatile("" ::"r"(p) : "memory");
}

KT_INLINE float bits_to_f32(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

KT_INLINE uint32_t f32_to_bits(float x) {
    return __builtin_bit_cast(uint32_t, x);
}

// Round to nearest even; a NaN stays a (quiet) NaN.
KT_INLINE uint16_t f32_to_bf16(float x) {
    const uint32_t bits = f32_to_bits(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

// How far ahead of their use weights are asked for, and where reading ends, to go on `jump` further. Always:
// also with fewer rows than a format wants. A type and no branch: with a branch one row of Q6_K and of Q5_0
// fell below the 60 % of read that tests/bench/test_speed.py asks for on Zen 4.
template <bool Always>
struct Asking {
    static constexpr bool always = Always;
    size_t bytes;
    const uint8_t* end;
    ptrdiff_t jump;
};

// What the first rows that meet a panel ask for, in bytes from where they are; the others find it in a cache
// and ask for the next panel, so that the memory is never idle while they multiply.
constexpr size_t kAhead = 8192;

// Asks for Bytes that lie so far ahead, into the second cache: the core's own look-ahead brings them from
// there. The more arithmetic between two loads, the fewer rows hide the stream from that look-ahead (on Zen
// 4, of panels from memory: FP8_BLOCK, 2 rows, 69 -> 94 GFLOP/s; Q6_K, 3 rows, 85 -> 183); with fewer rows a
// kernel runs at the memory's rate by itself and the extra instructions cost (Q8_0, 2 rows, 88 -> 74). All
// lines must be asked for: one that is left out in twenty waits for the memory alone (INT4, 4 rows, 170 in
// place of 290).
// Where the core's look-ahead ends with a page, one row gains as well: of the reading rate on 16 threads of
// an Emerald Rapids Xeon, BF16 97 -> 126 %, Q4_K 85 -> 121, FP8_BLOCK 77 -> 114, IQ2_XXS 57 -> 90 (8 KiB
// ahead; 2 KiB 113, 104, 99, 87; 16 KiB as 8; into the first cache no better). Plain reading itself gains,
// see ReadProbe.
template <int R, size_t Bytes, int From = 3, bool Always>
KT_INLINE void prefetch(const uint8_t* panel, const Asking<Always>& ask) {
    constexpr int kSecondCache = 2;
    if constexpr (R >= From || Always) {
        const uint8_t* at = panel + ask.bytes;
        if (at >= ask.end) at += ask.jump;
        for (size_t line = 0; line < Bytes; line += 64) __builtin_prefetch(at + line, 0, kSecondCache);
    }
}

}  // namespace
}  // namespace kt
