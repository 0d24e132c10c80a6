// Attention over pages, against the sixteen-lane names: panels of 16 keys give 16 scores at once, panels of
// 16 value columns 16 sums. Both products walk a panel in steps of 64 bytes and a row in steps of 4, whether
// values are bfloat16 or float32. Scores and sums are float32; the weights exp(score - largest) are rounded
// to the cache's type.
#pragma once

#define KT_INLINE_BODY __attribute__((always_inline))

namespace kt {
namespace {

struct Bf16Cache {
    static constexpr size_t kPerStep = 2;  // values of a lane

    static KT_INLINE Pairs load(const uint8_t* p) { return load_pairs(p); }

    // Without the second value of each pair, which may be anything.
    static KT_INLINE Pairs load_half(const uint8_t* p) {
        uint32_t first[kLanes];
        for (size_t i = 0; i < kLanes; ++i) first[i] = load_as<uint32_t>(p + 4 * i) & 0xffff;
        return load_pairs(first);
    }

    static KT_INLINE F32x16 add(const F32x16& sum, const Pairs& w, const uint8_t* x) {
        return dot_pairs(sum, w, x);
    }

    static KT_INLINE void store_row(uint8_t* p, const F32x16& x) { store_bf16(p, x); }

    // 16 keys' 16 columns of column panel `panel` as 16 columns' 16 keys.
    static KT_INLINE void turn(const uint8_t* keys, uint8_t* values) { turn_pairs(keys, values); }
};

struct F32Cache {
    static constexpr size_t kPerStep = 1;

    static KT_INLINE F32x16 load(const uint8_t* p) { return load_f32(p); }
    static KT_INLINE F32x16 load_half(const uint8_t* p) { return load_f32(p); }

    static KT_INLINE F32x16 add(const F32x16& sum, const F32x16& w, const uint8_t* x) {
        return multiply_add(w, load_as<float>(x), sum);
    }

    static KT_INLINE void store_row(uint8_t* p, const F32x16& x) { store_as(p, x); }

    static KT_INLINE void turn(const uint8_t* keys, uint8_t* values) {
        for (size_t i = 0; i < kLanes; ++i) {
            for (size_t k = 0; k < kLanes; ++k) {
                store_as(values + kStepBytes * k + 4 * i, load_as<float>(keys + kStepBytes * i + 4 * k));
            }
        }
    }
};

// No score is as low.
constexpr float kNever = -3e38f;

template <int R>
struct Rows {};

template <int R, class Body>
KT_INLINE void last_row_block(size_t rows, size_t row, Body&& body) {
    if constexpr (R > 0) {
        if (rows - row == R) return body(row, Rows<R>{});
        last_row_block<R - 1>(rows, row, body);
    }
}

// Calls body(row, Rows<R>{}) for blocks of as many rows as share a loaded vector.
template <class Body>
KT_INLINE void for_row_blocks(size_t rows, Body&& body) {
    size_t row = 0;
    for (; row + kRowBlock <= rows; row += kRowBlock) body(row, Rows<kRowBlock>{});
    last_row_block<kRowBlock - 1>(rows, row, body);
}

// How far ahead the stream of keys and values is asked for, into the second cache, and from how many rows on.
// Asking for the first cache hurts, and with fewer rows a core keeps up by itself: 8 rows on one Zen 4
// core 13.5 GB/s without, 13.3 with 4 KiB ahead into the first cache, 19.1 so; 4 rows 20.1, 15.9, 22.8; 1
// row 23.6, 17.6, 19.2. With more rows than share a vector the arithmetic takes longer than the memory
// anyway. Where the core's look-ahead ends with a page, any number of rows asks (AttendArgs::asks).
constexpr size_t kAskBytes = 8192;
constexpr int kAskFrom = 4;

// What lies kAskBytes ahead in the order of reading: a page's block, then the next page's.
struct Reading {
    const uint8_t* block;
    const uint8_t* next;
    size_t bytes;  // of a block

    KT_INLINE const uint8_t* ahead(const uint8_t* p) const {
        const size_t offset = static_cast<size_t>(p - block) + kAskBytes;
        return offset < bytes ? block + offset : next + (offset - bytes);
    }
};

template <class C, int R, bool Ask>
KT_INLINE void add_steps(const uint8_t* panel, size_t steps, const uint8_t* const* rows, const uint8_t* ahead,
                         bool always, F32x16* sum) {
#pragma GCC unroll 4
    for (size_t i = 0; i < steps; ++i) {
        if (Ask && (R >= kAskFrom || always)) __builtin_prefetch(ahead + kStepBytes * i, 0, 2);
        const auto w = C::load(panel + kStepBytes * i);
        KT_UNROLL for (int r = 0; r < R; ++r) sum[r] = C::add(sum[r], w, rows[r] + 4 * i);
    }
}

// Keys of a page that a call sees, counted from the page's first.
struct Live {
    size_t begin, end;
};

KT_INLINE size_t clip(size_t x, size_t low, size_t high) {
    return x < low ? low : x < high ? x : high;
}

template <class C, bool Ask>
void score(const AttendArgs& a, const uint8_t* keys, const Reading& reading, Live live) {
    const size_t row_bytes = 4 * a.key_steps;
    for (size_t p = live.begin / kLanes; p * kLanes < live.end; ++p) {
        const uint8_t* const panel = keys + p * a.key_steps * kStepBytes;
        for_row_blocks(a.rows, [&]<int R>(size_t row, Rows<R>) KT_INLINE_BODY {
            const uint8_t* q[R];
            F32x16 sum[R];
            KT_UNROLL for (int r = 0; r < R; ++r) {
                q[r] = a.q + (row + r) * row_bytes;
                sum[r] = zero_f32();
            }
            add_steps<C, R, Ask>(panel, a.key_steps, q, Ask ? reading.ahead(panel) : nullptr, a.asks, sum);
            KT_UNROLL for (int r = 0; r < R; ++r) store(a.scores + (row + r) * a.page + p * kLanes, sum[r]);
        });
    }
}

// tanh(x) = 1 - 2 / (exp(2 x) + 1)
KT_INLINE F32x16 capped(const F32x16& x, float cap) {
    const F32x16 power = exp(multiply(x, 2.0f / cap));
    const F32x16 part = divide(all_lanes(-2.0f), add(power, all_lanes(1.0f)));
    return multiply(add(all_lanes(1.0f), part), cap);
}

constexpr uint32_t kAllLanes = 0xffff;

// Bits of the lanes of a panel that begins at `first` and whose keys are in `live`.
KT_INLINE uint32_t lanes_of(Live live, size_t first) {
    if (live.begin <= first && first + kLanes <= live.end) return kAllLanes;
    const size_t begin = clip(live.begin, first, first + kLanes) - first;
    const size_t end = clip(live.end, first, first + kLanes) - first;
    return (1u << end) - (1u << begin);
}

// The keys of this page that row r sees.
KT_INLINE Live seen_by(const AttendArgs& a, size_t row, size_t base) {
    const size_t last = a.position + row / a.group;
    const size_t first = last + 1 < a.window ? 0 : last + 1 - a.window;
    return {clip(first, base, base + a.page) - base, clip(last + 1, base, base + a.page) - base};
}

// Scales the scores of a row; those of unseen keys become kNever. Returns the largest of them and `top`.
KT_INLINE float scale_row(const AttendArgs& a, float* scores, Live live, Live own, float before) {
    F32x16 top = all_lanes(before);
    for (size_t i = live.begin / kLanes * kLanes; i < live.end; i += kLanes) {
        F32x16 x = multiply(load_f32(scores + i), a.scale);
        if (a.softcap != 0.0f) x = capped(x, a.softcap);
        const uint32_t lanes = lanes_of(own, i);
        if (lanes != kAllLanes) x = keep(lanes, x, kNever);
        store(scores + i, x);
        top = larger(top, x);
    }
    return largest(top);
}

// Scores of a row become weights; returns the sum with them.
template <class C>
KT_INLINE F32x16 weigh_row(const float* scores, uint8_t* weights, Live live, Live own, float top,
                           F32x16 sum) {
    const F32x16 less = all_lanes(-top);
    for (size_t i = live.begin / kLanes * kLanes; i < live.end; i += kLanes) {
        F32x16 x = exp(add(load_f32(scores + i), less));
        const uint32_t lanes = lanes_of(own, i);
        if (lanes != kAllLanes) x = keep(lanes, x, 0.0f);
        C::store_row(weights + i * (4 / C::kPerStep), x);
        sum = add(sum, x);
    }
    return sum;
}

// Scores become weights, and each row's largest score and sum take them in; a.factors is what that does to
// the row's sums so far.
template <class C>
void weigh(const AttendArgs& a, Live live, size_t base) {
    float* const tops = a.factors + (a.rows + kLanes - 1) / kLanes * kLanes;
    const size_t weight_bytes = a.page * (4 / C::kPerStep);
    for (size_t row = 0; row < a.rows; ++row) {
        tops[row] = scale_row(a, a.scores + row * a.page, live, seen_by(a, row, base), a.largest[row]);
    }
    for (size_t row = 0; row < a.rows; row += kLanes) {
        const F32x16 fall = multiply_add(load_f32(tops + row), -1.0f, load_f32(a.largest + row));
        store(a.factors + row, exp(fall));
    }
    for (size_t row = 0; row < a.rows; ++row) {
        float* const sums = a.sums + row * kLanes;
        const F32x16 sum = multiply(load_f32(sums), a.factors[row]);
        a.largest[row] = tops[row];
        store(sums, weigh_row<C>(a.scores + row * a.page, a.weights + row * weight_bytes, live,
                                 seen_by(a, row, base), tops[row], sum));
    }
}

template <class C, bool Ask>
void add_values(const AttendArgs& a, const uint8_t* values, const Reading& reading, Live live) {
    const size_t panel_bytes = a.page / C::kPerStep * kStepBytes, row_bytes = a.page * (4 / C::kPerStep);
    const size_t first = live.begin / C::kPerStep, whole = live.end / C::kPerStep;
    const size_t stride = a.value_panels * kLanes;
    for (size_t p = 0; p < a.value_panels; ++p) {
        const uint8_t* const panel = values + p * panel_bytes;
        for_row_blocks(a.rows, [&]<int R>(size_t row, Rows<R>) KT_INLINE_BODY {
            float* const out = a.out + row * stride + p * kLanes;
            const uint8_t* weights[R];
            F32x16 sum[R];
            KT_UNROLL for (int r = 0; r < R; ++r) {
                weights[r] = a.weights + (row + r) * row_bytes + 4 * first;
                sum[r] = multiply(load_f32(out + r * stride), a.factors[row + r]);
            }
            add_steps<C, R, Ask>(panel + first * kStepBytes, whole - first, weights,
                                 Ask ? reading.ahead(panel) : nullptr, a.asks, sum);
            if (live.end % C::kPerStep) {  // the last key has no partner yet
                const auto last = C::load_half(panel + whole * kStepBytes);
                KT_UNROLL for (int r = 0; r < R; ++r) {
                    sum[r] = C::add(sum[r], last, weights[r] + 4 * (whole - first));
                }
            }
            KT_UNROLL for (int r = 0; r < R; ++r) store(out + r * stride, sum[r]);
        });
    }
}

// Shared values: the keys' first columns, turned into panels of columns.
template <class C>
const uint8_t* turned(const AttendArgs& a, const uint8_t* keys, Live live) {
    const size_t panel_bytes = a.page / C::kPerStep * kStepBytes, square = kLanes / C::kPerStep * kStepBytes;
    for (size_t k = live.begin / kLanes; k * kLanes < live.end; ++k) {
        for (size_t p = 0; p < a.value_panels; ++p) {
            C::turn(keys + k * a.key_steps * kStepBytes + p * square,
                    a.values + p * panel_bytes + k * square);
        }
    }
    return a.values;
}

template <class C, bool Ask>
void attend_pages(const AttendArgs& a) {
    for (size_t page = a.begin / a.page; page * a.page < a.end; ++page) {
        const size_t base = page * a.page;
        const uint8_t* const keys = a.pages + static_cast<size_t>(a.table[page]) * a.page_bytes;
        const size_t next = base + a.page < a.end ? page + 1 : page;
        const Reading reading{keys, a.pages + static_cast<size_t>(a.table[next]) * a.page_bytes,
                              a.block_bytes};
        const Live live = {clip(a.begin, base, a.end) - base, clip(a.end, base, base + a.page) - base};
        score<C, Ask>(a, keys, reading, live);
        weigh<C>(a, live, base);
        if (a.shared) {
            add_values<C, false>(a, turned<C>(a, keys, live), reading, live);
        } else {
            add_values<C, Ask>(a, keys + a.value_offset, reading, live);
        }
    }
}

template <class C>
void attend(const AttendArgs& a) {
    const size_t width = a.value_panels * kLanes;
    for (size_t row = 0; row < a.rows; ++row) {
        a.largest[row] = kNever;
        store(a.sums + row * kLanes, zero_f32());
        for (size_t i = 0; i < width; i += kLanes) store(a.out + row * width + i, zero_f32());
    }
    if (a.rows <= kRowBlock) {
        attend_pages<C, true>(a);
    } else {
        attend_pages<C, false>(a);
    }
}

}  // namespace
}  // namespace kt
