// Experts that a device's stream asks for, as kt_core.kernels.relay uses them.
#include "kt/relay.h"

#include <pybind11/pybind11.h>

#include "layer_types.h"

namespace py = pybind11;

namespace {

using kt::bindings::pointer;

uintptr_t add(kt::Relay& relay, const kt::Experts& experts,
              const std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t>& at, const std::string& dtype,
              size_t tokens, size_t slots, uintptr_t elsewhere, uintptr_t words) {
    const auto [x, ids, weights, y] = at;
    const kt::ExpertsCall call{pointer<const void>(x),
                               pointer<const int64_t>(ids),
                               pointer<const float>(weights),
                               pointer<void>(y),
                               kt::bindings::dtype_of(dtype),
                               tokens,
                               slots,
                               pointer<const uint8_t>(elsewhere)};
    // two cache lines, as the caller says: one that the device writes, one that it waits for
    return reinterpret_cast<uintptr_t>(
        relay.add({&experts, call, pointer<uint32_t>(words), pointer<uint32_t>(words + 64)}));
}

}  // namespace

void bind_relay(py::module_& m);

void bind_relay(py::module_& m) {
    m.def("answer_from_host", [] { return reinterpret_cast<uintptr_t>(&kt::Relay::answer_from_host); });
    py::class_<kt::Relay>(m, "Relay")
        .def(py::init<>())
        .def("add", &add, py::keep_alive<1, 2>())
        .def("__len__", &kt::Relay::size)
        .def(
            "serve",
            [](kt::Relay& self, double seconds) { self.serve(std::chrono::duration<double>(seconds)); },
            py::call_guard<py::gil_scoped_release>())
        .def("check", &kt::Relay::check);
}
