// Products of formats that are policy float32 and one value a step: nothing to decode but a load, so with
// many rows the loads are the limit. There K goes in blocks that stay in the first cache, and where registers
// are many, two panels share what is broadcast of a row.
#pragma once

#include "common-inl.h"

namespace kt {
namespace {

template <class F>
concept Floats = requires(const uint8_t* panel) { F::load(panel, size_t{}); };

// Of 64 bytes a panel: two panels' columns and as many of twelve rows are 22 KiB of a cache of 32.
constexpr size_t kFloatColumns = 128;

// With fewer rows a panel comes from memory all the same, and is read in one go.
constexpr size_t kManyRows = 16;

// Adds columns begin .. end - 1 of P panels, F::info.step_bytes for each, times R rows to sum[p][r].
template <class F, int P, int R>
KT_INLINE void add_floats(const uint8_t* const* panels, size_t begin, size_t end, const uint8_t* const* rows,
                          F32x16 (*sum)[R], auto ask) {
    for (size_t i = begin; i < end; ++i) {
        F32x16 w[P];
        KT_UNROLL for (int p = 0; p < P; ++p) {
            prefetch<R, F::info.step_bytes, 4>(panels[p] + F::info.step_bytes * i, ask);
            w[p] = F::load(panels[p], i);
        }
        KT_UNROLL for (int r = 0; r < R; ++r) {
            const float x = load_as<float>(rows[r] + 4 * i);
            KT_UNROLL for (int p = 0; p < P; ++p) sum[p][r] = multiply_add(w[p], x, sum[p][r]);
        }
    }
}

// One block of columns; what was summed before it lies in out.
template <class F, int P, int R>
void float_block(const MatmulArgs& a, const uint8_t* const* panels, size_t begin, size_t end, size_t m,
                 float* out, Asking<false> ask) {
    const uint8_t* rows[R];
    F32x16 sum[P][R];
    KT_UNROLL for (int r = 0; r < R; ++r) {
        rows[r] = a.rows[m + r];
        KT_UNROLL for (int p = 0; p < P; ++p) {
            sum[p][r] = begin ? load_f32(out + r * a.out_stride + kPanelRows * p) : zero_f32();
        }
    }
    add_floats<F, P, R>(panels, begin, end, rows, sum, ask);
    KT_UNROLL for (int r = 0; r < R; ++r) {
        KT_UNROLL for (int p = 0; p < P; ++p) store(out + r * a.out_stride + kPanelRows * p, sum[p][r]);
    }
}

template <class F, int P, int R>
void last_float_rows(const MatmulArgs& a, const uint8_t* const* panels, size_t begin, size_t end, size_t m,
                     float* out, Asking<false> ask) {
    if constexpr (R > 0) {
        if (a.row_count - m != R) return last_float_rows<F, P, R - 1>(a, panels, begin, end, m, out, ask);
        float_block<F, P, R>(a, panels, begin, end, m, out, ask);
    }
}

// P panels from p on, all rows.
template <class F, int P>
void float_panels(const MatmulArgs& a, size_t p, Asking<false> first) {
    const uint8_t* panels[P];
    for (int i = 0; i < P; ++i) panels[i] = a.panels + (p + i) * a.panel_bytes;
    float* const out = a.out + p * kPanelRows;
    for (size_t begin = 0; begin < a.k; begin += kFloatColumns) {
        const size_t end = a.k - begin < kFloatColumns ? a.k : begin + kFloatColumns;
        Asking<false> ask = first;
        size_t m = 0;
        for (; m + kTileRows <= a.row_count; m += kTileRows, ask.bytes = P * a.panel_bytes) {
            float_block<F, P, kTileRows>(a, panels, begin, end, m, out + m * a.out_stride, ask);
        }
        last_float_rows<F, P, kTileRows - 1>(a, panels, begin, end, m, out + m * a.out_stride, ask);
    }
}

template <class F>
void many_floats(const MatmulArgs& a) {
    const uint8_t* const end = a.panels + a.panel_count * a.panel_bytes;
    const Asking<false> ask{kAhead, end, a.next ? a.next - end : 0};
    size_t p = 0;
    for (; p + kTilePanels <= a.panel_count; p += kTilePanels) float_panels<F, kTilePanels>(a, p, ask);
    for (; p < a.panel_count; ++p) float_panels<F, 1>(a, p, ask);
}

}  // namespace
}  // namespace kt
