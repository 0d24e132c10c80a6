// The peak of each arithmetic unit: independent chains of the tier's own product, operands in registers.
// What the file was compiled for decides; nothing is loaded or stored, so only the units can be the limit.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "common-inl.h"

namespace kt {
namespace {

// Two units of a latency of 4 to 6 cycles have 12 products under way, and of 16 registers some are left.
constexpr int kPeakChains = 12;

// What the compiler may keep in a vector register.
#if defined(__aarch64__)
#define KT_REGISTER "w"
#elif defined(__AVX512F__)
#define KT_REGISTER "v"
#else
#define KT_REGISTER "x"
#endif

#if defined(__AVX512F__)
struct PeakFloats {
    __m512 v;
};
struct PeakBytes {
    __m512i v;
};

KT_INLINE PeakFloats peak_floats() {
    return {_mm512_set1_ps(0.5f)};
}

KT_INLINE PeakBytes peak_bytes() {
    return {_mm512_set1_epi8(1)};
}

KT_INLINE void peak_step(PeakFloats& sum, const PeakFloats& x) {
    sum.v = _mm512_fmadd_ps(x.v, x.v, sum.v);
}

KT_INLINE void peak_step(PeakBytes& sum, const PeakBytes& x) {
#if defined(__AVX512VNNI__)
    sum.v = _mm512_dpbusd_epi32(sum.v, x.v, x.v);
#else
    sum.v = _mm512_add_epi16(sum.v, _mm512_maddubs_epi16(x.v, x.v));
#endif
}
#elif defined(__AVX2__)
struct PeakFloats {
    __m256 v;
};
struct PeakBytes {
    __m256i v;
};

KT_INLINE PeakFloats peak_floats() {
    return {_mm256_set1_ps(0.5f)};
}

KT_INLINE PeakBytes peak_bytes() {
    return {_mm256_set1_epi8(1)};
}

KT_INLINE void peak_step(PeakFloats& sum, const PeakFloats& x) {
    sum.v = _mm256_fmadd_ps(x.v, x.v, sum.v);
}

KT_INLINE void peak_step(PeakBytes& sum, const PeakBytes& x) {
    sum.v = _mm256_add_epi16(sum.v, _mm256_maddubs_epi16(x.v, x.v));
}
#else
// Products and sums are not fused on this tier. The compiler makes what it can of int8 products: no unit of
// their own.
struct PeakFloats {
    float v __attribute__((vector_size(16)));
};
using PeakBytes = PeakFloats;

KT_INLINE PeakFloats peak_floats() {
    PeakFloats x{};
    x.v += 0.5f;
    return x;
}

KT_INLINE PeakBytes peak_bytes() {
    return peak_floats();
}

KT_INLINE void peak_step(PeakFloats& sum, const PeakFloats& x) {
    sum.v += x.v * x.v;
}
#endif

// Chains must look different to the compiler, and no product may be taken out of the loop.
template <class V>
KT_INLINE void hide(V& x) {
    __asm__ volatile("" : "+" KT_REGISTER(x.v));
}

template <class V, class Step>
KT_INLINE void keep_busy(size_t rounds, V x, Step step) {
    V sums[kPeakChains];
    KT_UNROLL for (int i = 0; i < kPeakChains; ++i) {
        sums[i] = x;
        hide(sums[i]);
    }
    for (; rounds > 0; --rounds) {
        KT_UNROLL for (int i = 0; i < kPeakChains; ++i) {
            hide(x);
            step(sums[i], x);
        }
    }
    KT_UNROLL for (int i = 0; i < kPeakChains; ++i) hide(sums[i]);
}

// A product and a sum for each value of a vector.
template <class Value, class V>
constexpr double operations(size_t rounds) {
    return 2.0 * kPeakChains * (sizeof(V) / sizeof(Value)) * static_cast<double>(rounds);
}

double peak_f32(size_t rounds) {
    keep_busy(rounds, peak_floats(), [](PeakFloats& sum, const PeakFloats& x) { peak_step(sum, x); });
    return operations<float, PeakFloats>(rounds);
}

#if defined(__AVX512BF16__)
double peak_bf16(size_t rounds) {
    keep_busy(rounds, peak_floats(), [](PeakFloats& sum, const PeakFloats& x) {
        sum.v = _mm512_dpbf16_ps(sum.v, (__m512bh)x.v, (__m512bh)x.v);
    });
    return operations<uint16_t, PeakFloats>(rounds);
}
#else
constexpr PeakFn peak_bf16 = peak_f32;  // widened to float32
#endif

#if defined(__AVX2__)
double peak_int8(size_t rounds) {
    keep_busy(rounds, peak_bytes(), [](PeakBytes& sum, const PeakBytes& x) { peak_step(sum, x); });
    return operations<int8_t, PeakBytes>(rounds);
}
#else
constexpr PeakFn peak_int8 = peak_f32;
#endif

#if defined(__AMX_TILE__)
// Four result tiles, as the prefill kernel has. The operands are numbers from 1 to 2 of either sign: on an
// Emerald Rapids Xeon four products of zeros took 30 ns, of numbers 67, with no load between them.
template <class Multiply>
KT_INLINE double keep_tiles_busy(size_t rounds, double values, Multiply multiply) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    constexpr size_t kValues = 512;  // bfloat16 of a tile
    alignas(64) uint16_t operands[4 * kValues];
    uint32_t state = 1;
    for (uint16_t& value : operands) {
        state = state * 1664525 + 1013904223;
        value = static_cast<uint16_t>(0x3f80 | (state >> 31) << 15 | (state >> 24 & 0x7f));
    }
    write_out(&config);
    write_out(operands);
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, operands, 64);
    _tile_loadd(5, operands + kValues, 64);
    _tile_loadd(6, operands + 2 * kValues, 64);
    _tile_loadd(7, operands + 3 * kValues, 64);
    for (size_t i = 0; i < rounds; ++i) multiply();
    _tile_release();
    return 4 * 2.0 * kPanelRows * 16 * values * static_cast<double>(rounds);
}

double peak_tile_bf16(size_t rounds) {
    return keep_tiles_busy(rounds, 32, [] {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    });
}

double peak_tile_int8(size_t rounds) {
    return keep_tiles_busy(rounds, 64, [] {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    });
}
#else
constexpr PeakFn peak_tile_bf16 = nullptr, peak_tile_int8 = nullptr;
#endif

// By Unit; the first are those of the policies, in their order.
constexpr PeakFn kPeaks[kUnits] = {peak_f32, peak_bf16, peak_int8, peak_tile_bf16, peak_tile_int8};

}  // namespace
}  // namespace kt
