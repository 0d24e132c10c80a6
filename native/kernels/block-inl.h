// The outer loops of every tier's prefill kernel.
#pragma once

#include "common-inl.h"

namespace kt {
namespace {

KT_INLINE const uint8_t* panel_at(const PrefillArgs& a, size_t panel) {
    return panel < a.split ? a.panels + panel * a.panel_stride : a.more + (panel - a.split) * a.panel_stride;
}

// Bfloat16 values of columns begin .. begin + count - 1 of a panel, in place or decoded into scratch. Where
// count is no multiple of Step, zeros follow up to one.
template <size_t Step>
const uint16_t* decoded(const PrefillArgs& a, size_t panel, size_t begin, size_t count, uint16_t* scratch) {
    const uint8_t* const from = panel_at(a, panel);
    if (a.unpack) {
        a.unpack(from, begin, begin + count, scratch);
        return scratch;
    }
    const uint8_t* const values = from + 2 * kPanelRows * begin;
    if (count % Step == 0) return reinterpret_cast<const uint16_t*>(values);
    const size_t bytes = 2 * kPanelRows * ((count + 1) / 2 * 2);
    __builtin_memcpy(scratch, values, bytes);
    __builtin_memset(reinterpret_cast<uint8_t*>(scratch) + bytes, 0,
                     2 * kPanelRows * ((count + Step - 1) / Step * Step) - bytes);
    return scratch;
}

// Stored weights of the block that comes next, for each of its panels: to be asked for in good time.
struct Ahead {
    const uint8_t* at[kBlockPanels];
    size_t bytes;
};

template <size_t Columns>
Ahead ahead(const PrefillArgs& a, size_t panel, size_t panels, size_t begin, size_t count) {
    size_t next = panel + panels;
    if (next >= a.panel_count) {
        next = 0;
        begin += count;
    }
    if (begin >= a.k) return {};
    const size_t columns = a.k - begin < Columns ? a.k - begin : Columns;
    const size_t offset = a.panel_bytes * begin / a.k, other = next + 1 < a.panel_count ? next + 1 : next;
    return {{panel_at(a, next) + offset, panel_at(a, other) + offset}, a.panel_bytes * columns / a.k};
}

// Calls multiply(panel, panels, weights, begin, count): weights[i] are the values of panel + i. Blocks of K
// are outermost, so that a block of the rows' columns stays in the caches for all panels, and a result goes
// through float32 memory between blocks.
template <size_t Columns, size_t Panels, size_t Step, class Multiply>
KT_INLINE void for_each_block(const PrefillArgs& a, Multiply&& multiply) {
    static_assert(Columns <= kBlockColumns && Panels <= kBlockPanels);
    for (size_t begin = 0; begin < a.k; begin += Columns) {
        const size_t count = a.k - begin < Columns ? a.k - begin : Columns;
        for (size_t p = 0; p < a.panel_count; p += Panels) {
            const size_t panels = a.panel_count - p < Panels ? a.panel_count - p : Panels;
            const uint16_t* weights[Panels];
            for (size_t i = 0; i < panels; ++i) {
                weights[i] = decoded<Step>(a, p + i, begin, count, a.scratch + i * kPanelRows * Columns);
            }
            multiply(p, panels, weights, begin, count);
        }
    }
}

}  // namespace
}  // namespace kt
