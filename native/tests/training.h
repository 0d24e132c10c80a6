// Training on odd shapes, in memory that ends at guard pages: every tier against the scalar one, and the same
// bits for any threads, groups and waves.
#pragma once

#include <bit>
#include <deque>

#include "kt/training.h"

namespace {

struct TrainingShape {
    size_t hidden, inner, experts, tokens, slots, rank;
    Activation activation;
    const char* format;
};

void fill_floats(const Guarded& memory, float scale) {
    for (size_t i = 0; i < memory.bytes() / sizeof(float); ++i)
        memory.as<float>()[i] = scale * random_value();
}

void fill_bf16(const Guarded& memory) {
    for (size_t i = 0; i < memory.bytes() / sizeof(uint16_t); ++i) {
        memory.as<uint16_t>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(random_value() / 8) >> 16);
    }
}

// What a run of it is given; its results are apart.
struct TrainingInputs {
    explicit TrainingInputs(const TrainingShape& s)
        : shape(s),
          wide(kernels("scalar"), kernels("scalar").format(s.format), s.inner, s.hidden),
          tall(kernels("scalar"), kernels("scalar").format(s.format), s.hidden, s.inner),
          x(4 * s.tokens * s.hidden),
          dy(4 * s.tokens * s.hidden),
          weights(4 * s.tokens * s.slots),
          ids(8 * s.tokens * s.slots) {
        for (const Guarded* memory : {&x, &dy, &weights}) fill_floats(*memory, 1);
        for (size_t i = 0; i < s.tokens * s.slots; ++i)
            ids.as<int64_t>()[i] = static_cast<int64_t>(generator() % (s.experts + 2)) - 1;
        for (size_t p = 0; p < kProjections; ++p) {
            fill_bf16(a.emplace_back(2 * s.experts * s.rank * in(p)));
            fill_bf16(b.emplace_back(2 * s.experts * out(p) * s.rank));
        }
    }
    size_t in(size_t p) const { return p == 2 ? shape.inner : shape.hidden; }
    size_t out(size_t p) const { return p == 2 ? shape.hidden : shape.inner; }
    bool gated() const { return shape.activation != Activation::kReluSquared; }

    const TrainingShape& shape;
    Stored wide, tall;
    Guarded x, dy, weights, ids;
    std::deque<Guarded> a, b;
};

void append(std::vector<float>& to, const Guarded& from, size_t count) {
    to.insert(to.end(), from.as<float>(), from.as<float>() + count);
}

// y, dx, dw, and the gradients of factors, or of the weights, one after the other.
std::vector<float> trained(const TrainingInputs& in, const Kernels& k, const std::vector<int>& threads,
                           size_t wave_bytes, bool keep, bool base) {
    const TrainingShape& s = in.shape;
    std::vector<ThreadGroup> groups;
    for (const int count : threads) groups.push_back({count, {}});
    Pool pool(groups);
    Experts layer(pool, k, s.experts, s.hidden, s.inner, {s.activation, {2.0f, 1.7f}});
    const ExpertWeights each{in.gated() ? &in.wide.matrix : nullptr, &in.wide.matrix, &in.tall.matrix};
    layer.load(0, std::vector(s.experts, each));
    const Training training(layer, wave_bytes);

    const size_t pairs = s.tokens * s.slots, kept = keep ? pairs * training.kept_columns() : 0;
    const Guarded gate(std::max<size_t>(2 * kept, 64)), up(std::max<size_t>(2 * kept, 64));
    const Guarded y(4 * s.tokens * s.hidden), dx(4 * s.tokens * s.hidden), dw(4 * pairs);
    std::deque<Guarded> found;
    TrainingCall call{.x = in.x.as<float>(),
                      .ids = in.ids.as<int64_t>(),
                      .weights = in.weights.as<float>(),
                      .dtype = Dtype::kF32,
                      .tokens = s.tokens,
                      .slots = s.slots,
                      .rank = base ? 0 : s.rank,
                      .scale = 0.5f,
                      .gate = keep ? gate.as<uint16_t>() : nullptr,
                      .up = keep ? up.as<uint16_t>() : nullptr};
    TrainingGradients back{.dy = in.dy.as<float>(), .dx = dx.as<float>(), .weights = dw.as<float>()};
    for (size_t p = in.gated() ? 0 : 1; p < kProjections; ++p) {
        if (!base) call.lora[p] = {in.a[p].as<uint16_t>(), in.b[p].as<uint16_t>()};
        const size_t sizes[] = {s.experts * in.out(p) * in.in(p), s.experts * s.rank * in.in(p),
                                s.experts * s.rank * in.out(p)};
        for (size_t i = base ? 0 : 1; i < (base ? 1 : 3); ++i) {
            float* const to = found.emplace_back(4 * sizes[i]).as<float>();
            (i == 0 ? back.base[p] : i == 1 ? back.lora[p].a : back.lora[p].b) = to;
        }
    }
    training.forward(call, y.as<float>());
    training.backward(call, back);
    std::vector<float> all;
    append(all, y, s.tokens * s.hidden);
    append(all, dx, s.tokens * s.hidden);
    append(all, dw, pairs);
    for (const Guarded& gradient : found) append(all, gradient, gradient.bytes() / sizeof(float));
    return all;
}

// AdamW's numbers, and what the layer then computes.
std::vector<float> stepped(const TrainingInputs& in, const Kernels& k, const std::vector<int>& threads) {
    const TrainingShape& s = in.shape;
    std::vector<ThreadGroup> groups;
    for (const int count : threads) groups.push_back({count, {}});
    Pool pool(groups);
    Experts layer(pool, k, s.experts, s.hidden, s.inner, {s.activation, {2.0f, 1.7f}});
    const ExpertWeights each{in.gated() ? &in.wide.matrix : nullptr, &in.wide.matrix, &in.tall.matrix};
    layer.load(0, std::vector(s.experts, each));
    std::deque<Guarded> memory;
    std::array<Masters, kProjections> masters;
    const std::mt19937 before = generator;
    generator.seed(5);
    for (size_t p = in.gated() ? 0 : 1; p < kProjections; ++p) {
        const size_t count = s.experts * in.out(p) * in.in(p);
        for (size_t i = 0; i < 4; ++i) fill_floats(memory.emplace_back(4 * count), i < 2 ? 0.1f : 0.0f);
        const auto at = [&](size_t i) { return memory[memory.size() - 4 + i].as<float>(); };
        masters[p] = {at(0), at(1), at(2), at(3)};
    }
    generator = before;
    step(layer, {0.01f, 0.999f, 1e-8f, 0.1f, 0.1f, 0.001f, 0.1f, 0.001f}, masters);
    const Guarded y(4 * s.tokens * s.hidden);
    layer.forward({in.x.as<float>(), in.ids.as<int64_t>(), in.weights.as<float>(), y.as<float>(), Dtype::kF32,
                   s.tokens, s.slots});
    std::vector<float> all;
    for (const Guarded& part : memory) append(all, part, part.bytes() / sizeof(float));
    append(all, y, s.tokens * s.hidden);
    return all;
}

void test_training() {
    constexpr TrainingShape kShapes[] = {
        {1, 1, 2, 3, 1, 1, Activation::kSilu, "BF16"},
        {33, 17, 3, 21, 2, 3, Activation::kGeluTanh, "BF16"},
        {48, 40, 4, 1, 2, 16, Activation::kReluSquared, "BF16"},
        {96, 64, 3, 130, 2, 5, Activation::kSwigluOai, "Q4_0"},
        {129, 70, 5, 37, 3, 17, Activation::kSilu, "BF16"},
        {256, 256, 2, 19, 1, 130, Activation::kSilu, "Q4_K"},
    };
    for (const TrainingShape& shape : kShapes) {
        const TrainingInputs in(shape);
        for (const bool base : {false, true}) {
            const std::vector<float> oracle =
                trained(in, kernels("scalar"), {1}, size_t{1} << 28, true, base);
            for (const Kernels* k : runnable_kernels()) {
                const std::vector<float> one = trained(in, *k, {2}, size_t{1} << 28, true, base);
                compare(one, oracle, 0.05, k->name, shape.format);
                for (const bool keep : {true, false}) {
                    const std::vector<float> other = trained(in, *k, {1, 2}, 1, keep, base);
                    CHECK(one == other, "%s %s %zu: groups, waves, keep %d", k->name, shape.format,
                          shape.hidden, keep);
                }
            }
        }
        if (std::string(shape.format) != "BF16") continue;
        const std::vector<float> oracle = stepped(in, kernels("scalar"), {1});
        for (const Kernels* k : runnable_kernels())
            compare(stepped(in, *k, {1, 2}), oracle, 0.05, k->name, "step");
    }
}

}  // namespace
