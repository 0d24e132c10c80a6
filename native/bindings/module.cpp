// Python sees addresses, shapes and names; all checks that protect memory are made here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <climits>
#include <stdexcept>

#include "kt/experts.h"
#include "kt/linear.h"

namespace py = pybind11;

namespace {

using kt::Dtype;
using kt::Kernels;

// Holds the buffer while it is read.
struct Source {
    py::buffer_info info;
    kt::StoredMatrix matrix;
};

// (format, rows, cols, uint8 [rows, row_bytes])
using Weight = std::tuple<std::string, int64_t, int64_t, py::buffer>;

Source source(const Kernels& kernels, const Weight& weight) {
    const auto& [format, rows, cols, data] = weight;
    kernels.format(format);  // the clearest complaint first
    py::buffer_info info = data.request();
    if (info.itemsize != 1 || info.ndim != 2)
        throw std::invalid_argument("weight data must be uint8 [rows, row_bytes]");
    if (rows < 1 || cols < 1 || info.shape[0] != rows) {
        throw std::invalid_argument("weight data has " + std::to_string(info.shape[0]) + " rows, expected " +
                                    std::to_string(rows));
    }
    const bool dense = info.strides[1] == 1 || info.shape[1] == 1;
    if (!dense || (rows > 1 && info.strides[0] < info.shape[1])) {
        throw std::invalid_argument("the bytes of a weight row must be adjacent and rows must not overlap");
    }
    const size_t row_bytes = static_cast<size_t>(info.shape[1]);
    kt::StoredMatrix matrix =
        kt::stored_matrix(kernels, format, static_cast<size_t>(rows), static_cast<size_t>(cols),
                          static_cast<const uint8_t*>(info.ptr), row_bytes);
    matrix.stride = rows > 1 ? static_cast<size_t>(info.strides[0]) : row_bytes;
    return {std::move(info), matrix};
}

Dtype dtype_of(const std::string& name) {
    if (name == "float32") return Dtype::kF32;
    if (name == "bfloat16") return Dtype::kBf16;
    throw std::invalid_argument("unknown dtype '" + name + "'. Known: float32, bfloat16");
}

kt::Activation activation_of(const std::string& name) {
    if (name == "silu") return kt::Activation::kSilu;
    if (name == "gelu_tanh") return kt::Activation::kGeluTanh;
    throw std::invalid_argument("unknown activation '" + name + "'. Known: silu, gelu_tanh");
}

template <class T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

size_t positive(int64_t value) {
    if (value < 0) throw std::invalid_argument("sizes must not be negative");
    return static_cast<size_t>(value);
}

const char* policy_name(kt::Policy policy) {
    switch (policy) {
        case kt::Policy::kF32:
            return "f32";
        case kt::Policy::kBf16:
            return "bf16";
        case kt::Policy::kInt8:
            return "int8";
    }
    return "";
}

py::dict tier_dict(const kt::Tier& tier, kt::Features features) {
    py::dict out;
    out["name"] = tier.name;
    out["needs"] = kt::names_of(tier.needs);
    out["missing"] = kt::missing(tier, features);
    out["compiled"] = tier.table != nullptr;
    out["runnable"] = kt::runnable(tier, features);
    return out;
}

py::dict choice_dict(const kt::Choice& choice, kt::Features features) {
    constexpr const char* kVerdicts[] = {"ok", "unknown", "not_runnable"};
    py::dict out;
    out["verdict"] = kVerdicts[static_cast<int>(choice.verdict)];
    out["tier"] = choice.tier ? py::object(py::str(choice.tier->name)) : py::object(py::none());
    out["missing"] = choice.tier ? kt::missing(*choice.tier, features) : std::vector<std::string>();
    out["forced"] = choice.forced;
    out["reason"] = choice.reason;
    return out;
}

kt::Feature feature_of(const std::string& name) {
    for (const kt::FeatureName& f : kt::feature_names()) {
        if (name == f.name) return f.bit;
    }
    throw std::invalid_argument("unknown CPU feature '" + name + "'");
}

py::dict choose(const std::vector<std::string>& names, const std::string& forced) {
    kt::Features features = 0;
    for (const std::string& name : names) features |= feature_of(name);
    return choice_dict(kt::choose(features, forced), features);
}

py::list tier_list() {
    py::list out;
    for (const kt::Tier& tier : kt::tiers()) out.append(tier_dict(tier, kt::cpu_features()));
    return out;
}

py::dict format_dict(const std::string& tier, bool assumed) {
    const Kernels kernels = assumed ? kt::assumed(tier) : kt::kernels(tier);
    py::dict out;
    for (size_t i = 0; i < kt::kFormatSlots && kernels.formats[i].info; ++i) {
        const kt::FormatInfo& info = *kernels.formats[i].info;
        py::dict entry;
        entry["policy"] = policy_name(info.policy);
        entry["block"] = info.block;
        entry["tier"] = kernels.provider[i];
        entry["prefill_tier"] = kernels.prefill_provider;
        const size_t from = kernels.prefill_from(i);
        entry["prefill_from"] = from == SIZE_MAX ? py::object(py::none()) : py::object(py::int_(from));
        out[info.name] = entry;
    }
    return out;
}

py::dict pool_dict() {
    kt::Pool::Settings settings;
    {
        const py::gil_scoped_release release;  // it may have to wait for a long forward
        settings = kt::default_pool().settings();
    }
    py::dict out;
    out["threads"] = settings.threads;
    out["cpus"] = settings.cpus;
    out["note"] = settings.note;
    return out;
}

std::unique_ptr<kt::Linear> make_linear(const Weight& weight, uintptr_t bias, const std::string& tier) {
    const Kernels& kernels = kt::kernels(tier);
    const Source from = source(kernels, weight);
    const py::gil_scoped_release release;
    return std::make_unique<kt::Linear>(kt::default_pool(), kernels, from.matrix, pointer<const float>(bias));
}

void load_expert(kt::Experts& experts, int64_t index, const Weight& gate, const Weight& up,
                 const Weight& down) {
    const Source g = source(experts.kernels(), gate), u = source(experts.kernels(), up),
                 d = source(experts.kernels(), down);
    const py::gil_scoped_release release;
    experts.load(static_cast<size_t>(index), g.matrix, u.matrix, d.matrix);
}

}  // namespace

void bind_ceilings(py::module_& m);  // ceilings.cpp

PYBIND11_MODULE(_native, m) {
    m.doc() = "CPU kernels: use them through kt_core.kernels.";
    m.def("features", [] { return kt::names_of(kt::cpu_features()); });
    m.def("tiers", &tier_list);
    m.def("chosen", [] { return choice_dict(kt::chosen(), kt::cpu_features()); });
    m.def("choose", &choose, py::arg("features"), py::arg("forced") = "");
    m.def("formats", &format_dict, py::arg("tier") = "", py::arg("assumed") = false);
    m.def("compiler", [] { return KT_COMPILER; });
    m.def("dropped_tiers", [] { return KT_DROPPED_TIERS; });
    m.def("pool", &pool_dict);
    m.def("deterministic", &kt::deterministic);
    m.def("force_prefill", [](int64_t rows) { kt::force_prefill(positive(rows)); }, py::arg("rows"));
    m.def("set_deterministic", &kt::set_deterministic, py::arg("on"));
    m.def(
        "set_threads", [](int n, std::vector<int> cpus) { kt::default_pool().resize(n, std::move(cpus)); },
        py::arg("threads"), py::arg("cpus"), py::call_guard<py::gil_scoped_release>());

    bind_ceilings(m);
    py::class_<kt::Linear>(m, "Linear")
        .def(py::init(&make_linear), py::arg("weight"), py::arg("bias"), py::arg("tier"))
        .def_property_readonly("rows", &kt::Linear::rows)
        .def_property_readonly("cols", &kt::Linear::cols)
        .def_property_readonly("nbytes", &kt::Linear::bytes)
        .def(
            "forward",
            [](const kt::Linear& self, uintptr_t x, const std::string& dtype, int64_t tokens, uintptr_t y) {
                self.forward(pointer<const void>(x), dtype_of(dtype), positive(tokens), pointer<void>(y));
            },
            py::call_guard<py::gil_scoped_release>());

    py::class_<kt::Experts>(m, "Experts")
        .def(py::init([](int64_t count, int64_t hidden, int64_t intermediate, const std::string& activation,
                         const std::string& tier) {
            return std::make_unique<kt::Experts>(kt::default_pool(), kt::kernels(tier), positive(count),
                                                 positive(hidden), positive(intermediate),
                                                 activation_of(activation));
        }))
        .def_property_readonly("nbytes", &kt::Experts::bytes)
        .def("load", &load_expert)
        .def(
            "forward",
            [](const kt::Experts& self, uintptr_t x, uintptr_t ids, uintptr_t weights, uintptr_t y,
               const std::string& dtype, int64_t tokens, int64_t slots) {
                self.forward({pointer<const void>(x), pointer<const int64_t>(ids),
                              pointer<const float>(weights), pointer<void>(y), dtype_of(dtype),
                              positive(tokens), positive(slots)});
            },
            py::call_guard<py::gil_scoped_release>());
}
