// What attention needs of sixteen lanes beside simd_avx512-inl.h. Same names as lanes_scalar-inl.h.
#pragma once

#include "kernels/simd_avx512-inl.h"

namespace kt {
namespace {

KT_INLINE F32x16 all_lanes(float x) {
    return {_mm512_set1_ps(x)};
}

KT_INLINE F32x16 add(F32x16 a, F32x16 b) {
    return {_mm512_add_ps(a.v, b.v)};
}

KT_INLINE F32x16 multiply(F32x16 a, F32x16 b) {
    return {_mm512_mul_ps(a.v, b.v)};
}

KT_INLINE F32x16 smaller(F32x16 a, F32x16 b) {
    return {_mm512_min_ps(a.v, b.v)};
}

KT_INLINE F32x16 larger(F32x16 a, F32x16 b) {
    return {_mm512_max_ps(a.v, b.v)};
}

KT_INLINE float largest(F32x16 a) {
    return _mm512_reduce_max_ps(a.v);
}

KT_INLINE uint32_t at_least(F32x16 a, F32x16 b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}

KT_INLINE void put_places(uint32_t lanes, uint32_t first, uint32_t* to) {
    const __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i all = _mm512_add_epi32(place, _mm512_set1_epi32(static_cast<int>(first)));
    // Compressed in a register: straight to memory takes a hundred cycles on Zen 4.
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(lanes), all));
}

KT_INLINE F32x16 keep(uint32_t lanes, F32x16 x, float other) {
    return {_mm512_mask_blend_ps(static_cast<__mmask16>(lanes), _mm512_set1_ps(other), x.v)};
}

KT_INLINE F32x16 divide(F32x16 a, F32x16 b) {
    return {_mm512_div_ps(a.v, b.v)};
}

}  // namespace
}  // namespace kt

#include "exp-inl.h"

namespace kt {
namespace {

KT_INLINE F32x16 exp(F32x16 x) {
    const __m512 limited =
        _mm512_min_ps(_mm512_set1_ps(kExpHigh), _mm512_max_ps(_mm512_set1_ps(kExpLow), x.v));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(limited, _mm512_set1_ps(kLog2E)), 8);
    const F32x16 r = {
        _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Low), _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2High), limited))};
    return {_mm512_scalef_ps(exp_series(r).v, n)};
}

KT_INLINE void store_bf16(void* p, F32x16 x) {
#ifdef KT_BF16
    _mm256_storeu_si256(static_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x.v));
#else
    const __m512i bits = _mm512_srli_epi32(rounded_bf16(x.v), 16);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bits));
#endif
}

KT_INLINE void turn_pairs(const uint8_t* keys, uint8_t* values) {
    const __m512i swap =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    __m512i in[8], by2[8], by4[8];
    KT_UNROLL for (int i = 0; i < 8; ++i) {
        in[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(keys + kStepBytes * i), swap);
    }
    KT_UNROLL for (int i = 0; i < 8; i += 2) {  // by2[i]: even 64-bit columns of rows i, i + 1
        by2[i] = _mm512_unpacklo_epi64(in[i], in[i + 1]);
        by2[i + 1] = _mm512_unpackhi_epi64(in[i], in[i + 1]);
    }
    KT_UNROLL for (int i = 0; i < 8; i += 4) {
        KT_UNROLL for (int j = 0; j < 2; ++j) {
            by4[i + j] = _mm512_shuffle_i64x2(by2[i + j], by2[i + j + 2], 0x88);      // columns j, j + 4
            by4[i + j + 2] = _mm512_shuffle_i64x2(by2[i + j], by2[i + j + 2], 0xdd);  // columns j + 2, j + 6
        }
    }
    KT_UNROLL for (int j = 0; j < 4; ++j) {
        _mm512_storeu_si512(values + kStepBytes * j, _mm512_shuffle_i64x2(by4[j], by4[j + 4], 0x88));
        _mm512_storeu_si512(values + kStepBytes * (j + 4), _mm512_shuffle_i64x2(by4[j], by4[j + 4], 0xdd));
    }
}

}  // namespace
}  // namespace kt
