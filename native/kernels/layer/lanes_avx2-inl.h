// What attention needs of sixteen lanes beside simd_avx2-inl.h. Same names as lanes_scalar-inl.h.
#pragma once

#include "kernels/simd_avx2-inl.h"

namespace kt {
namespace {

KT_INLINE F32x16 all_lanes(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

KT_INLINE F32x16 add(F32x16 a, F32x16 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

KT_INLINE F32x16 divide(F32x16 a, F32x16 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

KT_INLINE F32x16 multiply(F32x16 a, F32x16 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

KT_INLINE F32x16 smaller(F32x16 a, F32x16 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

KT_INLINE F32x16 larger(F32x16 a, F32x16 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

KT_INLINE float largest(F32x16 a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

KT_INLINE uint32_t at_least(F32x16 a, F32x16 b) {
    const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ));
    const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
    return static_cast<uint32_t>(lo) | static_cast<uint32_t>(hi) << 8;
}

KT_INLINE void put_places(uint32_t lanes, uint32_t first, uint32_t* to) {
    for (; lanes; lanes &= lanes - 1) *to++ = first + static_cast<uint32_t>(__builtin_ctz(lanes));
}

KT_INLINE __m256 keep_eight(uint32_t lanes, __m256 x, float other) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(lanes)), bit);
    return _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit)));
}

KT_INLINE F32x16 keep(uint32_t lanes, F32x16 x, float other) {
    return {keep_eight(lanes, x.lo, other), keep_eight(lanes >> 8, x.hi, other)};
}

}  // namespace
}  // namespace kt

#include "exp-inl.h"

namespace kt {
namespace {

struct Power {
    __m256 n, r;
    __m256i bits;
};

KT_INLINE Power power(__m256 x) {
    const __m256 limited = _mm256_min_ps(_mm256_set1_ps(kExpHigh), _mm256_max_ps(_mm256_set1_ps(kExpLow), x));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(limited, _mm256_set1_ps(kLog2E)), 8);
    const __m256 r =
        _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Low), _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2High), limited));
    return {n, r, _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)};
}

KT_INLINE F32x16 exp(F32x16 x) {
    const Power lo = power(x.lo), hi = power(x.hi);
    const F32x16 series = exp_series({lo.r, hi.r});
    return {_mm256_mul_ps(series.lo, _mm256_castsi256_ps(lo.bits)),
            _mm256_mul_ps(series.hi, _mm256_castsi256_ps(hi.bits))};
}

KT_INLINE void store_bf16(void* p, F32x16 x) {
    const __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(rounded_bf16(x.lo), 16),
                                             _mm256_srli_epi32(rounded_bf16(x.hi), 16));
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xd8));
}

KT_INLINE void turn_pairs(const uint8_t* keys, uint8_t* values) {
    turn_pairs_plain(keys, values);
}

}  // namespace
}  // namespace kt
