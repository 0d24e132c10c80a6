// Sixteen lanes as two 256-bit vectors (AVX2, FMA, F16C). Same names as simd_scalar-inl.h.
#pragma once

#include <immintrin.h>

#include "common-inl.h"

namespace kt {
namespace {

constexpr int kRowBlock = 4;  // 8 accumulators of 16 registers; more rows would spill in the inner loop
constexpr int kTileRows = 6, kTilePanels = 1;  // 12 accumulators, 2 weights, 1 activation

struct F32x16 {
    __m256 lo, hi;
};
struct I32x16 {
    __m256i lo, hi;
};
struct Bytes {
    __m256i lo, hi;
};

KT_INLINE __m256i load_256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

KT_INLINE const uint8_t* bytes_at(const void* p, size_t offset) {
    return static_cast<const uint8_t*>(p) + offset;
}

KT_INLINE F32x16 zero_f32() {
    return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}

KT_INLINE F32x16 load_f32(const void* p) {
    return {_mm256_castsi256_ps(load_256(p)), _mm256_castsi256_ps(load_256(bytes_at(p, 32)))};
}

KT_INLINE void store(float* p, F32x16 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}

KT_INLINE F32x16 load_f16(const void* p) {
    const __m256i h = load_256(p);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

KT_INLINE F32x16 multiply_add(F32x16 a, float b, F32x16 c) {
    const __m256 all = _mm256_set1_ps(b);
    return {_mm256_fmadd_ps(a.lo, all, c.lo), _mm256_fmadd_ps(a.hi, all, c.hi)};
}

KT_INLINE F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

KT_INLINE F32x16 multiply(F32x16 a, float b) {
    const __m256 all = _mm256_set1_ps(b);
    return {_mm256_mul_ps(a.lo, all), _mm256_mul_ps(a.hi, all)};
}

KT_INLINE F32x16 to_f32(I32x16 a) {
    return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

// ---- bf16: widened to float32, two fused multiply-adds a pair ----

struct Pairs {
    F32x16 even, odd;
};

KT_INLINE __m256 even_half(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

KT_INLINE __m256 odd_half(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

KT_INLINE Pairs load_pairs(const void* p) {
    const __m256i a = load_256(p), b = load_256(bytes_at(p, 32));
    return {{even_half(a), even_half(b)}, {odd_half(a), odd_half(b)}};
}

KT_INLINE F32x16 dot_pairs(F32x16 sum, const Pairs& w, const uint8_t* activation) {
    const __m256i pair = _mm256_set1_epi32(load_as<int32_t>(activation));
    const __m256 even = even_half(pair), odd = odd_half(pair);
    return {_mm256_fmadd_ps(w.odd.lo, odd, _mm256_fmadd_ps(w.even.lo, even, sum.lo)),
            _mm256_fmadd_ps(w.odd.hi, odd, _mm256_fmadd_ps(w.even.hi, even, sum.hi))};
}

// Upper halves rounded to nearest even; a NaN keeps its upper half and becomes quiet.
KT_INLINE __m256i rounded_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

KT_INLINE __m256i join_pairs(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(rounded_bf16(even), 16), rounded_bf16(odd), 0xaa);
}

// Two values of k for 16 rows as one vector of a BF16 panel, rounded to nearest even.
KT_INLINE void store_pairs(uint16_t* out, F32x16 even, F32x16 odd) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), join_pairs(even.lo, odd.lo));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + 1, join_pairs(even.hi, odd.hi));
}

// ---- int8 weights stored with 128 added ----
//
// vpmaddubsw adds two u8 x s8 products in a saturating int16, so the unsigned operand is |w| and the
// activation takes w's sign. |w| <= 128 and |a| <= 127 (the preparation clamps to 127, so the sign flip
// cannot overflow): a pair is at most 2 * 128 * 127 = 32512 < 32767 and never saturates.

KT_INLINE Bytes load_bytes(const void* p) {
    return {load_256(p), load_256(bytes_at(p, 32))};
}

struct Signed {
    Bytes value, magnitude;
};

KT_INLINE Signed minus_128(Bytes w) {
    const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));  // u - 128 is u with its top bit flipped
    const __m256i lo = _mm256_xor_si256(w.lo, top), hi = _mm256_xor_si256(w.hi, top);
    return {{lo, hi}, {_mm256_abs_epi8(lo), _mm256_abs_epi8(hi)}};
}

template <int First, int Second>
KT_INLINE I32x16 start_128(const uint8_t*) {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}

// Added here and now: GCC 12 would keep all products of a group until its end, on the stack (Q8_0 with 256
// rows, Zen 3: 26 to 30 % of the int8 peak, so 31 to 33).
KT_INLINE __m256i summed(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

KT_INLINE __m256i add_pairs(__m256i sum, __m256i products) {
    return summed(_mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1))));
}

KT_INLINE I32x16 dot(I32x16 sum, const Signed& w, const int8_t* activation) {
    const __m256i a = _mm256_set1_epi32(load_as<int32_t>(activation));
    return {add_pairs(sum.lo, _mm256_maddubs_epi16(w.magnitude.lo, _mm256_sign_epi8(a, w.value.lo))),
            add_pairs(sum.hi, _mm256_maddubs_epi16(w.magnitude.hi, _mm256_sign_epi8(a, w.value.hi)))};
}

// ---- decoding: four values of k for 16 rows, byte * scale + offset, as two vectors of a BF16 panel ----

template <int J>
KT_INLINE F32x16 byte_to_f32(Bytes w) {
    const __m256i mask = _mm256_set1_epi32(0xff);
    return {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(w.lo, 8 * J), mask)),
            _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(w.hi, 8 * J), mask))};
}

KT_INLINE void store_scaled(uint16_t* out, Bytes w, F32x16 scale, F32x16 offset) {
    store_pairs(out, multiply_add(byte_to_f32<0>(w), scale, offset),
                multiply_add(byte_to_f32<1>(w), scale, offset));
    store_pairs(out + 32, multiply_add(byte_to_f32<2>(w), scale, offset),
                multiply_add(byte_to_f32<3>(w), scale, offset));
}

// ---- 4-bit weights, unsigned ----
//
// A pair of products is at most 2 * 15 * 127 = 3810, and a group has 8 of them for each int16 lane:
// 30480 < 32767. So a whole group is summed in int16 and widened once.

KT_INLINE Bytes low_nibbles(Bytes w) {
    const __m256i mask = _mm256_set1_epi8(0x0f);
    return {_mm256_and_si256(w.lo, mask), _mm256_and_si256(w.hi, mask)};
}

KT_INLINE Bytes high_nibbles(Bytes w) {
    return low_nibbles({_mm256_srli_epi16(w.lo, 4), _mm256_srli_epi16(w.hi, 4)});
}

struct NibbleSum {
    __m256i lo, hi;  // int16, two lanes for each row
};

KT_INLINE NibbleSum nibble_start() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}

KT_INLINE NibbleSum nibble_dot(NibbleSum sum, Bytes w, const int8_t* activation) {
    const __m256i a = _mm256_set1_epi32(load_as<int32_t>(activation));
    return {summed(_mm256_add_epi16(sum.lo, _mm256_maddubs_epi16(w.lo, a))),
            summed(_mm256_add_epi16(sum.hi, _mm256_maddubs_epi16(w.hi, a)))};
}

KT_INLINE I32x16 nibble_total(NibbleSum sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(sum.lo, ones), _mm256_madd_epi16(sum.hi, ones)};
}

}  // namespace
}  // namespace kt
