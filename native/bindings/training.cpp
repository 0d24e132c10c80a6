// Training through the experts: addresses and shapes, which kt_core.kernels.training has checked.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "kt/training.h"

namespace py = pybind11;

namespace {

using Three = std::array<uintptr_t, kt::kProjections>;
using Pairs = std::array<std::array<uintptr_t, 2>, kt::kProjections>;

template <class T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// weights, gradient, first, second
using Masters = std::array<uintptr_t, 4>;

// x, ids, weights, gate and up (0: not kept)
using Addresses = std::array<uintptr_t, 5>;

kt::TrainingCall call_of(const Addresses& at, bool bf16, size_t tokens, size_t slots, size_t rank,
                         float scale, const Pairs& lora) {
    kt::TrainingCall call{.x = pointer<const void>(at[0]),
                          .ids = pointer<const int64_t>(at[1]),
                          .weights = pointer<const float>(at[2]),
                          .dtype = bf16 ? kt::Dtype::kBf16 : kt::Dtype::kF32,
                          .tokens = tokens,
                          .slots = slots,
                          .rank = rank,
                          .scale = scale,
                          .gate = pointer<uint16_t>(at[3]),
                          .up = pointer<uint16_t>(at[4])};
    for (size_t i = 0; i < kt::kProjections; ++i) {
        call.lora[i] = {pointer<const uint16_t>(lora[i][0]), pointer<const uint16_t>(lora[i][1])};
    }
    return call;
}

}  // namespace

void bind_training(py::module_& m) {
    py::class_<kt::Training>(m, "Training")
        .def(py::init<const kt::Experts&, size_t>(), py::arg("experts"), py::arg("wave_bytes"),
             py::keep_alive<1, 2>())
        .def_property_readonly("kept_columns", &kt::Training::kept_columns)
        .def(
            "forward",
            [](const kt::Training& self, const Addresses& at, bool bf16, size_t tokens, size_t slots,
               size_t rank, float scale, const Pairs& lora, uintptr_t y, bool as_stored) {
                kt::TrainingCall call = call_of(at, bf16, tokens, slots, rank, scale, lora);
                call.as_stored = as_stored;
                self.forward(call, pointer<void>(y));
            },
            py::call_guard<py::gil_scoped_release>())
        .def(
            "backward",
            [](const kt::Training& self, const Addresses& at, bool bf16, size_t tokens, size_t slots,
               size_t rank, float scale, const Pairs& lora, uintptr_t dy, uintptr_t dx, uintptr_t dweights,
               const Pairs& gradients, const Three& base) {
                kt::TrainingGradients back{.dy = pointer<const void>(dy),
                                           .dx = pointer<void>(dx),
                                           .weights = pointer<float>(dweights)};
                for (size_t i = 0; i < kt::kProjections; ++i) {
                    back.lora[i] = {pointer<float>(gradients[i][0]), pointer<float>(gradients[i][1])};
                    back.base[i] = pointer<float>(base[i]);
                }
                self.backward(call_of(at, bf16, tokens, slots, rank, scale, lora), back);
            },
            py::call_guard<py::gil_scoped_release>());
    m.def(
        "step_experts",
        [](kt::Experts& experts, const std::array<float, 8>& how, const std::array<Masters, 3>& masters) {
            const auto [rate, beta_second, epsilon, decay, rest_first, rest_second, unbias_first,
                        unbias_second] = how;
            std::array<kt::Masters, kt::kProjections> three;
            for (size_t i = 0; i < kt::kProjections; ++i) {
                const auto [weights, gradient, first, second] = masters[i];
                three[i] = {pointer<float>(weights), pointer<const float>(gradient), pointer<float>(first),
                            pointer<float>(second)};
            }
            kt::step(
                experts,
                {rate, beta_second, epsilon, decay, rest_first, rest_second, unbias_first, unbias_second},
                three);
        },
        py::call_guard<py::gil_scoped_release>());
}
