// What formats of small floats, and scales of other kinds than float16, need besides simd_avx2_blocks-inl.h.
// Same names as simd_scalar_floats-inl.h.
#pragma once

#include "simd_avx2_blocks-inl.h"

namespace kt {
namespace {

KT_INLINE __m256 widen_bf16(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16));
}

KT_INLINE F32x16 load_bf16(const uint8_t* p) {
    return {widen_bf16(p), widen_bf16(p + 16)};
}

KT_INLINE F32x16 load_e8m0(const uint8_t* p) {
    const I32x16 e = load_u8(p);
    const __m128i next = _mm_add_epi8(load_128(p), _mm_set1_epi8(1));
    const __m128i odd = _mm_cmpeq_epi8(_mm_min_epu8(next, _mm_set1_epi8(1)), next);  // e is 0 or 255
    const __m256i top = _mm256_set1_epi32(0x400000);
    const __m256i lo = _mm256_and_si256(_mm256_cvtepi8_epi32(odd), top);
    const __m256i hi = _mm256_and_si256(_mm256_cvtepi8_epi32(_mm_srli_si128(odd, 8)), top);
    return {_mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(e.lo, 23), lo)),
            _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(e.hi, 23), hi))};
}

KT_INLINE F32x16 load_e4m3_scales(const uint8_t* p) {
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_128(p)), 7);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

KT_INLINE __m256i twice(__m256i x) {
    return _mm256_blend_epi16(x, _mm256_slli_epi32(x, 16), 0xaa);
}

KT_INLINE I32x16 load_zeros(const uint8_t* p) {
    const I32x16 x = load_s8(p);
    return {twice(x.lo), twice(x.hi)};
}

KT_INLINE I32x16 all_zeros(int8_t value) {
    return {_mm256_set1_epi16(value), _mm256_set1_epi16(value)};
}

KT_INLINE I32x16 times_sums(I32x16 zeros, const uint8_t* p) {
    const __m256i sums = _mm256_set1_epi32(load_as<int32_t>(p));
    return {_mm256_madd_epi16(zeros.lo, sums), _mm256_madd_epi16(zeros.hi, sums)};
}

KT_INLINE F32x16 even_of(const Pairs& w) {
    return w.even;
}

KT_INLINE F32x16 odd_of(const Pairs& w) {
    return w.odd;
}

struct Fours {
    Pairs first, second;
};

// A code in a float16's upper byte, shifted right below the sign, is the value times 2^-8, subnormals
// included. NaN is set apart.
constexpr float kE4m3Unit = 256;
constexpr int kChains = 1;

struct HalfPairs {
    __m256 even, odd;
};

// Two k of 8 rows; Offset: where they lie in each lane of 4 rows.
template <int Offset>
KT_INLINE HalfPairs e4m3_pairs(__m256i codes) {
    constexpr int e = Offset, o = Offset + 1, z = -1;
    const __m128i order =
        _mm_setr_epi8(z, e, z, e + 2, z, e + 4, z, e + 6, z, o, z, o + 2, z, o + 4, z, o + 6);
    const __m256i spread = _mm256_shuffle_epi8(codes, _mm256_broadcastsi128_si256(order));
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(spread, 1), _mm256_set1_epi16(-0x4001));
    const __m256i all = _mm256_set1_epi16(0x3f80);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, all), all);
    const __m256i value = _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7fff)));
    const __m256i rows = _mm256_permute4x64_epi64(value, 0xd8);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(rows)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(rows, 1))};
}

KT_INLINE Fours load_e4m3(const uint8_t* p) {
    const __m256i lo = load_256(p), hi = load_256(p + 32);
    const HalfPairs a = e4m3_pairs<0>(lo), b = e4m3_pairs<0>(hi);
    const HalfPairs c = e4m3_pairs<8>(lo), d = e4m3_pairs<8>(hi);
    return {{{a.even, b.even}, {a.odd, b.odd}}, {{c.even, d.even}, {c.odd, d.odd}}};
}

}  // namespace
}  // namespace kt
