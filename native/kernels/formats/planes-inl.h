// How 32 values along K of 16 rows lie in a panel: eight vectors of 64 bytes, vector i holding elements
// 4i..4i+3 of every row, folded into planes of 4, 2 and 1 bits of the same order.
//
// Each kind has kBytes; `put` (from the eight vectors); `pair<V>` (vectors 2V and 2V + 1); `start` (the
// integer sum before its first product, which takes the zero point off: First and Second say which halves
// of the group the sum runs over); and kZero, that zero point, for `unpack`.
#pragma once

namespace kt {
namespace {

// The eight vectors of a group from rows of 32 bytes.
KT_INLINE void load_eight_columns(const uint8_t* const* rows, size_t at, Bytes* v) {
    load_columns(rows, at, v);
    load_columns(rows, at + 16, v + 4);
}

// From rows of 16 bytes whose low nibbles are the first half and whose high ones the second.
KT_INLINE void load_split_nibbles(const uint8_t* const* rows, size_t at, Bytes* v) {
    Bytes both[4];
    load_columns(rows, at, both);
    KT_UNROLL for (int i = 0; i < 4; ++i) {
        v[i] = low_nibbles(both[i]);
        v[4 + i] = high_nibbles(both[i]);
    }
}

KT_INLINE void put_nibbles(uint8_t* q, const Bytes* v) {
    KT_UNROLL for (int i = 0; i < 4; ++i) {
        store_bytes(q + 64 * i, with_bits<0xf0, 4>(bits<0x0f, 0>(v[2 * i]), v[2 * i + 1]));
    }
}

// Bits Shift and Shift + 1 of each value: vectors 0..3 in the first plane, 4..7 in the second.
template <int Shift>
KT_INLINE void put_two_bits(uint8_t* q, const Bytes* v) {
    KT_UNROLL for (int plane = 0; plane < 2; ++plane, v += 4) {
        const Bytes first = with_bits<0x0c, 2 - Shift>(bits<0x03, -Shift>(v[0]), v[1]);
        store_bytes(q + 64 * plane,
                    with_bits<0xc0, 6 - Shift>(with_bits<0x30, 4 - Shift>(first, v[2]), v[3]));
    }
}

// Bit Shift of each value.
template <int Shift, int I = 0>
KT_INLINE Bytes one_bit(const Bytes* v) {
    if constexpr (I == 0) {
        return bits<1, -Shift>(v[0]);
    } else {
        return with_bits<1 << I, I - Shift>(one_bit<Shift, I - 1>(v), v[I]);
    }
}

// Values below 16.
template <int Zero>
struct Nibbles {
    static constexpr size_t kBytes = 256;
    static constexpr float kZero = Zero;

    static KT_INLINE void put(uint8_t* q, const Bytes* v) { put_nibbles(q, v); }

    template <int V>
    static KT_INLINE BytePair pair(const uint8_t* q) {
        const Bytes both = load_bytes(q + 64 * V);
        return {low_nibbles(both), high_nibbles(both)};
    }

    template <int First, int Second>
    static KT_INLINE I32x16 start(const uint8_t* sums) {
        if constexpr (Zero == 0) return zero_i32();
        return minus_sums<Zero * First, Zero * Second>(sums);
    }
};

// Values below 32: nibbles, then the fifth bits.
template <int Zero>
struct FiveBits : Nibbles<Zero> {
    static constexpr size_t kBytes = 320;

    static KT_INLINE void put(uint8_t* q, const Bytes* v) {
        put_nibbles(q, v);
        store_bytes(q + 256, one_bit<4, 7>(v));
    }

    template <int V>
    static KT_INLINE BytePair pair(const uint8_t* q) {
        const BytePair low = Nibbles<Zero>::template pair<V>(q);
        const Bytes high = load_bytes(q + 256);
        return {with_bits<0x10, 4 - 2 * V>(low.first, high), with_bits<0x10, 3 - 2 * V>(low.second, high)};
    }
};

// Values below 64: nibbles, then two planes of the two upper bits.
template <int Zero>
struct SixBits : Nibbles<Zero> {
    static constexpr size_t kBytes = 384;

    static KT_INLINE void put(uint8_t* q, const Bytes* v) {
        put_nibbles(q, v);
        put_two_bits<4>(q + 256, v);
    }

    template <int V>
    static KT_INLINE BytePair pair(const uint8_t* q) {
        const BytePair low = Nibbles<Zero>::template pair<V>(q);
        const Bytes high = load_bytes(q + 256 + 64 * (V / 2));
        constexpr int kShift = 4 - 4 * (V % 2);
        return {with_bits<0x30, kShift>(low.first, high), with_bits<0x30, kShift - 2>(low.second, high)};
    }
};

// Values below 4: two planes.
struct TwoBits : Nibbles<0> {
    static constexpr size_t kBytes = 128;

    static KT_INLINE void put(uint8_t* q, const Bytes* v) { put_two_bits<0>(q, v); }

    template <int V>
    static KT_INLINE BytePair pair(const uint8_t* q) {
        const Bytes plane = load_bytes(q + 64 * (V / 2));
        constexpr int kShift = -4 * (V % 2);
        return {bits<0x03, kShift>(plane), bits<0x03, kShift - 2>(plane)};
    }
};

// Values below 8: two planes of the lower bits, then the third bits.
template <int Zero>
struct ThreeBits : Nibbles<Zero> {
    static constexpr size_t kBytes = 192;

    static KT_INLINE void put(uint8_t* q, const Bytes* v) {
        put_two_bits<0>(q, v);
        store_bytes(q + 128, one_bit<2, 7>(v));
    }

    template <int V>
    static KT_INLINE BytePair pair(const uint8_t* q) {
        const BytePair low = TwoBits::pair<V>(q);
        const Bytes high = load_bytes(q + 128);
        return {with_bits<0x04, 2 - 2 * V>(low.first, high), with_bits<0x04, 1 - 2 * V>(low.second, high)};
    }
};

// Nibbles that choose from a table of E2M1 values, doubled to be integers: 0, 1, 2, 3, 4, 6, 8, 12 and the
// same below zero, kept with 12 added.
struct E2M1 : Nibbles<12> {
    static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

    template <int V>
    static KT_INLINE BytePair pair(const uint8_t* q) {
        const BytePair index = Nibbles<12>::pair<V>(q);
        return {lookup(kTable, index.first), lookup(kTable, index.second)};
    }
};

// As BytePair, for values with 128 added.
struct SignedPair {
    Bytes first, second;
};

KT_INLINE I32x16 dot(const I32x16& sum, const SignedPair& w, const int8_t* activation) {
    return dot(dot(sum, minus_128(w.first), activation), minus_128(w.second), activation + 4);
}

// Nibbles that choose from ggml's table of 16 uneven steps (kvalues_iq4nl), kept with 128 added.
struct UnevenNibbles : Nibbles<128> {
    static constexpr uint8_t kTable[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                           129, 141, 153, 166, 181, 197, 217, 241};

    template <int V>
    static KT_INLINE SignedPair pair(const uint8_t* q) {
        const BytePair index = Nibbles<128>::pair<V>(q);
        return {lookup(kTable, index.first), lookup(kTable, index.second)};
    }

    template <int First, int Second>
    static KT_INLINE I32x16 start(const uint8_t* sums) {
        return start_128<First, Second>(sums);
    }
};

// What a grid format makes of a group before it multiplies: [4][16][8] values with 128 added, then [4][16]
// bytes of sign bits.
struct Eights {
    static constexpr size_t kBytes = 576;
    static constexpr float kZero = 128;

    template <int V>
    static KT_INLINE SignedPair pair(const uint8_t* q) {
        const BytePair w = signed_eights(q + 128 * V, q + 512 + 16 * V);
        return {w.first, w.second};
    }

    template <int First, int Second>
    static KT_INLINE I32x16 start(const uint8_t* sums) {
        return start_128<First, Second>(sums);
    }
};

// Adds the products of vectors 2 Begin .. 2 End - 1 with R activation groups, `at` bytes into the rows.
// q: where Q finds a group, an address for planes.
template <class Q, int Begin, int End, int R, class Source>
KT_INLINE void dot_pairs_of(const Source& q, const uint8_t* const* rows, size_t at, I32x16* dots) {
    if constexpr (Begin < End) {
        const auto w = Q::template pair<Begin>(q);
        KT_UNROLL for (int r = 0; r < R; ++r) {
            dots[r] = dot(dots[r], w, reinterpret_cast<const int8_t*>(rows[r] + at + 8 * Begin));
        }
        dot_pairs_of<Q, Begin + 1, End, R>(q, rows, at, dots);
    }
}

// Vectors 2 Begin .. 2 End - 1 of a group as scale * byte + offset to their place in a BF16 panel; out is the
// group's start.
template <class Q, int Begin, int End, class Source>
KT_INLINE void unpack_bytes(const Source& q, const F32x16& scale, const F32x16& offset, uint16_t* out) {
    if constexpr (Begin < End) {
        const auto w = Q::template pair<Begin>(q);
        store_scaled(out + 128 * Begin, w.first, scale, offset);
        store_scaled(out + 128 * Begin + 64, w.second, scale, offset);
        unpack_bytes<Q, Begin + 1, End>(q, scale, offset, out);
    }
}

// The same as scale * (byte - zero) + offset. Zeros are powers of two, so their product with the scale is
// exact.
template <class Q, int Begin, int End, class Source>
KT_INLINE void unpack_pairs(const Source& q, const F32x16& scale, const F32x16& offset, uint16_t* out) {
    unpack_bytes<Q, Begin, End>(q, scale, multiply_add(scale, -Q::kZero, offset), out);
}

// 32 values of each of 16 rows as they come from a format's plain C++, on their way to vectors.
struct Unpacked {
    uint8_t values[kPanelRows][kGroup];

    KT_INLINE void to_columns(Bytes* v) const {
        const uint8_t* rows[kPanelRows];
        for (size_t r = 0; r < kPanelRows; ++r) rows[r] = values[r];
        load_eight_columns(rows, 0, v);
    }
};

// Values of a stored block's bytes: low nibbles are the first half, high ones the second.
KT_INLINE void split_nibbles(const uint8_t* bytes, size_t count, uint8_t* values) {
    for (size_t i = 0; i < count; ++i) {
        values[i] = bytes[i] & 15;
        values[count + i] = bytes[i] >> 4;
    }
}

}  // namespace
}  // namespace kt
