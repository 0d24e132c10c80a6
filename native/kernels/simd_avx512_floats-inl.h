// What formats of small floats, and scales of other kinds than float16, need besides
// simd_avx512_blocks-inl.h. Same names as simd_scalar_floats-inl.h.
#pragma once

#include "e4m3-inl.h"
#include "simd_avx512_blocks-inl.h"

namespace kt {
namespace {

KT_INLINE F32x16 load_bf16(const uint8_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}

KT_INLINE F32x16 load_e8m0(const uint8_t* p) {
    const __m128i e = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __mmask16 odd = _mm_cmple_epu8_mask(_mm_add_epi8(e, _mm_set1_epi8(1)), _mm_set1_epi8(1));
    const __m512i usual = _mm512_slli_epi32(_mm512_cvtepu8_epi32(e), 23);
    return {_mm512_castsi512_ps(_mm512_mask_or_epi32(usual, odd, usual, _mm512_set1_epi32(0x400000)))};
}

KT_INLINE F32x16 load_e4m3_scales(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7))};
}

KT_INLINE I32x16 load_zeros(const uint8_t* p) {
    const __m512i x = load_s8(p).v;
    return {_mm512_mask_blend_epi16(0xaaaaaaaa, x, _mm512_slli_epi32(x, 16))};
}

KT_INLINE I32x16 all_zeros(int8_t value) {
    return {_mm512_set1_epi16(value)};
}

KT_INLINE I32x16 times_sums(I32x16 zeros, const uint8_t* p) {
    return {_mm512_madd_epi16(zeros.v, broadcast(p))};
}

#ifdef KT_BF16
KT_INLINE Pairs pairs_of(__m512i bf16) {
    return {bf16};
}

KT_INLINE F32x16 even_of(Pairs w) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(w.v, 16))};
}

KT_INLINE F32x16 odd_of(Pairs w) {
    return {_mm512_castsi512_ps(_mm512_and_si512(w.v, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
#else
KT_INLINE Pairs pairs_of(__m512i bf16) {
    return {even_half(bf16), odd_half(bf16)};
}

KT_INLINE F32x16 even_of(const Pairs& w) {
    return w.even;
}

KT_INLINE F32x16 odd_of(const Pairs& w) {
    return w.odd;
}
#endif

struct Fours {
    Pairs first, second;
};

constexpr float kE4m3Unit = 1;
// One chain of vdpbf16ps takes 12 cycles for 64 weights, memory 8.
constexpr int kChains = 2;

constexpr int kFirstOrSecondAndThird = 0xf8;  // a | (b & c)

#ifdef KT_VBMI
// The two bytes of a bfloat16 magnitude each from a table of 128, and the sign: 5 instructions for 64
// weights.
KT_INLINE Fours load_e4m3(const uint8_t* p) {
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.low), codes, _mm512_load_si512(kE4m3.low + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.high), codes, _mm512_load_si512(kE4m3.high + 64));
    const __m512i high = _mm512_ternarylogic_epi32(
        magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), kFirstOrSecondAndThird);
    return {pairs_of(_mm512_unpacklo_epi8(low, high)), pairs_of(_mm512_unpackhi_epi8(low, high))};
}
#else
// Codes in both bytes of 16-bit lanes: the lower one chooses among 2 x 64 magnitudes, the upper has the sign.
KT_INLINE Pairs e4m3_pairs(__m512i codes) {
    const __m512i small =
        _mm512_permutex2var_epi16(_mm512_load_si512(kE4m3.bf16), codes, _mm512_load_si512(kE4m3.bf16 + 32));
    const __m512i large = _mm512_permutex2var_epi16(_mm512_load_si512(kE4m3.bf16 + 64), codes,
                                                    _mm512_load_si512(kE4m3.bf16 + 96));
    const __mmask32 upper = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    return pairs_of(_mm512_ternarylogic_epi32(_mm512_mask_blend_epi16(upper, small, large), codes,
                                              _mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                                              kFirstOrSecondAndThird));
}

KT_INLINE Fours load_e4m3(const uint8_t* p) {
    const __m512i codes = _mm512_loadu_si512(p);
    return {e4m3_pairs(_mm512_unpacklo_epi8(codes, codes)), e4m3_pairs(_mm512_unpackhi_epi8(codes, codes))};
}
#endif

}  // namespace
}  // namespace kt
