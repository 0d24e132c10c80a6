// The list of formats, the loop that every format's kernel runs in, and the tier's table.
//
// A format is a struct in formats/<name>-inl.h with `info`, `block<R>` (adds the products of one panel with R
// prepared rows to R sums), `unpack` unless its panels are bfloat16 or its policy float32, and `pack`: from
// 16 rows of k elements, or from a StoredMatrix where it has more than rows. `panel_bytes` where steps vary.
// Where a step is one value as float32 can hold it, `load` takes the place of `block` (floats-inl.h).
// It is written against the sixteen-lane names of simd_*-inl.h. To add one: write that file, include it and
// list it here.
#pragma once

#include "floats-inl.h"
#include "peak-inl.h"
#include "prefill-inl.h"
#include "prepare-inl.h"

#include "formats/bf16-inl.h"
#include "formats/f16-inl.h"
#include "formats/f32-inl.h"
#include "formats/fp8-inl.h"
#include "formats/int4-inl.h"
#include "formats/int8_channel-inl.h"
#include "formats/iq1-inl.h"
#include "formats/iq2-inl.h"
#include "formats/iq3-inl.h"
#include "formats/iq4-inl.h"
#include "formats/mxfp4-inl.h"
#include "formats/nvfp4-inl.h"
#include "formats/q2_k-inl.h"
#include "formats/q3_k-inl.h"
#include "formats/q4_0-inl.h"
#include "formats/q4_1-inl.h"
#include "formats/q4_k-inl.h"
#include "formats/q5_0-inl.h"
#include "formats/q6_k-inl.h"
#include "formats/q8_0-inl.h"

namespace kt {
namespace {

template <class... F>
struct List {};

using Formats = List<F32, F16, BF16, Q8_0, Q4_1, Q4_0, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M,
                     IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, IQ4_K, MXFP4, MXFP4_HF, NVFP4,
                     INT4, GPTQ, AWQ, INT8_CHANNEL, FP8_BLOCK, FP8_CHANNEL, MXFP8>;

// The format whose panels F's are, and with them its kernels: F::Kernel, or F itself.
template <class F>
struct KernelOf {
    using type = F;
};
template <class F>
    requires requires { typename F::Kernel; }
struct KernelOf<F> {
    using type = typename F::Kernel;
};

// Fewer rows than this do not ask ahead in every format.
constexpr int kAllAsk = 4;

// R rows against one panel. Each row's sum runs over K in the same order for every R, so a row's result
// does not depend on how rows are grouped.
template <class F, int R, bool Always>
void row_block(const MatmulArgs& a, const uint8_t* panel, size_t m, float* out, Asking<Always> ask) {
    const uint8_t* rows[R];
    F32x16 sum[R];
    KT_UNROLL for (int r = 0; r < R; ++r) {
        rows[r] = a.rows[m + r];
        sum[r] = zero_f32();
    }
    if constexpr (Floats<F>) {
        add_floats<F, 1, R>(&panel, 0, a.k, rows, &sum, ask);
    } else {
        F::template block<R>(panel, a.k, rows, sum, ask);
    }
    KT_UNROLL for (int r = 0; r < R; ++r) store(out + r * a.out_stride, sum[r]);
}

template <class F, int R>
void last_rows(const MatmulArgs& a, const uint8_t* panel, size_t m, float* out, Asking<false> ask,
               bool always) {
    if constexpr (R > 0) {
        if (a.row_count - m != R) return last_rows<F, R - 1>(a, panel, m, out, ask, always);
        if constexpr (R < kAllAsk) {
            if (always) return row_block<F, R>(a, panel, m, out, Asking<true>{ask.bytes, ask.end, ask.jump});
        }
        row_block<F, R>(a, panel, m, out, ask);
    }
}

template <class F>
void matmul(const MatmulArgs& a) {
    if constexpr (Floats<F>) {
        if (a.row_count >= kManyRows) return many_floats<F>(a);
    }
    const uint8_t* const end = a.panels + a.panel_count * a.panel_bytes;
    const ptrdiff_t jump = a.next ? a.next - end : 0;
    for (size_t p = 0; p < a.panel_count; ++p) {
        const uint8_t* panel = a.panels + p * a.panel_bytes;
        float* const out = a.out + p * kPanelRows;
        size_t m = 0;
        Asking<false> ask{kAhead, end, jump};
        for (; m + kRowBlock <= a.row_count; m += kRowBlock, ask.bytes = a.panel_bytes) {
            row_block<F, kRowBlock>(a, panel, m, out + m * a.out_stride, ask);
        }
        last_rows<F, kRowBlock - 1>(a, panel, m, out + m * a.out_stride, ask, a.asks && m == 0);
    }
}

template <class F>
void pack_rows(const StoredMatrix& stored, size_t first, uint8_t* panel) {
    const RowPointers rows = data_rows(stored, first);
    F::pack(rows.at, stored.cols, panel);
}

template <class F>
constexpr PackFn pack_of() {
    if constexpr (requires(const StoredMatrix& stored) { F::pack(stored, size_t{}, nullptr); }) {
        return F::pack;
    } else {
        return pack_rows<F>;
    }
}

template <class F>
size_t steps_bytes(const StoredMatrix& stored) {
    static_assert(F::info.step_bytes != 0);
    return (stored.cols + F::info.step - 1) / F::info.step * F::info.step_bytes;
}

template <class F>
constexpr PanelBytesFn panel_bytes_of() {
    using K = typename KernelOf<F>::type;
    if constexpr (requires { K::panel_bytes; }) {
        return K::panel_bytes;
    } else {
        return steps_bytes<K>;
    }
}

template <class F>
constexpr UnpackFn unpack_of() {
    using K = typename KernelOf<F>::type;
    if constexpr (requires { K::unpack; }) {
        return K::unpack;
    } else {
        return nullptr;
    }
}

// Whether byte permutes decode the format (grid formats), whatever else the tier brings.
template <class F>
constexpr bool decodes_anew() {
#if defined(KT_VBMI) && defined(KT_VNNI)
    return requires { F::kRecord; };
#else
    return false;
#endif
}

// takes(policy) says which formats the tier has better kernels for than the tier below.
template <class Takes, class... F>
constexpr KernelTable make_table(const char* name, Takes takes, List<F...>, Prefill prefill = {}) {
    static_assert(sizeof...(F) <= kFormatSlots);
    KernelTable table{};
    table.name = name;
    table.prefill = prefill;
    for (size_t u = 0; u < kPolicies; ++u) {
        if (takes(static_cast<Policy>(u))) table.peaks[u] = kPeaks[u];
    }
    size_t i = 0;
    ((table.formats[i++] = takes(F::info.policy) || decodes_anew<F>()
                               ? FormatEntry{&F::info, pack_of<F>(), panel_bytes_of<F>(),
                                             &matmul<typename KernelOf<F>::type>, unpack_of<F>(), 0}
                               : FormatEntry{}),
     ...);
    return table;
}

// With another threshold of the prefill path for some formats.
template <class... F>
constexpr KernelTable with_prefill_from(KernelTable table, uint32_t rows, List<F...>) {
    for (FormatEntry& entry : table.formats) {
        if (((entry.info == &F::info) || ...)) entry.prefill_from = rows;
    }
    return table;
}

// For a tier with a prefill kernel and faster decoding, but no matmul of its own.
template <class... F>
constexpr KernelTable make_prefill_table(const char* name, Prefill prefill, List<F...>) {
    KernelTable table{};
    table.name = name;
    table.prefill = prefill;
    for (size_t u = kPolicies; u < kUnits; ++u) table.peaks[u] = kPeaks[u];
    size_t i = 0;
    ((table.formats[i++].unpack = unpack_of<F>()), ...);
    return table;
}

// For tiers that bring a wider vector and so everything anew.
[[maybe_unused]] constexpr KernelTable make_full_table(const char* name, Prefill prefill) {
    KernelTable table = make_table(name, [](Policy) { return true; }, Formats{}, prefill);
    table.prepare[static_cast<size_t>(Policy::kF32)] = prepare_f32;
    table.prepare[static_cast<size_t>(Policy::kBf16)] = prepare_bf16;
    table.prepare[static_cast<size_t>(Policy::kInt8)] = prepare_int8;
    return table;
}

}  // namespace
}  // namespace kt
