// What the machine can do at best, as kt_core.kernels.ceilings asks for it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>

#include "kt/ceilings.h"
#include "kt/dispatch.h"

namespace py = pybind11;

namespace {

constexpr const char* kUnitNames[kt::kUnits] = {"f32", "bf16", "int8", "tile_bf16", "tile_int8"};

std::vector<std::string> units(const std::string& tier) {
    const kt::Kernels& kernels = kt::kernels(tier);
    std::vector<std::string> names;
    for (size_t i = 0; i < kt::kUnits; ++i) {
        if (kernels.peaks[i]) names.emplace_back(kUnitNames[i]);
    }
    return names;
}

kt::Pool& pool_or_default(kt::Pool* pool) {
    return pool ? *pool : kt::default_pool();
}

double peak_rate(const std::string& unit, const std::string& tier, double seconds, kt::Pool* pool) {
    const kt::Kernels& kernels = kt::kernels(tier);
    for (size_t i = 0; i < kt::kUnits; ++i) {
        if (unit != kUnitNames[i] || !kernels.peaks[i]) continue;
        const py::gil_scoped_release release;
        return kt::peak_rate(pool_or_default(pool), kernels.peaks[i], seconds);
    }
    throw std::invalid_argument("kernel tier " + std::string(kernels.name) + " has no unit '" + unit + "'");
}

std::unique_ptr<kt::ReadProbe> make_probe(int64_t bytes, kt::Pool* pool) {
    if (bytes < 1) throw std::invalid_argument("a probe reads at least one byte");
    const py::gil_scoped_release release;
    return std::make_unique<kt::ReadProbe>(pool_or_default(pool), static_cast<size_t>(bytes));
}

}  // namespace

void bind_ceilings(py::module_& m);

void bind_ceilings(py::module_& m) {
    m.def("units", &units, py::arg("tier"));
    m.def("peak_rate", &peak_rate, py::arg("unit"), py::arg("tier"), py::arg("seconds"), py::arg("pool"));
    py::class_<kt::ReadProbe>(m, "ReadProbe")
        .def(py::init(&make_probe), py::arg("bytes"), py::arg("pool"), py::keep_alive<1, 3>())
        .def("rate", &kt::ReadProbe::rate, py::call_guard<py::gil_scoped_release>());
}
