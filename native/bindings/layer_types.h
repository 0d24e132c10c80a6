// What the bindings of a decoder layer's parts share: names, page layouts and routing rules as Python gives
// them.
#pragma once

#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include "kt/attention.h"

namespace kt::bindings {

template <class T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

template <class T>
T named(const std::string& name, const std::map<std::string, T>& known) {
    const auto found = known.find(name);
    if (found != known.end()) return found->second;
    std::string names;
    for (const auto& [key, value] : known) names += (names.empty() ? "" : ", ") + key;
    throw std::invalid_argument("unknown name '" + name + "'. Known: " + names);
}

inline Dtype dtype_of(const std::string& name) {
    return named<Dtype>(name, {{"float32", Dtype::kF32}, {"bfloat16", Dtype::kBf16}});
}

inline Combination combination_of(const std::string& name) {
    return named<Combination>(name, {{"add", Combination::kAdd},
                                     {"multiply", Combination::kMultiply},
                                     {"sigmoid_gate", Combination::kSigmoidGate},
                                     {"silu_gate", Combination::kSiluGate}});
}

// (dtype, heads, key size, value size, page, shared)
using Layout = std::tuple<std::string, size_t, size_t, size_t, size_t, bool>;

inline PageLayout layout_of(const Layout& layout) {
    const auto& [dtype, heads, key_size, value_size, page, shared] = layout;
    const PageLayout out{dtype_of(dtype), heads, key_size, value_size, page, shared};
    out.check();
    return out;
}

// choice: score, bias, groups, top groups, best of a group, what experts outside count as
using Choice = std::tuple<std::string, uintptr_t, size_t, size_t, size_t, float>;
// weighing: softmax last, normalise, epsilon, floor, scale
using Weighing = std::tuple<bool, bool, float, float, float>;

inline RouteArgs rule_of(size_t experts, size_t slots, const Choice& choice, const Weighing& weighing) {
    const auto& [score, bias, groups, top_groups, group_best, outside] = choice;
    const auto& [softmax_last, normalise, epsilon, floor, scale] = weighing;
    return {.logits = nullptr,
            .experts = experts,
            .slots = slots,
            .score = named<Score>(score, {{"softmax", Score::kSoftmax},
                                          {"sigmoid", Score::kSigmoid},
                                          {"sqrtsoftplus", Score::kSqrtSoftplus},
                                          {"logit", Score::kLogit}}),
            .bias = pointer<const float>(bias),
            .groups = groups,
            .top_groups = top_groups,
            .group_best = group_best,
            .outside = outside,
            .softmax_last = softmax_last,
            .normalise = normalise,
            .epsilon = epsilon,
            .floor = floor,
            .scale = scale,
            .scratch = nullptr,
            .ids = nullptr,
            .weights = nullptr};
}

}  // namespace kt::bindings
