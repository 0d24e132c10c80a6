// What formats of small integers in blocks need besides simd_avx2-inl.h. Same names as
// simd_scalar_blocks-inl.h.
#pragma once

#include "simd_avx2-inl.h"

namespace kt {
namespace {

KT_INLINE I32x16 zero_i32() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}

template <int First, int Second>
KT_INLINE I32x16 minus_sums(const uint8_t* sums) {
    constexpr uint32_t kBoth = uint32_t{static_cast<uint16_t>(-Second)} << 16 | static_cast<uint16_t>(-First);
    const __m256i all = _mm256_madd_epi16(_mm256_set1_epi32(load_as<int32_t>(sums)),
                                          _mm256_set1_epi32(static_cast<int>(kBoth)));
    return {all, all};
}

struct BytePair {
    Bytes first, second;
};

// Two pairs of products are at most 4 * 63 * 127 = 32004 < 32767.
KT_INLINE __m256i add_products(__m256i sum, __m256i first, __m256i second, __m256i a, __m256i b) {
    return add_pairs(sum, _mm256_add_epi16(_mm256_maddubs_epi16(first, a), _mm256_maddubs_epi16(second, b)));
}

KT_INLINE I32x16 dot(I32x16 sum, const BytePair& w, const int8_t* activation) {
    const __m256i a = _mm256_set1_epi32(load_as<int32_t>(activation));
    const __m256i b = _mm256_set1_epi32(load_as<int32_t>(activation + 4));
    return {add_products(sum.lo, w.first.lo, w.second.lo, a, b),
            add_products(sum.hi, w.first.hi, w.second.hi, a, b)};
}

KT_INLINE __m256i signed_four_rows(const uint8_t* values, const uint8_t* signs) {
    const __m256i rows = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(load_as<int32_t>(signs)), rows);
    const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    return _mm256_sign_epi8(load_256(values), _mm256_or_si256(negative, _mm256_set1_epi8(1)));
}

// ---- packing ----

KT_INLINE __m256i two_rows(const uint8_t* first, const uint8_t* second) {
    return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(second),
                               reinterpret_cast<const __m128i*>(first));
}

KT_INLINE void eight_columns(const uint8_t* const* rows, size_t at, __m256i* out) {
    const __m256i a = two_rows(rows[0] + at, rows[4] + at), b = two_rows(rows[1] + at, rows[5] + at),
                  c = two_rows(rows[2] + at, rows[6] + at), d = two_rows(rows[3] + at, rows[7] + at);
    const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    const __m256i ab2 = _mm256_unpackhi_epi32(a, b), cd2 = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab, cd);
    out[1] = _mm256_unpackhi_epi64(ab, cd);
    out[2] = _mm256_unpacklo_epi64(ab2, cd2);
    out[3] = _mm256_unpackhi_epi64(ab2, cd2);
}

KT_INLINE void load_columns(const uint8_t* const* rows, size_t at, Bytes* out) {
    __m256i lo[4], hi[4];
    eight_columns(rows, at, lo);
    eight_columns(rows + 8, at, hi);
    for (int i = 0; i < 4; ++i) out[i] = {lo[i], hi[i]};
}

// Four bytes of eight rows as four arrays of 8.
KT_INLINE __m256i eight_by_byte(__m256i four) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i lanes = _mm256_shuffle_epi8(four, _mm256_broadcastsi128_si256(order));
    return _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

KT_INLINE Bytes by_byte(Bytes four) {
    const __m256i lo = eight_by_byte(four.lo), hi = eight_by_byte(four.hi);
    const __m256i even = _mm256_unpacklo_epi64(lo, hi), odd = _mm256_unpackhi_epi64(lo, hi);
    return {_mm256_permute2x128_si256(even, odd, 0x20), _mm256_permute2x128_si256(even, odd, 0x31)};
}

KT_INLINE Bytes plus_128(Bytes x) {
    const __m256i bit = _mm256_set1_epi8(static_cast<char>(0x80));
    return {_mm256_xor_si256(x.lo, bit), _mm256_xor_si256(x.hi, bit)};
}

// The lower or (Odd) the upper halves of the rows of a and b, in order.
template <bool Odd>
KT_INLINE __m256i halves_of_rows(__m256i a, __m256i b) {
    constexpr int kOrder = Odd ? 0xdd : 0x88;
    const __m256 mixed = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), kOrder);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(mixed), 0xd8);
}

KT_INLINE BytePair signed_eights(const uint8_t* values, const uint8_t* signs) {
    const __m256i a = signed_four_rows(values, signs), b = signed_four_rows(values + 32, signs + 4);
    const __m256i c = signed_four_rows(values + 64, signs + 8), d = signed_four_rows(values + 96, signs + 12);
    return {{halves_of_rows<false>(a, b), halves_of_rows<false>(c, d)},
            {halves_of_rows<true>(a, b), halves_of_rows<true>(c, d)}};
}

// Shifts of 16-bit lanes carry bits over from the neighbouring byte; Mask must not select those.
template <int Mask, int Shift>
KT_INLINE __m256i shifted_bits(__m256i plane) {
    if constexpr (Shift < 0) plane = _mm256_srli_epi16(plane, -Shift);
    if constexpr (Shift > 0) plane = _mm256_slli_epi16(plane, Shift);
    return _mm256_and_si256(plane, _mm256_set1_epi8(static_cast<char>(Mask)));
}

template <int Mask, int Shift>
KT_INLINE Bytes bits(Bytes plane) {
    return {shifted_bits<Mask, Shift>(plane.lo), shifted_bits<Mask, Shift>(plane.hi)};
}

template <int Mask, int Shift>
KT_INLINE Bytes with_bits(Bytes w, Bytes plane) {
    return {_mm256_or_si256(w.lo, shifted_bits<Mask, Shift>(plane.lo)),
            _mm256_or_si256(w.hi, shifted_bits<Mask, Shift>(plane.hi))};
}

KT_INLINE __m128i load_128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

KT_INLINE Bytes lookup(const uint8_t* table, Bytes index) {
    const __m256i entries = _mm256_broadcastsi128_si256(load_128(table));
    return {_mm256_shuffle_epi8(entries, index.lo), _mm256_shuffle_epi8(entries, index.hi)};
}

KT_INLINE void store_bytes(uint8_t* p, Bytes x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, x.hi);
}

KT_INLINE I32x16 load_u8(const uint8_t* p) {
    const __m128i x = load_128(p);
    return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}

KT_INLINE I32x16 load_s8(const uint8_t* p) {
    const __m128i x = load_128(p);
    return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}

KT_INLINE I32x16 add(I32x16 a, int32_t b) {
    const __m256i all = _mm256_set1_epi32(b);
    return {_mm256_add_epi32(a.lo, all), _mm256_add_epi32(a.hi, all)};
}

KT_INLINE I32x16 multiply_add(I32x16 a, I32x16 b, I32x16 c) {
    return {_mm256_add_epi32(_mm256_mullo_epi32(a.lo, b.lo), c.lo),
            _mm256_add_epi32(_mm256_mullo_epi32(a.hi, b.hi), c.hi)};
}

template <int Shift, int Mask>
KT_INLINE I32x16 field(I32x16 a) {
    const __m256i mask = _mm256_set1_epi32(Mask);
    return {_mm256_and_si256(_mm256_srli_epi32(a.lo, Shift), mask),
            _mm256_and_si256(_mm256_srli_epi32(a.hi, Shift), mask)};
}

template <int J>
KT_INLINE F32x16 byte_value(Bytes w, float zero) {
    const F32x16 value = to_f32(field<8 * J, 255>({w.lo, w.hi}));
    const __m256 all = _mm256_set1_ps(zero);
    return {_mm256_sub_ps(value.lo, all), _mm256_sub_ps(value.hi, all)};
}

}  // namespace
}  // namespace kt
