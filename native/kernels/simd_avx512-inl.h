// Sixteen lanes as one 512-bit vector. Same names as simd_scalar-inl.h. The including file may define
// KT_VNNI (vpdpbusd), KT_BF16 (vdpbf16ps) or KT_VBMI (vpermb); without them AVX-512 F, BW, DQ and VL
// suffice.
#pragma once

#include <immintrin.h>

#include "common-inl.h"

namespace kt {
namespace {

constexpr int kRowBlock = 8;                    // 8 integer and 8 float accumulators of 32 registers
constexpr int kTileRows = 12, kTilePanels = 2;  // 24 float accumulators, 2 weights, 1 activation

struct F32x16 {
    __m512 v;
};
struct I32x16 {
    __m512i v;
};
struct Bytes {
    __m512i v;
};

KT_INLINE F32x16 zero_f32() {
    return {_mm512_setzero_ps()};
}

KT_INLINE F32x16 load_f32(const void* p) {
    return {_mm512_loadu_ps(p)};
}

KT_INLINE void store(float* p, F32x16 x) {
    _mm512_storeu_ps(p, x.v);
}

KT_INLINE F32x16 load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

KT_INLINE F32x16 multiply_add(F32x16 a, float b, F32x16 c) {
    return {_mm512_fmadd_ps(a.v, _mm512_set1_ps(b), c.v)};
}

KT_INLINE F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}

KT_INLINE F32x16 multiply(F32x16 a, float b) {
    return {_mm512_mul_ps(a.v, _mm512_set1_ps(b))};
}

KT_INLINE F32x16 to_f32(I32x16 a) {
    return {_mm512_cvtepi32_ps(a.v)};
}

KT_INLINE __m512i broadcast(const void* p) {
    return _mm512_set1_epi32(load_as<int32_t>(p));
}

// As an operand in memory.
KT_INLINE const char (&four_bytes(const void* p))[4] {
    return *static_cast<const char (*)[4]>(p);
}

// ---- bf16 ----

#ifdef KT_BF16
// vdpbf16ps adds the odd product, then the even one, each step rounded to nearest even, and treats
// subnormal inputs and results as zero whatever MXCSR says. Against the widening tiers that moves a
// result by rounding order, and by at most 2^-126 for each product: far inside the 2e-3 contract.
struct Pairs {
    __m512i v;
};

KT_INLINE Pairs load_pairs(const void* p) {
    return {_mm512_loadu_si512(p)};
}

KT_INLINE F32x16 dot_pairs(F32x16 sum, Pairs w, const uint8_t* activation) {
    // GCC 12 broadcasts in an instruction of its own.
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(w.v), "m"(four_bytes(activation)));
    return sum;
}
#else
struct Pairs {
    F32x16 even, odd;
};

KT_INLINE F32x16 even_half(__m512i pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
}

KT_INLINE F32x16 odd_half(__m512i pairs) {
    return {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}

KT_INLINE Pairs load_pairs(const void* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return {even_half(pairs), odd_half(pairs)};
}

KT_INLINE F32x16 dot_pairs(F32x16 sum, Pairs w, const uint8_t* activation) {
    const __m512i pair = broadcast(activation);
    return multiply_add(w.odd, odd_half(pair), multiply_add(w.even, even_half(pair), sum));
}
#endif

#ifdef KT_BF16
// Two values of k for 16 rows as one vector of a BF16 panel, rounded to nearest even; subnormals become zero.
KT_INLINE void store_pairs(uint16_t* out, F32x16 even, F32x16 odd) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(order, halves));
}
#else
// Upper halves rounded to nearest even; a NaN keeps its upper half and becomes quiet.
KT_INLINE __m512i rounded_bf16(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}

// Two values of k for 16 rows as one vector of a BF16 panel, rounded to nearest even.
KT_INLINE void store_pairs(uint16_t* out, F32x16 even, F32x16 odd) {
    const __m512i low = _mm512_srli_epi32(rounded_bf16(even.v), 16);
    _mm512_storeu_si512(out, _mm512_mask_blend_epi16(0xaaaaaaaa, low, rounded_bf16(odd.v)));
}
#endif

// -(First * sums[0] + Second * sums[1]) in every lane; sums points at Group32::sums. Factors are powers of
// two, since shifts run beside dot products and multiplications do not.
template <int First, int Second>
KT_INLINE I32x16 minus_sums(const uint8_t* sums) {
    constexpr int kFactor = First | Second, kShift = kFactor ? __builtin_ctz(kFactor) : 0;
    static_assert((First == Second || !First || !Second) && (kFactor & (kFactor - 1)) == 0);
    if constexpr (kFactor == 0) return {_mm512_setzero_si512()};
    if constexpr (First == Second) {
        constexpr size_t kMinus = offsetof(Group32, minus) - offsetof(Group32, sums);
        return {_mm512_slli_epi32(broadcast(sums + kMinus), kShift)};
    }
    const __m512i both = broadcast(sums);
    const __m512i half = First ? _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16 - kShift)
                               : _mm512_slli_epi32(_mm512_srai_epi32(both, 16), kShift);
    return {_mm512_sub_epi32(_mm512_setzero_si512(), half)};
}

#ifdef KT_VNNI
KT_INLINE __m512i dot_bytes(__m512i sum, __m512i w, const void* activation) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(four_bytes(activation)));
    return sum;
}
#endif

// ---- int8 weights stored with 128 added ----

KT_INLINE Bytes load_bytes(const void* p) {
    return {_mm512_loadu_si512(p)};
}

#ifdef KT_VNNI
// vpdpbusd takes the stored unsigned byte as it is. The accumulator starts at -128 * sum(a), which
// removes the zero point without an instruction in the loop. The int32 sum stays below
// 32 * 255 * 127 + 128 * 32 * 127 < 2^21.
using Signed = Bytes;

KT_INLINE Signed minus_128(Bytes w) {
    return w;
}

template <int First, int Second>
KT_INLINE I32x16 start_128(const uint8_t* sums) {
    return minus_sums<128 * First, 128 * Second>(sums);
}

KT_INLINE I32x16 dot(I32x16 sum, Signed w, const int8_t* activation) {
    return {dot_bytes(sum.v, w.v, activation)};
}
#else
// vpmaddubsw saturates at 32767, so the unsigned operand is |w| <= 128 and the activation, |a| <= 127,
// takes w's sign: a pair is at most 2 * 128 * 127 = 32512 and never saturates.
struct Signed {
    __m512i magnitude;
    __mmask64 negative;
};

KT_INLINE Signed minus_128(Bytes w) {
    const __m512i value = _mm512_xor_si512(w.v, _mm512_set1_epi8(static_cast<char>(0x80)));
    return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
}

template <int First, int Second>
KT_INLINE I32x16 start_128(const uint8_t*) {
    return {_mm512_setzero_si512()};
}

KT_INLINE I32x16 dot(I32x16 sum, const Signed& w, const int8_t* activation) {
    const __m512i a = broadcast(activation);
    const __m512i with_sign = _mm512_mask_sub_epi8(a, w.negative, _mm512_setzero_si512(), a);
    const __m512i pairs = _mm512_maddubs_epi16(w.magnitude, with_sign);
    return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#endif

// ---- decoding: four values of k for 16 rows, byte * scale + offset, as two vectors of a BF16 panel ----

#if defined(KT_VBMI) && defined(KT_BF16)
// Byte permutes bring the values straight into the panel's order, 8 rows by 2 values of k to a vector: 8
// instructions for 32 values, where the general way below takes 23.
template <int First>
KT_INLINE __m512 scaled_rows(Bytes w, F32x16 scale, F32x16 offset) {
    constexpr int kRow = First / 4;
    const __m512i rows = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                          _mm512_set1_epi32(kRow));
    const __m512i bytes =
        _mm512_add_epi32(_mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29),
                         _mm512_set1_epi32(First));
    const __m512i values = _mm512_maskz_permutexvar_epi8(0x1111111111111111, bytes, w.v);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(values), _mm512_permutexvar_ps(rows, scale.v),
                           _mm512_permutexvar_ps(rows, offset.v));
}

KT_INLINE void store_scaled(uint16_t* out, Bytes w, F32x16 scale, F32x16 offset) {
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(scaled_rows<32>(w, scale, offset),
                                                          scaled_rows<0>(w, scale, offset)));
    _mm512_storeu_si512(out + 32, (__m512i)_mm512_cvtne2ps_pbh(scaled_rows<34>(w, scale, offset),
                                                               scaled_rows<2>(w, scale, offset)));
}
#else
template <int J>
KT_INLINE F32x16 byte_to_f32(Bytes w) {
    return {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(w.v, 8 * J), _mm512_set1_epi32(0xff)))};
}

KT_INLINE void store_scaled(uint16_t* out, Bytes w, F32x16 scale, F32x16 offset) {
    store_pairs(out, multiply_add(byte_to_f32<0>(w), scale, offset),
                multiply_add(byte_to_f32<1>(w), scale, offset));
    store_pairs(out + 32, multiply_add(byte_to_f32<2>(w), scale, offset),
                multiply_add(byte_to_f32<3>(w), scale, offset));
}
#endif

// ---- 4-bit weights, unsigned ----

KT_INLINE Bytes low_nibbles(Bytes w) {
    return {_mm512_and_si512(w.v, _mm512_set1_epi8(0x0f))};
}

KT_INLINE Bytes high_nibbles(Bytes w) {
    return low_nibbles({_mm512_srli_epi16(w.v, 4)});
}

struct NibbleSum {
    __m512i v;
};

KT_INLINE NibbleSum nibble_start() {
    return {_mm512_setzero_si512()};
}

#ifdef KT_VNNI
KT_INLINE NibbleSum nibble_dot(NibbleSum sum, Bytes w, const int8_t* activation) {
    return {dot_bytes(sum.v, w.v, activation)};
}

KT_INLINE I32x16 nibble_total(NibbleSum sum) {
    return {sum.v};
}
#else
// A pair of products is at most 2 * 15 * 127 = 3810, a group has 8 of them for each int16 lane:
// 30480 < 32767. So a whole group is summed in int16 and widened once.
KT_INLINE NibbleSum nibble_dot(NibbleSum sum, Bytes w, const int8_t* activation) {
    return {_mm512_add_epi16(sum.v, _mm512_maddubs_epi16(w.v, broadcast(activation)))};
}

KT_INLINE I32x16 nibble_total(NibbleSum sum) {
    return {_mm512_madd_epi16(sum.v, _mm512_set1_epi16(1))};
}
#endif

}  // namespace
}  // namespace kt
