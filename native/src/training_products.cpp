// An expert's rows X give G = X Wg' + Zg Bg', Zg = s X Ag', the same for U, h = act(G, U) and
// D = h Wd' + Zd Bd', Zd = s h Ad'; y sums w D. With Qd = s dY Bd the way back is
//
//   dh = dY Wd + Qd Ad          dw = h . dh (so D is not needed)       dG, dU = w dh through the activation
//   dX = dG Wg + dU Wu + Qg Ag + Qu Au                                 Qg = s dG Bg, Qu = s dU Bu
//   dAg = Qg' X, dBg' = Zg' dG; the same for up; dAd = (w Qd)' h, dBd' = (w Zd)' dY
//
// A product with W and not W' reads the same panels: a block of columns is decoded and turned over in a
// core's cache, and then all rows of the expert pass it by the prefill kernel. The low-rank matrices are
// packed into panels at each call (they change with each step) and go the same two ways.
#include "training_run.h"

namespace kt {

using namespace training;

void Training::Run::prepare(const Worker& worker, Phase& phase, const void* from, const Rows& to) const {
    phase.run(worker, [&](size_t t, size_t) {
        round()(row_f32(from, call.dtype, t, hidden, wide + worker.index * hidden), 0, hidden, to.at(t));
    });
}

// Matrix `task` of the group's six.
void Training::Run::pack_lora(const Group& group, size_t task) const {
    const size_t p = task / 2;
    if (p < first_projection()) return;
    const bool is_a = task % 2 == 0;
    const PanelMatrix& to = is_a ? group.a[p] : group.b[p];
    const uint16_t* const from = (is_a ? call.lora[p].a : call.lora[p].b) + group.expert * to.rows * to.cols;
    StoredMatrix stored{};
    stored.format = bf16;
    stored.rows = to.rows;
    stored.cols = to.cols;
    stored.data = reinterpret_cast<const uint8_t*>(from);
    stored.stride = to.cols * sizeof(uint16_t);
    for (size_t i = 0; i < to.panel_count(); ++i) {
        kernels.formats[bf16].pack(stored, i * kPanelRows, const_cast<uint8_t*>(to.panels) + i * to.stride);
    }
}

// Rows `first` + block.row and on, of the wave's, into the block's tiles.
void Training::Run::gather_rows(const Own& own, const Block& block, const Tiles& tiles, size_t columns,
                                const uint8_t* const* rows, size_t first) const {
    for (size_t i = 0; i < block.count; ++i) {
        gather(kernels.prefill, tiles, rows[first + block.row + i], 0, columns, block.row + i);
    }
    if (block.tile + block.tiles < tiles.count) return;
    std::fill_n(own.row, prepared_bytes(Policy::kBf16, columns), uint8_t{0});
    fill_up(kernels.prefill, tiles, own.row, 0, columns, block.row + block.count);
}

void Training::Run::multiply(const Own& own, const PanelMatrix& m, size_t panel, size_t width,
                             const Tiles& tiles, const Block& block, float* to) const {
    prefill(kernels, m, panel, width, tiles, block.tile, block.tiles, own.decoded, to);
}

// The same for a block whose rows are also given one by one; few of them meet the weights as they are stored.
void Training::Run::multiply_rows(const Own& own, const PanelMatrix& m, size_t panel, size_t width,
                                  const Tiles& tiles, const Block& block, const uint8_t* const* rows,
                                  float* to) const {
    const FormatEntry& format = kernels.formats[m.format];
    const size_t stride = prepared_bytes(Policy::kInt8, m.cols);
    if (!call.as_stored || back || format.info->policy != Policy::kInt8 || tiles.count > 1 ||
        block.count > kFewRows || block.count * stride > kDecodedValues * sizeof(uint16_t)) {
        multiply(own, m, panel, width, tiles, block, to);
        return;
    }
    float* const values = reinterpret_cast<float*>(own.turned);
    uint8_t* const prepared = reinterpret_cast<uint8_t*>(own.decoded);
    const uint8_t* few[kFewRows];
    for (size_t i = 0; i < block.count; ++i) {
        widen(reinterpret_cast<const uint16_t*>(rows[i]), m.cols, values);
        kernels.prepare[static_cast<size_t>(Policy::kInt8)](values, 0, m.cols, prepared + i * stride);
        few[i] = prepared + i * stride;
    }
    // One at a time: panels of gate and up lie in turn.
    for (size_t p = 0; p < width; ++p) {
        format.matmul({m.panels + (panel + p) * m.stride, m.panel_bytes, 1, m.cols, few, block.count,
                       to + p * kPanelRows, width * kPanelRows, kernels.asks});
    }
}

// Columns begin .. end - 1 of m, whose rows are `first_row` and on of a weight, as panels of the weight
// turned over. Columns after m's last become zeros.
void Training::Run::turn(const PanelMatrix& m, size_t first_row, size_t begin, size_t end, uint16_t* to,
                         size_t stride) const {
    alignas(64) uint16_t block[kMostTurned * kPanelRows];
    const FormatEntry& format = kernels.formats[m.format];
    const size_t columns = end - begin, valid = std::min(end, m.cols) - begin;
    for (size_t p = 0; p < m.panel_count(); ++p) {
        const uint8_t* const panel = m.panels + p * m.stride;
        const uint16_t* from = reinterpret_cast<const uint16_t*>(panel) + begin * kPanelRows;
        if (format.unpack)
            format.unpack(panel, begin, begin + divide_up(valid, format.info->step) * format.info->step,
                          block);
        if (valid < columns) {
            const size_t values = divide_up(valid, 2) * 2 * kPanelRows;
            if (!format.unpack) std::copy_n(from, values, block);
            std::fill(block + values, block + columns * kPanelRows, uint16_t{0});
        }
        if (format.unpack || valid < columns) from = block;
        kernels.training.turn(from, columns / kPanelRows, to + (first_row + p * kPanelRows) * kPanelRows,
                              stride);
    }
}

// `end` - `begin` is a multiple of 16; the result's rows are the columns, its columns the weight's rows.
PanelMatrix Training::Run::turned(const Group& group, size_t projection, size_t begin, size_t end,
                                  uint16_t* to) const {
    const size_t rows = out(projection), stride = padded(rows) * kPanelRows;
    const std::vector<size_t>& firsts = begins(projection);
    for (size_t part = 0; part + 1 < firsts.size(); ++part) {
        turn(panels(group, part, projection), firsts[part] * kPanelRows, begin, end, to, stride);
    }
    return {bf16, end - begin, rows, 2 * stride, 2 * stride, reinterpret_cast<const uint8_t*>(to)};
}

PanelMatrix Training::Run::turned(const PanelMatrix& m, size_t begin, size_t end, uint16_t* to) const {
    const size_t stride = padded(m.rows) * kPanelRows;
    turn(m, 0, begin, end, to, stride);
    return {bf16, end - begin, m.rows, 2 * stride, 2 * stride, reinterpret_cast<const uint8_t*>(to)};
}

// Z of a block's rows by A, or Q by B turned over.
void Training::Run::inner_product(const Own& own, const Wave& wave, const Block& block, size_t projection,
                                  bool forward) const {
    const Group& group = wave.groups[block.group];
    const Tiles& dout = projection == kGate ? group.dgate : projection == kUp ? group.dup : group.dy;
    const Tiles& tiles = !forward ? dout : projection == kDown ? group.h : group.x;
    for (size_t column = 0; column < rank_columns; column += kTurned) {
        const size_t columns = std::min(kTurned, rank_columns - column), width = columns / kPanelRows;
        if (forward) {
            multiply(own, group.a[projection], column / kPanelRows, width, tiles, block, own.out[0]);
        } else {
            const PanelMatrix b = turned(group.b[projection], column, column + columns, own.turned);
            multiply(own, b, 0, width, tiles, block, own.out[0]);
        }
        keep_inner(own, wave, block, projection, forward, column, columns, own.out[0]);
    }
}

// Columns of Z or Q, not scaled yet, to float32 rows, which serve the gradients, and to tiles. Down's rows
// count as their routing weight says in the gradients alone.
void Training::Run::keep_inner(const Own& own, const Wave& wave, const Block& block, size_t projection,
                               bool forward, size_t column, size_t columns, float* values) const {
    const Group& group = wave.groups[block.group];
    const Tiles& tiles = forward ? group.z[projection] : group.q[projection];
    const size_t end = std::min(column + columns, call.rank);
    for (size_t i = 0; i < block.count; ++i) {
        float* const from = values + i * columns;
        const Route& route = routes[group.first + block.row + i];
        const size_t row = group.first - wave.first + block.row + i;
        const float weight = projection == kDown ? call.weights[route.token * call.slots + route.slot] : 1.0f;
        float* const to = (forward ? wave.z : wave.q)[projection] + row * rank_columns + column;
        for (size_t j = 0; j < columns; ++j) {
            from[j] *= call.scale;
            to[j] = weight * from[j];
        }
        round()(from, column, end, own.row);
        gather(kernels.prefill, tiles, own.row, column, end, block.row + i);
    }
    if (block.tile + block.tiles < tiles.count) return;
    std::fill_n(own.row, prepared_bytes(Policy::kBf16, call.rank), uint8_t{0});
    fill_up(kernels.prefill, tiles, own.row, column, end, block.row + block.count);
}

namespace {

void add_bias(const float* bias, size_t columns, size_t count, float* rows) {
    for (size_t i = 0; i < count && bias; ++i) {
        for (size_t j = 0; j < columns; ++j) rows[i * columns + j] += bias[j];
    }
}

void add(const float* from, size_t n, float* to) {
    for (size_t i = 0; i < n; ++i) to[i] += from[i];
}

}  // namespace

// Columns of G, U and h. Where activations are kept, h is made of what is kept, so that the way back sees the
// same numbers as this one.
void Training::Run::gate_up(const Own& own, const Wave& wave, size_t g, size_t part, size_t panel,
                            size_t width) const {
    const Group& group = wave.groups[g];
    const Experts::Part& weights = layer.experts_[group.expert].parts[part];
    const size_t first = layer.inner_[part] + panel, begin = first * kPanelRows, columns = width * kPanelRows;
    const size_t end = std::min(begin + columns, inner), base = group.first - wave.first;
    for_blocks(wave, g, [&](const Block& block) {
        for (size_t p = first_projection(); p <= kUp; ++p) {
            multiply_rows(own, panels(group, part, p), panel, width, group.x, block,
                          wave.pointers[0] + base + block.row, own.out[p]);
            if (lora()) {
                multiply(own, group.b[p], first, width, group.z[p], block, own.out[3]);
                add(own.out[3], block.count * columns, own.out[p]);
            }
            const float* const bias = p == kGate ? weights.gate_bias : weights.up_bias;
            add_bias(bias ? bias + panel * kPanelRows : nullptr, columns, block.count, own.out[p]);
            const Rows& kept = p == kGate ? wave.gate : wave.up;
            for (size_t i = 0; i < block.count; ++i) {
                float* const values = own.out[p] + i * columns;
                uint8_t* const to = kept.at(base + block.row + i);
                round()(values, begin, end, to);
                widen(reinterpret_cast<const uint16_t*>(to) + begin, end - begin, values);
            }
        }
        const Gating& gating = layer.gating_;
        float* const h = own.out[kUp];
        kernels.activate[static_cast<size_t>(gating.activation)](own.out[first_projection()], h,
                                                                 block.count * columns, gating.clamp, h);
        for (size_t i = 0; i < block.count; ++i) {
            uint8_t* const row = wave.h.at(base + block.row + i);
            round()(h + i * columns, begin, end, row);
            gather(kernels.prefill, group.h, row, begin, end, block.row + i);
        }
    });
    std::fill_n(own.row, prepared_bytes(Policy::kBf16, inner), uint8_t{0});
    fill_up(kernels.prefill, group.h, own.row, begin, end, group.count);
}

// Columns of D.
void Training::Run::down(const Own& own, const Wave& wave, size_t g, size_t part, size_t panel,
                         size_t width) const {
    const Group& group = wave.groups[g];
    const float* const bias = layer.experts_[group.expert].parts[part].down_bias;
    const size_t first = layer.outer_[part] + panel, columns = width * kPanelRows;
    for_blocks(wave, g, [&](const Block& block) {
        multiply_rows(own, panels(group, part, kDown), panel, width, group.h, block,
                      wave.pointers[2] + group.first - wave.first + block.row, own.out[0]);
        if (lora()) {
            multiply(own, group.b[kDown], first, width, group.z[kDown], block, own.out[1]);
            add(own.out[1], block.count * columns, own.out[0]);
        }
        add_bias(bias ? bias + panel * kPanelRows : nullptr, columns, block.count, own.out[0]);
        for (size_t i = 0; i < block.count; ++i) {
            const size_t row = group.first - wave.first + block.row + i;
            std::copy_n(own.out[0] + i * columns, columns,
                        wave.out + row * padded(hidden) + first * kPanelRows);
        }
    });
}

// Columns of dh, and through the activation to h, dG and dU.
void Training::Run::down_back(const Own& own, const Wave& wave, size_t g, size_t begin) const {
    const Group& group = wave.groups[g];
    const size_t end = std::min(begin + turned_columns, padded(inner));
    const PanelMatrix weight = turned(group, kDown, begin, end, own.turned);
    const PanelMatrix a = lora() ? turned(group.a[kDown], begin, end, own.small) : PanelMatrix{};
    for (size_t at = begin; at < end; at += kTurned) {
        const size_t columns = std::min(kTurned, end - at), width = columns / kPanelRows;
        const size_t panel = (at - begin) / kPanelRows;
        for_blocks(wave, g, [&](const Block& block) {
            multiply(own, weight, panel, width, group.dy, block, own.out[0]);
            if (lora()) {
                multiply(own, a, panel, width, group.q[kDown], block, own.out[1]);
                add(own.out[1], block.count * columns, own.out[0]);
            }
            through_activation(wave, block, at, columns, own.out[0]);
        });
    }
    std::fill_n(own.row, prepared_bytes(Policy::kBf16, inner), uint8_t{0});
    for (const Tiles* tiles : {&group.h, &group.dgate, &group.dup}) {
        fill_up(kernels.prefill, *tiles, own.row, begin, std::min(end, inner), group.count);
    }
}

void Training::Run::through_activation(const Wave& wave, const Block& block, size_t begin, size_t columns,
                                       const float* dh) const {
    const Group& group = wave.groups[block.group];
    const size_t end = std::min(begin + columns, inner), valid = end - begin;
    const ActivateBackFn back_through = kernels.training.back[static_cast<size_t>(layer.gating_.activation)];
    float values[5][kTurned] = {};  // gate, up, h, dgate, dup
    const struct {
        const float* values;
        const Rows& rows;
        const Tiles& tiles;
    } results[] = {
        {values[2], wave.h, group.h}, {values[4], wave.dup, group.dup}, {values[3], wave.dgate, group.dgate}};
    for (size_t i = 0; i < block.count; ++i) {
        const size_t row = group.first - wave.first + block.row + i;
        const Route& route = routes[wave.first + row];
        const auto kept = [&](const Rows& rows, float* to) {
            widen(reinterpret_cast<const uint16_t*>(rows.at(row)) + begin, valid, to);
        };
        if (gated) kept(wave.gate, values[0]);
        kept(wave.up, values[1]);
        const float weight = call.weights[route.token * call.slots + route.slot];
        wave.products[row * divide_up(inner, kTurned) + begin / kTurned] =
            back_through({values[0], values[1], dh + i * columns, weight, columns, layer.gating_.clamp,
                          values[2], values[3], values[4]});
        for (size_t r = 0; r < (gated ? 3 : 2); ++r) {
            uint8_t* const to = results[r].rows.at(row);
            round()(results[r].values, begin, end, to);
            gather(kernels.prefill, results[r].tiles, to, begin, end, block.row + i);
        }
    }
}

// Columns of dX.
void Training::Run::gate_up_back(const Own& own, const Wave& wave, size_t g, size_t begin) const {
    const Group& group = wave.groups[g];
    const size_t end = std::min(begin + turned_columns, padded(hidden));
    for (size_t p = first_projection(); p <= kUp; ++p) {
        const PanelMatrix weight = turned(group, p, begin, end, own.turned);
        const PanelMatrix a = lora() ? turned(group.a[p], begin, end, own.small) : PanelMatrix{};
        for (size_t at = begin; at < end; at += kTurned) {
            const size_t columns = std::min(kTurned, end - at), width = columns / kPanelRows;
            const size_t panel = (at - begin) / kPanelRows;
            for_blocks(wave, g, [&](const Block& block) {
                multiply(own, weight, panel, width, p == kGate ? group.dgate : group.dup, block, own.out[0]);
                if (lora()) {
                    multiply(own, a, panel, width, group.q[p], block, own.out[1]);
                    add(own.out[1], block.count * columns, own.out[0]);
                }
                for (size_t i = 0; i < block.count; ++i) {
                    const size_t row = group.first - wave.first + block.row + i;
                    float* const to = wave.out + row * padded(hidden) + at;
                    const float* const from = own.out[0] + i * columns;
                    if (p == first_projection()) {
                        std::copy_n(from, columns, to);
                    } else {
                        add(from, columns, to);
                    }
                }
            });
        }
    }
}

// dA = Q' (rows that A met) or dB' = Z' (rows that D, G or U got).
void Training::Run::lora_gradient(const Own& own, const Wave& wave, size_t g, size_t projection,
                                  bool of_a) const {
    const Group& group = wave.groups[g];
    const size_t base = group.first - wave.first, columns = of_a ? in(projection) : out(projection);
    constexpr size_t kFirst[kProjections][2] = {{3, 0}, {4, 0}, {1, 2}};  // pointers of outputs, of inputs
    const uint8_t* const* const rows = wave.pointers[kFirst[projection][of_a]] + base;
    const float* const factors = (of_a ? wave.q : wave.z)[projection] + base * rank_columns;
    const LoraGradient& gradient = back->lora[projection];
    float* const to = (of_a ? gradient.a : gradient.b) + group.expert * call.rank * columns;
    const size_t whole = columns / kPanelRows * kPanelRows;
    OuterArgs args{factors, rank_columns, call.rank, rows, group.count, 0, whole, to, columns};
    kernels.training.outer(args);
    if (whole == columns) return;
    args.begin = whole;
    args.columns = args.out_stride = kPanelRows;
    args.out = own.out[0];
    kernels.training.outer(args);
    for (size_t r = 0; r < call.rank; ++r) {
        std::copy_n(own.out[0] + r * kPanelRows, columns - whole, to + r * columns + whole);
    }
}

// A token's rows of the wave, on top of those before; the last wave's result is written.
void Training::Run::sum(const Wave& wave, size_t token, bool first, bool last, bool weighted,
                        void* to) const {
    float* const total = sums + token * hidden;
    if (first) std::fill_n(total, hidden, 0.0f);
    // In the order of the experts, as waves come: in that of slots, sums would depend on how many fit into
    // one.
    const size_t* const rows = row_of + token * call.slots;
    for (size_t begin = wave.first, next;; begin = next + 1) {
        size_t slot = 0;
        next = SIZE_MAX;
        for (size_t i = 0; i < call.slots; ++i) {
            if (rows[i] >= begin && rows[i] < next) next = rows[slot = i];
        }
        if (next >= wave.first + wave.rows) break;
        const float weight = weighted ? call.weights[token * call.slots + slot] : 1.0f;
        const float* const from = wave.out + (next - wave.first) * padded(hidden);
        for (size_t j = 0; j < hidden; ++j) total[j] += weight * from[j];
    }
    if (last) write_row(total, hidden, call.dtype, to, token * hidden);
}

// dw of a row: the parts of h . dh, and what the bias adds to D.
void Training::Run::weight_gradient(const Own& own, const Wave& wave, size_t row) const {
    const Route& route = routes[wave.first + row];
    const size_t blocks = divide_up(inner, kTurned), at = route.token * call.slots + route.slot;
    float total = 0;
    for (size_t i = 0; i < blocks; ++i) total += wave.products[row * blocks + i];
    const uint16_t* from = reinterpret_cast<const uint16_t*>(dy.at(route.token));
    for (const Experts::Part& part : layer.experts_[static_cast<size_t>(call.ids[at])].parts) {
        for (size_t j = 0; j < part.down.rows && part.down_bias; j += kPanelRows) {
            const size_t count = std::min(kPanelRows, part.down.rows - j);
            widen(from + j, count, own.out[0]);
            for (size_t k = 0; k < count; ++k) total += part.down_bias[j + k] * own.out[0][k];
        }
        from += part.down.rows;
    }
    back->weights[at] = total;
}

}  // namespace kt
