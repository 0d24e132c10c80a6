// Gradients of the weights themselves: dWg = dG' X, dWu = dU' X, dWd = dY' (w h), sums over an expert's rows.
//
// They are products like all others once rows and columns change places: what the rows met (X, w h) becomes
// panels of 16 columns by pairs of rows, what they got (dG, dU, dY) becomes rows in tiles.
#include "training_run.h"

namespace kt {

using namespace training;

namespace {

// Columns begin .. end - 1 of rows, from bfloat16 to panels of them by pairs of rows, times a factor of each
// row.
template <class Factor>
void interleave(const uint8_t* const* rows, size_t count, size_t begin, size_t end, const PanelMatrix& to,
                Factor&& factor) {
    float values[kTurned];
    for (size_t row = 0; row < divide_up(count, 2) * 2; ++row) {
        const size_t columns = end - begin;
        std::fill_n(values, kTurned, 0.0f);
        if (row < count) {
            widen(reinterpret_cast<const uint16_t*>(rows[row]) + begin, columns, values);
            const float by = factor(row);
            for (size_t j = 0; j < columns && by != 1.0f; ++j) values[j] *= by;
        }
        for (size_t j = 0; j < padded(columns); ++j) {
            uint8_t* const panel = const_cast<uint8_t*>(to.panels) + (begin + j) / kPanelRows * to.stride +
                                   row / 2 * 4 * kPanelRows;
            reinterpret_cast<uint16_t*>(panel)[j % kPanelRows * 2 + row % 2] = rounded(values[j]);
        }
    }
}

}  // namespace

// Block `block` of X, or of w h after those.
void Training::Run::turn_rows(const Wave& wave, const Group& group, size_t block) const {
    const size_t of_x = divide_up(hidden, kTurned), base = group.first - wave.first;
    const auto one = [](size_t) { return 1.0f; };
    const auto weight = [&](size_t row) {
        const Route& route = routes[group.first + row];
        return call.weights[route.token * call.slots + route.slot];
    };
    if (block < of_x) {
        const size_t begin = block * kTurned, end = std::min(begin + kTurned, hidden);
        interleave(wave.pointers[0] + base, group.count, begin, end, group.x_turned, one);
    } else {
        const size_t begin = (block - of_x) * kTurned, end = std::min(begin + kTurned, inner);
        interleave(wave.pointers[2] + base, group.count, begin, end, group.h_turned, weight);
    }
}

// Rows begin .. of a projection's gradient.
void Training::Run::base_gradient(const Own& own, const Wave& wave, const Group& group, size_t projection,
                                  size_t begin) const {
    constexpr size_t kGot[kProjections] = {3, 4, 1};  // pointers of dG, dU, dY
    const uint8_t* const* const got = wave.pointers[kGot[projection]] + (group.first - wave.first);
    const size_t stride = prepared_bytes(Policy::kBf16, most_rows),
                 rows = std::min(kTurned, out(projection) - begin);
    for (size_t i = 0; i < divide_up(group.count, 2) * 2; ++i) {
        const uint16_t* const from =
            i < group.count ? reinterpret_cast<const uint16_t*>(got[i]) + begin : nullptr;
        for (size_t j = 0; j < rows; ++j)
            reinterpret_cast<uint16_t*>(own.across + j * stride)[i] = from ? from[j] : uint16_t{0};
    }
    Tiles tiles = tile_shape(kernels.prefill, rows, group.count);
    tiles.data = own.across_tiles;
    for (size_t j = 0; j < rows; ++j)
        gather(kernels.prefill, tiles, own.across + j * stride, 0, group.count, j);
    uint8_t* const zeros = own.across + kTurned * stride;
    std::fill_n(zeros, stride, uint8_t{0});
    fill_up(kernels.prefill, tiles, zeros, 0, group.count, rows);

    const PanelMatrix& met = projection == kDown ? group.h_turned : group.x_turned;
    const size_t columns = in(projection), panels = met.panel_count();
    float* const to = back->base[projection] + (group.expert * out(projection) + begin) * columns;
    for (size_t panel = 0; panel < panels; panel += kPrefillPanels) {
        const size_t width = std::min(kPrefillPanels, panels - panel), first = panel * kPanelRows;
        prefill(kernels, met, panel, width, tiles, 0, tiles.count, own.decoded, own.out[0]);
        for (size_t j = 0; j < rows; ++j) {
            std::copy_n(own.out[0] + j * width * kPanelRows, std::min(width * kPanelRows, columns - first),
                        to + j * columns + first);
        }
    }
}

}  // namespace kt
