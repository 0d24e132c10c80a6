// Grid formats by byte permutes (VBMI, with VNNI): no entry is read by itself. The 16 bits of 64 entries are
// found by two permutes of 128 bytes each for every 128 entries of the grid; one multishift brings the fields
// of four values of 16 rows to their bytes, another one their signs, and a last permute makes values of both.
// So a panel may stay as small as the stored blocks.
#pragma once

#include "planes-inl.h"

namespace kt {
namespace {

// A grid's entries in two halves, each a byte.
template <size_t N>
struct alignas(64) Halves {
    uint8_t low[N], high[N];
};

template <size_t Words>
constexpr Halves<4 * Words> halves(const uint64_t (&grid)[Words]) {
    Halves<4 * Words> out{};
    for (size_t i = 0; i < 4 * Words; ++i) {
        const uint64_t code = grid[i / 4] >> (16 * (i % 4));
        out.low[i] = static_cast<uint8_t>(code);
        out.high[i] = static_cast<uint8_t>(code >> 8);
    }
    return out;
}

// Vectors of a group are made where they are multiplied, with 128 added, from a source that the format's
// decode returns.
struct GridPlanes {
    static constexpr float kZero = 128;

    template <int V, class Source>
    static KT_INLINE SignedPair pair(const Source& source) {
        return {{source.template vector<2 * V>()}, {source.template vector<2 * V + 1>()}};
    }

    template <int First, int Second>
    static KT_INLINE I32x16 start(const uint8_t* sums) {
        return start_128<First, Second>(sums);
    }
};

// What a byte of four values is: entry `field | sign` of a table, where values[0..Fields) are the fields'
// values and those with the next higher bit are below[]. A permute ignores bits above the sixth, and those
// between do not matter either.
template <int Fields>
struct alignas(64) ValueTable {
    uint8_t byte[64];
};

template <int Fields, size_t N>
constexpr ValueTable<Fields> value_table(const int (&above)[N], const int (&below)[N]) {
    static_assert(N <= Fields);
    ValueTable<Fields> out{};
    for (int i = 0; i < 64; ++i) {
        const size_t field = static_cast<size_t>(i % Fields) < N ? i % Fields : 0;
        out.byte[i] = static_cast<uint8_t>(128 + (i & Fields ? below[field] : above[field]));
    }
    return out;
}

template <int Fields, size_t N>
constexpr ValueTable<Fields> signed_table(const int (&values)[N]) {
    int below[N] = {};
    for (size_t i = 0; i < N; ++i) below[i] = -values[i];
    return value_table<Fields>(values, below);
}

// Each 64-bit lane holds bits of two rows. To the four bytes of the first row go the eight bits from `even`,
// even + step ... on, to those of the second from `odd`.
KT_INLINE __m512i shift_out(__m512i bits, int even, int odd, int step) {
    uint64_t control = 0;
    for (int j = 0; j < 4; ++j) {
        control |= static_cast<uint64_t>((even + step * j) & 63) << (8 * j);
        control |= static_cast<uint64_t>((odd + step * j) & 63) << (8 * j + 32);
    }
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<int64_t>(control)), bits);
}

// Bits of row 2i in the lower half of a lane and of 2i + 1 in the upper: 16 words of 32 bits.
KT_INLINE __m512i row_bits(__m512i words, int first, int step) {
    return shift_out(words, first, 32 + first, step);
}

KT_INLINE __m512i look_up(const uint8_t* entries, size_t count, __m512i index, const __mmask64* chosen) {
    __m512i out = index;  // places of later tables keep their index until then
    for (size_t i = 0; i < count / 128; ++i) {
        out = _mm512_mask2_permutex2var_epi8(_mm512_load_si512(entries + 128 * i), out, chosen[i],
                                             _mm512_load_si512(entries + 128 * i + 64));
    }
    return out;
}

struct Codes {
    __m512i low, high;
};

// index: the lower eight bits of entry numbers; upper: those above the seventh.
template <size_t N>
KT_INLINE Codes codes(const Halves<N>& grid, __m512i index, __m512i upper) {
    __mmask64 chosen[N / 128];
    for (size_t i = 0; i < N / 128; ++i) {
        chosen[i] = _mm512_cmpeq_epi8_mask(upper, _mm512_set1_epi8(static_cast<char>(i)));
    }
    return {look_up(grid.low, N, index, chosen), look_up(grid.high, N, index, chosen)};
}

KT_INLINE Codes codes(const Halves<256>& grid, __m512i index) {
    const __mmask64 upper = _mm512_movepi8_mask(index);
    const __mmask64 chosen[2] = {~upper, upper};
    return {look_up(grid.low, 256, index, chosen), look_up(grid.high, 256, index, chosen)};
}

// The same for Groups groups, one table after the other, since a large grid does not stay in registers. out:
// for each group the lower and the upper halves.
template <size_t Groups, size_t N>
KT_INLINE void put_codes(const Halves<N>& grid, const __m512i* index, const __m512i* upper, uint8_t* out) {
    __m512i low[Groups], high[Groups];
    KT_UNROLL for (size_t g = 0; g < Groups; ++g) low[g] = high[g] = index[g];
    for (size_t i = 0; i < N; i += 128) {
        const __m512i number = _mm512_set1_epi8(static_cast<char>(i / 128));
        const __m512i a = _mm512_load_si512(grid.low + i), b = _mm512_load_si512(grid.low + i + 64);
        const __m512i c = _mm512_load_si512(grid.high + i), d = _mm512_load_si512(grid.high + i + 64);
        KT_UNROLL for (size_t g = 0; g < Groups; ++g) {
            const __mmask64 chosen = _mm512_cmpeq_epi8_mask(upper[g], number);
            low[g] = _mm512_mask2_permutex2var_epi8(a, low[g], chosen, b);
            high[g] = _mm512_mask2_permutex2var_epi8(c, high[g], chosen, d);
        }
    }
    KT_UNROLL for (size_t g = 0; g < Groups; ++g) {
        _mm512_store_si512(out + 128 * g, low[g]);
        _mm512_store_si512(out + 128 * g + 64, high[g]);
    }
}

// above: bits to go above the eighth of each index; only those of Mask count.
template <int Mask>
KT_INLINE __m512i upper_bits(__m512i index, __m512i above) {
    const __m512i eighth = _mm512_and_si512(_mm512_srli_epi16(index, 7), _mm512_set1_epi8(1));
    constexpr int kFirstOrBoth = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(eighth, _mm512_add_epi8(above, above), _mm512_set1_epi8(2 * Mask),
                                     kFirstOrBoth);
}

// fields: bytes with a field lowest; signs: bytes with the sign just above that.
template <int Fields>
KT_INLINE __m512i values(const ValueTable<Fields>& table, __m512i fields, __m512i signs) {
    constexpr int kChoose = 0xe4;  // c ? a : b
    const __m512i number = _mm512_ternarylogic_epi32(fields, signs, _mm512_set1_epi8(Fields - 1), kChoose);
    return _mm512_permutexvar_epi8(number, _mm512_load_si512(table.byte));
}

// Eights: codes in the order of the indices, a row's four after each other; eight fields of two bits each.
// signs(first): bytes that have sign `first + j` of their row as bit 2.
// The table is not a member: beside vectors it would be padded, and then GCC keeps all of it in memory.
template <const ValueTable<4>& Table, class Signs>
struct EightCodes {
    Codes codes;
    Signs signs;

    template <int N>
    KT_INLINE __m512i vector() const {
        return values(Table, row_bits(N % 2 ? codes.high : codes.low, 8 * (N / 2), 2), signs(4 * N));
    }
};

// Fours: indices lie as four_place says, so that the halves of codes put side by side are two rows' codes of
// two indices in 64 bits.
template <const ValueTable<8>& Table, class Signs>
struct FourCodes {
    Codes first, second;
    Signs signs;

    template <int N>
    KT_INLINE __m512i vector() const {
        const Codes& c = N < 4 ? first : second;
        const __m512i both =
            N / 2 % 2 ? _mm512_unpackhi_epi8(c.low, c.high) : _mm512_unpacklo_epi8(c.low, c.high);
        return values(Table, shift_out(both, 32 * (N % 2), 32 * (N % 2) + 16, 4), signs(4 * N));
    }
};

// Words of 32 sign bits.
template <int Bit>
struct SignWords {
    __m512i words;
    KT_INLINE __m512i operator()(int first) const { return row_bits(words, first - Bit, 1); }
};

// Seven sign bits to eight, of an even number: 128 bytes.
struct alignas(64) EvenSigns {
    uint8_t byte[128];
};
constexpr EvenSigns even_signs_table() {
    EvenSigns out{};
    for (int i = 0; i < 128; ++i) {
        int parity = i ^ i >> 4;
        parity ^= parity >> 2;
        parity ^= parity >> 1;
        out.byte[i] = static_cast<uint8_t>(i | (parity & 1) << 7);
    }
    return out;
}
constexpr EvenSigns kEvenSigns = even_signs_table();

KT_INLINE __m512i even_signs(__m512i seven) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(kEvenSigns.byte), seven,
                                    _mm512_load_si512(kEvenSigns.byte + 64));
}

KT_INLINE __m512i load_words(const uint8_t* p) {
    return _mm512_loadu_si512(p);
}

// Stored scales s stand for s + 1/2; the factor takes the doubling back.
KT_INLINE void put_scale(__m512i scales, uint8_t* out) {
    const __m512i odd = _mm512_or_si512(_mm512_add_epi32(scales, scales), _mm512_set1_epi32(1));
    _mm_store_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(odd));
}

KT_INLINE void put_nibble_scale(__m128i bytes, uint8_t* out) {
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    _mm_store_si128(reinterpret_cast<__m128i*>(out), _mm_or_si128(_mm_add_epi8(low, low), _mm_set1_epi8(1)));
}

KT_INLINE __m128i load_16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// The scales of two halves as nibbles of a byte.
KT_INLINE void read_two_scales(const uint8_t* bytes, uint8_t* scales) {
    const __m128i both = load_16(bytes);
    put_nibble_scale(both, scales);
    put_nibble_scale(_mm_srli_epi16(both, 4), scales + 16);
}

// 16 words of 4 x 7 sign bits and, above, a scale: IQ2_XXS and IQ3_XXS.
template <int Bit>
KT_INLINE SignWords<Bit> read_signs_and_scale(const uint8_t* words, uint8_t* scales) {
    const __m512i all = load_words(words);
    put_scale(_mm512_srli_epi32(all, 28), scales);
    return {even_signs(row_bits(all, 0, 7))};
}

// 16 numbers, each in the 32 bits of its row.
KT_INLINE __m512i widen(const uint8_t* bytes) {
    return _mm512_cvtepu8_epi32(load_16(bytes));
}

KT_INLINE __m512i widen_16(const uint8_t* words) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
}

}  // namespace
}  // namespace kt
