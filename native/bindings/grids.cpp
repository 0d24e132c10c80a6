// Grids of weights: addresses and sizes, as in module.cpp. It runs on the thread that calls.
#include "kt/grids.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>

#include "kt/dispatch.h"
#include "layer_types.h"

namespace py = pybind11;

namespace {

using kt::bindings::named;
using kt::bindings::pointer;
// count, group, period
using Sizes = std::tuple<size_t, size_t, size_t>;
// grid, rounding, levels, below zero
using Form = std::tuple<std::string, std::string, unsigned, bool>;
// x, weights, scales, offsets, codes
using Places = std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t>;

kt::GridArgs args_of(const Sizes& sizes, const Form& form, const Places& places) {
    const auto& [count, group, period] = sizes;
    const auto& [grid, rounding, levels, below_zero] = form;
    const auto& [x, weights, scales, offsets, codes] = places;
    if (group == 0 || group > kt::kMostGroup || period == 0) {
        throw std::invalid_argument("a group has 1 to " + std::to_string(kt::kMostGroup) + " weights");
    }
    if (levels == 0 || levels > 127) throw std::invalid_argument("expected 1 to 127 levels");
    return {.x = pointer<const float>(x),
            .weights = pointer<const float>(weights),
            .count = count,
            .group = group,
            .period = period,
            .grid = named<kt::Grid>(grid, {{"symmetric", kt::Grid::kSymmetric},
                                           {"zero_point", kt::Grid::kZeroPoint},
                                           {"affine", kt::Grid::kAffine},
                                           {"uneven", kt::Grid::kUneven}}),
            .rounding = named<kt::Rounding>(
                rounding,
                {{"", kt::Rounding::kNone}, {"bf16", kt::Rounding::kBf16}, {"f16", kt::Rounding::kF16}}),
            .levels = static_cast<uint8_t>(levels),
            .below_zero = below_zero,
            .scales = pointer<float>(scales),
            .offsets = pointer<float>(offsets),
            .codes = pointer<uint8_t>(codes)};
}

template <kt::GridFn kt::GridOps::* Op>
void run(const Sizes& sizes, const Form& form, const Places& places, const std::string& tier) {
    const kt::GridArgs args = args_of(sizes, form, places);
    const kt::Kernels& kernels = kt::kernels(tier);
    const py::gil_scoped_release release;
    (kernels.grids.*Op)(args);
}

}  // namespace

void bind_grids(py::module_& m);

void bind_grids(py::module_& m) {
    m.def("search_grids", &run<&kt::GridOps::search>);
    m.def("nearest_codes", &run<&kt::GridOps::nearest>);
}
