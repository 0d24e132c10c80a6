// Python sees addresses, shapes and names; all checks that protect memory are made here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <climits>
#include <deque>
#include <optional>
#include <stdexcept>

#include "kt/experts.h"
#include "kt/linear.h"

namespace py = pybind11;

namespace {

using kt::Dtype;
using kt::Kernels;

// (format, rows, cols, data, scales, zeros, kind of scales, group, multiplier); arrays are uint8 [rows, row
// bytes] or None, a group of -1 is the whole row, 0 as the format says.
using Array = std::optional<py::buffer>;
using Weight = std::tuple<std::string, int64_t, int64_t, Array, Array, Array, std::string, int64_t, float>;

// Holds the buffers while they are read.
struct Source {
    std::vector<py::buffer_info> infos;
    kt::StoredMatrix matrix;
};

kt::StoredArray array(Source& source, const char* name, const Array& array) {
    if (!array) return {};
    source.infos.push_back(array->request());
    const py::buffer_info& info = source.infos.back();
    if (info.itemsize != 1 || info.ndim != 2) {
        throw std::invalid_argument(std::string("weight ") + name + " must be uint8 [rows, row_bytes]");
    }
    const size_t rows = static_cast<size_t>(info.shape[0]), row_bytes = static_cast<size_t>(info.shape[1]);
    const bool dense = info.strides[1] == 1 || row_bytes == 1;
    if (!dense || (rows > 1 && info.strides[0] < info.shape[1])) {
        throw std::invalid_argument("the bytes of a row of weight " + std::string(name) +
                                    " must be adjacent and rows must not overlap");
    }
    const size_t stride = rows > 1 ? static_cast<size_t>(info.strides[0]) : row_bytes;
    return {static_cast<const uint8_t*>(info.ptr), rows, row_bytes, stride};
}

Source source(const Kernels& kernels, const Weight& weight) {
    const auto& [format, rows, cols, data, scales, zeros, scale, group, multiplier] = weight;
    kernels.format(format);  // the clearest complaint first
    if (rows < 1 || cols < 1) throw std::invalid_argument("a weight needs at least one row and one column");
    if (group < -1) throw std::invalid_argument("a group must not be negative");
    Source out{};
    out.matrix = kt::stored_matrix(kernels, {.format = format,
                                             .rows = static_cast<size_t>(rows),
                                             .cols = static_cast<size_t>(cols),
                                             .data = array(out, "data", data),
                                             .scales = array(out, "scales", scales),
                                             .zeros = array(out, "zeros", zeros),
                                             .scale = scale,
                                             .group = static_cast<size_t>(group == -1 ? cols : group),
                                             .multiplier = multiplier});
    return out;
}

Dtype dtype_of(const std::string& name) {
    if (name == "float32") return Dtype::kF32;
    if (name == "bfloat16") return Dtype::kBf16;
    throw std::invalid_argument("unknown dtype '" + name + "'. Known: float32, bfloat16");
}

kt::Activation activation_of(const std::string& name) {
    if (name == "silu") return kt::Activation::kSilu;
    if (name == "gelu_tanh") return kt::Activation::kGeluTanh;
    if (name == "swiglu_oai") return kt::Activation::kSwigluOai;
    if (name == "relu2") return kt::Activation::kReluSquared;
    throw std::invalid_argument("unknown activation '" + name + "'");
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

// (threads, cpus, node)
using Group = std::tuple<int, std::vector<int>, int>;

std::vector<kt::ThreadGroup> groups_of(const std::vector<Group>& groups) {
    std::vector<kt::ThreadGroup> out;
    for (const auto& [threads, cpus, node] : groups) out.push_back({threads, cpus, node});
    return out;
}

py::dict pool_info(const kt::Pool& pool) {
    kt::Pool::Settings settings;
    {
        const py::gil_scoped_release release;  // it may have to wait for a long forward
        settings = pool.settings();
    }
    py::list groups;
    std::vector<int> cpus;
    for (const kt::ThreadGroup& g : settings.groups) {
        py::dict group;
        group["threads"] = g.threads;
        group["cpus"] = g.cpus;
        group["node"] = g.node < 0 ? py::object(py::none()) : py::object(py::int_(g.node));
        groups.append(group);
        cpus.insert(cpus.end(), g.cpus.begin(), g.cpus.end());
    }
    py::dict out;
    out["threads"] = settings.threads;
    out["cpus"] = cpus;
    out["groups"] = groups;
    out["note"] = settings.note;
    return out;
}

kt::Pool& pool_or_default(kt::Pool* pool) {
    return pool ? *pool : kt::default_pool();
}

std::unique_ptr<kt::Linear> make_linear(const Weight& weight, uintptr_t bias, const std::string& tier,
                                        kt::Pool* pool, const py::object& between) {
    const Kernels& kernels = kt::kernels(tier);
    const Source from = source(kernels, weight);
    std::function<void()> call;
    if (!between.is_none()) {
        call = [&between] {
            const py::gil_scoped_acquire acquire;
            between();
        };
    }
    const py::gil_scoped_release release;
    return std::make_unique<kt::Linear>(pool_or_default(pool), kernels, from.matrix,
                                        pointer<const float>(bias), call);
}

// biases: addresses of float32 rows of gate, up and down, or 0.
// (gate or none, up, down, addresses of their biases or 0)
using ExpertSource = std::tuple<std::optional<Weight>, Weight, Weight, std::array<uintptr_t, 3>>;

void load_experts(kt::Experts& experts, int64_t first, const std::vector<ExpertSource>& sources) {
    std::deque<Source> held;
    const auto hold = [&](const Weight& weight) {
        return &held.emplace_back(source(experts.kernels(), weight)).matrix;
    };
    std::vector<kt::ExpertWeights> weights;
    for (const auto& [gate, up, down, biases] : sources) {
        weights.push_back({gate ? hold(*gate) : nullptr, hold(up), hold(down),
                           pointer<const float>(biases[0]), pointer<const float>(biases[1]),
                           pointer<const float>(biases[2])});
    }
    const py::gil_scoped_release release;
    experts.load(static_cast<size_t>(first), weights);
}

// (address, bytes, has biases, of gate, up and down: (offset, format, rows, cols, bytes of a panel, stride))
py::list expert_places(const kt::Experts& experts, int64_t index) {
    py::list out;
    for (const kt::ExpertPlace& place : experts.places(positive(index))) {
        const auto matrix = [&](const kt::PanelMatrix& m) {
            const std::string format(experts.kernels().formats[m.format].info->name);
            return py::make_tuple(m.panels - place.data, format, m.rows, m.cols, m.panel_bytes, m.stride);
        };
        out.append(py::make_tuple(reinterpret_cast<uintptr_t>(place.data), place.bytes, place.biased,
                                  matrix(place.gate), matrix(place.up), matrix(place.down)));
    }
    return out;
}

}  // namespace

void bind_attention(py::module_& m);  // attention.cpp
void bind_ceilings(py::module_& m);   // ceilings.cpp
void bind_grids(py::module_& m);      // grids.cpp
void bind_program(py::module_& m);    // program.cpp
void bind_relay(py::module_& m);      // relay.cpp
void bind_sampling(py::module_& m);   // sampling.cpp
void bind_training(py::module_& m);   // training.cpp

PYBIND11_MODULE(_native, m) {
    m.doc() = "CPU kernels: use them through kt_core.kernels.";
    bind_attention(m);
    m.def("features", [] { return kt::names_of(kt::cpu_features()); });
    m.def("tiers", &tier_list);
    m.def("chosen", [] { return choice_dict(kt::chosen(), kt::cpu_features()); });
    m.def("choose", &choose, py::arg("features"), py::arg("forced") = "");
    m.def("formats", &format_dict, py::arg("tier") = "", py::arg("assumed") = false);
    m.def("compiler", [] { return KT_COMPILER; });
    m.def("dropped_tiers", [] { return KT_DROPPED_TIERS; });
    m.def("poisoned", &kt::poisoned);
    m.def("set_poison", &kt::set_poison, py::arg("on"));
    m.def("deterministic", &kt::deterministic);
    m.def("force_prefill", [](int64_t rows) { kt::force_prefill(positive(rows)); }, py::arg("rows"));
    m.def("set_deterministic", &kt::set_deterministic, py::arg("on"));
    py::class_<kt::Pool>(m, "Pool")
        .def(py::init([](const std::vector<Group>& groups) {
                 return std::make_unique<kt::Pool>(groups_of(groups));
             }),
             py::arg("groups"), py::call_guard<py::gil_scoped_release>())
        .def("info", &pool_info)
        .def(
            "resize",
            [](kt::Pool& self, const std::vector<Group>& groups) { self.resize(groups_of(groups)); },
            py::arg("groups"), py::call_guard<py::gil_scoped_release>());
    m.def("default_pool", &kt::default_pool, py::return_value_policy::reference);

    bind_ceilings(m);

    py::class_<kt::Linear>(m, "Linear")
        .def(py::init(&make_linear), py::arg("weight"), py::arg("bias"), py::arg("tier"), py::arg("pool"),
             py::arg("between"), py::keep_alive<1, 5>())
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
                         float limit, float alpha, const std::string& tier, kt::Pool* pool) {
                 return std::make_unique<kt::Experts>(
                     pool_or_default(pool), kt::kernels(tier), positive(count), positive(hidden),
                     positive(intermediate), kt::Gating{activation_of(activation), {limit, alpha}});
             }),
             py::keep_alive<1, 9>())
        .def_property_readonly("nbytes", &kt::Experts::bytes)
        .def("asked",
             [](const kt::Experts& self) {
                 std::vector<uint64_t> counts(self.count());
                 for (size_t i = 0; i < counts.size(); ++i) counts[i] = self.asked(i);
                 return counts;
             })
        .def("asked_at", [](const kt::Experts& self) { return reinterpret_cast<uintptr_t>(self.asked_at()); })
        .def("load", &load_experts)
        .def("places", &expert_places)
        .def(
            "forward",
            [](const kt::Experts& self, uintptr_t x, uintptr_t ids, uintptr_t weights, uintptr_t y,
               const std::string& dtype, int64_t tokens, int64_t slots, uintptr_t elsewhere) {
                self.forward({pointer<const void>(x), pointer<const int64_t>(ids),
                              pointer<const float>(weights), pointer<void>(y), dtype_of(dtype),
                              positive(tokens), positive(slots), pointer<const uint8_t>(elsewhere)});
            },
            py::call_guard<py::gil_scoped_release>());
    bind_grids(m);
    bind_program(m);
    bind_relay(m);
    bind_sampling(m);
    bind_training(m);
}
