// What formats of small integers in blocks need besides simd_avx512-inl.h. Same names as
// simd_scalar_blocks-inl.h.
#pragma once

#include "simd_avx512-inl.h"

namespace kt {
namespace {

KT_INLINE I32x16 zero_i32() {
    return {_mm512_setzero_si512()};
}

struct BytePair {
    Bytes first, second;
};

#ifdef KT_VNNI
KT_INLINE I32x16 dot(I32x16 sum, const BytePair& w, const int8_t* activation) {
    return {dot_bytes(dot_bytes(sum.v, w.first.v, activation), w.second.v, activation + 4)};
}
#else
// Two pairs of products are at most 4 * 63 * 127 = 32004 < 32767.
KT_INLINE I32x16 dot(I32x16 sum, const BytePair& w, const int8_t* activation) {
    const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(w.first.v, broadcast(activation)),
                                           _mm512_maddubs_epi16(w.second.v, broadcast(activation + 4)));
    return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#endif

KT_INLINE __m512i signed_eight_rows(const uint8_t* values, const uint8_t* signs) {
    const __m512i all = _mm512_loadu_si512(values);
    return _mm512_mask_sub_epi8(all, load_as<__mmask64>(signs), _mm512_setzero_si512(), all);
}

KT_INLINE BytePair signed_eights(const uint8_t* values, const uint8_t* signs) {
    const __m512i a = signed_eight_rows(values, signs), b = signed_eight_rows(values + 64, signs + 8);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return {{_mm512_permutex2var_epi32(a, even, b)}, {_mm512_permutex2var_epi32(a, odd, b)}};
}

// ---- packing ----

KT_INLINE __m128i load_128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

KT_INLINE __m512i four_rows(const uint8_t* const* rows, size_t at) {
    __m512i all = _mm512_castsi128_si512(load_128(rows[0] + at));
    all = _mm512_inserti32x4(all, load_128(rows[4] + at), 1);
    all = _mm512_inserti32x4(all, load_128(rows[8] + at), 2);
    return _mm512_inserti32x4(all, load_128(rows[12] + at), 3);
}

KT_INLINE void load_columns(const uint8_t* const* rows, size_t at, Bytes* out) {
    const __m512i a = four_rows(rows, at), b = four_rows(rows + 1, at), c = four_rows(rows + 2, at),
                  d = four_rows(rows + 3, at);
    const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const __m512i ab2 = _mm512_unpackhi_epi32(a, b), cd2 = _mm512_unpackhi_epi32(c, d);
    out[0] = {_mm512_unpacklo_epi64(ab, cd)};
    out[1] = {_mm512_unpackhi_epi64(ab, cd)};
    out[2] = {_mm512_unpacklo_epi64(ab2, cd2)};
    out[3] = {_mm512_unpackhi_epi64(ab2, cd2)};
}

KT_INLINE Bytes by_byte(Bytes four) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i lanes = _mm512_shuffle_epi8(four.v, _mm512_broadcast_i32x4(order));
    const __m512i rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm512_permutexvar_epi32(rows, lanes)};
}

KT_INLINE Bytes plus_128(Bytes x) {
    return {_mm512_xor_si512(x.v, _mm512_set1_epi8(static_cast<char>(0x80)))};
}

// Shifts of 16-bit lanes carry bits over from the neighbouring byte; Mask must not select those.
template <int Shift>
KT_INLINE __m512i shifted(__m512i plane) {
    if constexpr (Shift < 0) return _mm512_srli_epi16(plane, -Shift);
    if constexpr (Shift > 0) return _mm512_slli_epi16(plane, Shift);
    return plane;
}

template <int Mask, int Shift>
KT_INLINE Bytes bits(Bytes plane) {
    return {_mm512_and_si512(shifted<Shift>(plane.v), _mm512_set1_epi8(static_cast<char>(Mask)))};
}

template <int Mask, int Shift>
KT_INLINE Bytes with_bits(Bytes w, Bytes plane) {
    constexpr int kFirstOrBoth = 0xf8;  // a | (b & c)
    return {_mm512_ternarylogic_epi32(w.v, shifted<Shift>(plane.v), _mm512_set1_epi8(static_cast<char>(Mask)),
                                      kFirstOrBoth)};
}

KT_INLINE Bytes lookup(const uint8_t* table, Bytes index) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), index.v)};
}

KT_INLINE void store_bytes(uint8_t* p, Bytes x) {
    _mm512_storeu_si512(p, x.v);
}

KT_INLINE I32x16 load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

KT_INLINE I32x16 load_s8(const uint8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

KT_INLINE I32x16 add(I32x16 a, int32_t b) {
    return {_mm512_add_epi32(a.v, _mm512_set1_epi32(b))};
}

KT_INLINE I32x16 multiply_add(I32x16 a, I32x16 b, I32x16 c) {
    return {_mm512_add_epi32(_mm512_mullo_epi32(a.v, b.v), c.v)};
}

template <int Shift, int Mask>
KT_INLINE I32x16 field(I32x16 a) {
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, Shift), _mm512_set1_epi32(Mask))};
}

template <int J>
KT_INLINE F32x16 byte_value(Bytes w, float zero) {
    const __m512 value = _mm512_cvtepi32_ps(field<8 * J, 255>({w.v}).v);
    return {_mm512_sub_ps(value, _mm512_set1_ps(zero))};
}

}  // namespace
}  // namespace kt
