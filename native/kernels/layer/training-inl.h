// What training needs beside products: derivatives of the activations, weights turned over, and sums of outer
// products. The including file brings activation-inl.h and lanes_*-inl.h.
#pragma once

namespace kt {
namespace {

// f(x) = x * sigmoid(q(x)), and its derivative.
struct Gated {
    F32x16 value, slope;
};

KT_INLINE Gated gated(const F32x16& x, const F32x16& q, const F32x16& q_slope) {
    const F32x16 s = sigmoid(q), value = multiply(x, s);
    const F32x16 rest = add(all_lanes(1.0f), multiply(s, -1.0f));
    return {value, add(s, multiply(multiply(value, rest), q_slope))};
}

// 1 where a clamp left x as it was, else 0: a difference that is not 0 is at least a unit in the limit's last
// place, and limits are about 10.
KT_INLINE F32x16 passed(const F32x16& x, const F32x16& clamped) {
    const F32x16 d = add(x, multiply(clamped, -1.0f));
    const F32x16 cut = smaller(multiply(multiply(d, d), 1e30f), all_lanes(1.0f));
    return add(all_lanes(1.0f), multiply(cut, -1.0f));
}

// f(gate) and the factor that up stands for, from gate and up within their limits.
struct SiluBack {
    static KT_INLINE Gated of(const F32x16& x, Clamp) { return gated(x, x, all_lanes(1.0f)); }
    static KT_INLINE F32x16 factor(const F32x16& up) { return up; }
};

struct GeluBack {
    static KT_INLINE Gated of(const F32x16& x, Clamp) {
        constexpr float kSlope = 1.59576912160573071f;
        const F32x16 square = multiply(x, x);
        const F32x16 q = multiply(multiply_add(multiply(square, 0.044715f), x, x), kSlope);
        return gated(x, q, multiply_add(square, 3 * 0.044715f * kSlope, all_lanes(kSlope)));
    }
    static KT_INLINE F32x16 factor(const F32x16& up) { return up; }
};

struct SwigluOaiBack {
    static KT_INLINE Gated of(const F32x16& x, Clamp clamp) {
        return gated(x, multiply(x, clamp.alpha), all_lanes(clamp.alpha));
    }
    static KT_INLINE F32x16 factor(const F32x16& up) { return add(up, all_lanes(1.0f)); }
};

template <class F>
float gate_back(const ActivateBackArgs& a) {
    F32x16 total = zero_f32();
    for (size_t i = 0; i < a.n; i += kLanes) {
        const F32x16 gate = load_f32(a.gate + i), up = load_f32(a.up + i), dh = load_f32(a.dh + i);
        const F32x16 x = at_most(gate, a.clamp.limit), u = within(up, a.clamp.limit);
        const Gated f = F::of(x, a.clamp);
        const F32x16 factor = F::factor(u), h = multiply(f.value, factor), d = multiply(dh, a.weight);
        total = multiply_add(h, dh, total);
        store(a.h + i, h);
        store(a.dgate + i, multiply(multiply(multiply(d, factor), f.slope), passed(gate, x)));
        store(a.dup + i, multiply(multiply(d, f.value), passed(up, u)));
    }
    return lane_total(total);
}

inline float relu_squared_back(const ActivateBackArgs& a) {
    F32x16 total = zero_f32();
    for (size_t i = 0; i < a.n; i += kLanes) {
        const F32x16 up = load_f32(a.up + i), dh = load_f32(a.dh + i), u = within(up, a.clamp.limit);
        const F32x16 positive = larger(zero_f32(), u), h = multiply(positive, positive);
        total = multiply_add(h, dh, total);
        store(a.h + i, h);
        store(a.dup + i, multiply(multiply(multiply(dh, 2 * a.weight), positive), passed(up, u)));
    }
    return lane_total(total);
}

inline void turn(const uint16_t* panel, size_t blocks, uint16_t* out, size_t stride) {
    for (size_t b = 0; b < blocks; ++b) {
        turn_pairs(reinterpret_cast<const uint8_t*>(panel + b * kPanelRows * kPanelRows),
                   reinterpret_cast<uint8_t*>(out + b * stride));
    }
}

// R ranks of 16 columns: the rows' values are loaded once for all of them.
template <int R>
void outer_block(const OuterArgs& a, size_t rank, size_t column) {
    if constexpr (R > 0) {
        if (a.rank - rank < R) return outer_block<R - 1>(a, rank, column);
        F32x16 sum[R];
        KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = zero_f32();
        for (size_t i = 0; i < a.count; ++i) {
            const F32x16 values = load_bf16(a.rows[i] + 2 * (a.begin + column));
            const float* const factors = a.factors + i * a.stride + rank;
            KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = multiply_add(values, factors[r], sum[r]);
        }
        KT_UNROLL for (int r = 0; r < R; ++r) store(a.out + (rank + r) * a.out_stride + column, sum[r]);
    }
}

// Columns are outermost: one cache line of each row stays in the first cache for all ranks.
inline void outer(const OuterArgs& a) {
    constexpr int kRanks = 8;
    for (size_t column = 0; column < a.columns; column += kLanes) {
        for (size_t rank = 0; rank < a.rank; rank += kRanks) outer_block<kRanks>(a, rank, column);
    }
}

// For a tier that brings a wider vector.
[[maybe_unused]] constexpr KernelTable with_training(KernelTable table) {
    table.training.back[static_cast<size_t>(Activation::kSilu)] = gate_back<SiluBack>;
    table.training.back[static_cast<size_t>(Activation::kGeluTanh)] = gate_back<GeluBack>;
    table.training.back[static_cast<size_t>(Activation::kSwigluOai)] = gate_back<SwigluOaiBack>;
    table.training.back[static_cast<size_t>(Activation::kReluSquared)] = relu_squared_back;
    table.training.turn = turn;
    table.training.outer = outer;
    return table;
}

}  // namespace
}  // namespace kt
