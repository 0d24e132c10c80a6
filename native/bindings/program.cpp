// A program and what it is made of: addresses, sizes and names, as in module.cpp.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <span>

#include "kt/embedding.h"
#include "kt/program.h"
#include "layer_types.h"

namespace py = pybind11;

namespace {

using kt::Program;
using kt::bindings::Choice;
using kt::bindings::Layout;
using kt::bindings::layout_of;
using kt::bindings::named;
using kt::bindings::pointer;
using kt::bindings::rule_of;
using kt::bindings::Weighing;
using Columns = std::pair<size_t, size_t>;  // buffer, first column
using Numbers = py::array_t<float, py::array::c_style | py::array::forcecast>;

Program::Columns at(const Columns& columns) {
    return {columns.first, columns.second};
}

std::span<const float> span(const std::optional<Numbers>& numbers) {
    if (!numbers) return {};
    return {numbers->data(), static_cast<size_t>(numbers->size())};
}

// kind ("rows", "norm", "silu_gate"), x, other, weight, offset, epsilon, keep or None
using Source =
    std::tuple<std::string, Columns, Columns, std::optional<Numbers>, float, float, std::optional<Columns>>;
// linear, y (None: the results), add
using Product = std::tuple<const kt::Linear*, std::optional<Columns>, bool>;

size_t linear(Program& self, const Source& from, const std::vector<Product>& products) {
    const auto& [kind, x, other, weight, offset, epsilon, keep] = from;
    const Program::Source source{
        .kind = named<Program::Source::Kind>(kind, {{"rows", Program::Source::kRows},
                                                    {"norm", Program::Source::kNorm},
                                                    {"silu_gate", Program::Source::kSiluGate}}),
        .x = at(x),
        .other = at(other),
        .weight = span(weight),
        .offset = offset,
        .epsilon = epsilon,
        .keeps = keep.has_value(),
        .keep = keep ? at(*keep) : Program::Columns{0}};
    std::vector<Program::Product> out;
    for (const auto& [weights, y, add] : products) {
        if (!weights) throw std::invalid_argument("a product needs a weight");
        out.push_back({weights, y ? at(*y) : Program::Columns{Program::kResults}, add});
    }
    return self.linear(source, out);
}

void route(Program& self, const Columns& logits, size_t experts, size_t slots, const Choice& choice,
           const Weighing& weighing, const std::optional<Numbers>& bias) {
    self.route(at(logits), rule_of(experts, slots, choice, weighing), span(bias));
}

// tokens, positions, slots, count; tables, their columns, lengths, starts, sequences; outputs, how many;
// embedded; results; adapters
using Step =
    std::tuple<std::array<uintptr_t, 3>, size_t, std::tuple<uintptr_t, size_t, uintptr_t, uintptr_t, size_t>,
               uintptr_t, size_t, uintptr_t, uintptr_t, uintptr_t>;

void run(Program& self, const Step& step) {
    const auto& [tokens, count, batch, outputs, output_count, embedded, results, adapters] = step;
    const auto& [tables, table_stride, lengths, starts, sequences] = batch;
    const py::gil_scoped_release release;
    self.run({.tokens = pointer<const int64_t>(tokens[0]),
              .positions = pointer<const int64_t>(tokens[1]),
              .slots = pointer<const int64_t>(tokens[2]),
              .count = count,
              .tables = pointer<const int32_t>(tables),
              .table_stride = table_stride,
              .lengths = pointer<const int32_t>(lengths),
              .starts = pointer<const int32_t>(starts),
              .sequences = sequences,
              .outputs = pointer<const int64_t>(outputs),
              .output_count = output_count,
              .embedded = pointer<const float>(embedded),
              .results = pointer<float>(results),
              .adapters = pointer<const int32_t>(adapters)});
}

void adapt_experts(Program& self, int32_t adapter, size_t operation, size_t rank, float scale,
                   const std::array<std::array<uintptr_t, 2>, kt::kProjections>& lora) {
    Program::ExpertAdditions additions{.rank = rank, .scale = scale};
    for (size_t i = 0; i < kt::kProjections; ++i) {
        additions.lora[i] = {pointer<const uint16_t>(lora[i][0]), pointer<const uint16_t>(lora[i][1])};
    }
    const py::gil_scoped_release release;
    self.adapt_experts(adapter, operation, additions);
}

}  // namespace

void bind_program(py::module_& m) {
    py::class_<Program>(m, "Program")
        .def(py::init([](size_t max_tokens) {
            return std::make_unique<Program>(kt::default_pool(), kt::kernels(), max_tokens);
        }))
        .def_property_readonly("nbytes", &Program::bytes)
        .def("rows", &Program::rows)
        .def("layer", [](Program& self, const Layout& layout) { return self.layer(layout_of(layout)); })
        .def("set_pages", [](Program& self, size_t layer, uintptr_t pages,
                             size_t count) { self.set_pages(layer, pointer<uint8_t>(pages), count); })
        .def("embed",
             [](Program& self, const std::string& format, uintptr_t table, const std::array<size_t, 3>& sizes,
                const Columns& x) {
                 self.embed(format, pointer<const uint8_t>(table), sizes[0], sizes[1], sizes[2], at(x));
             })
        .def("given", [](Program& self, size_t width, const Columns& x) { self.given(width, at(x)); })
        .def("linear", &linear)
        .def("norm",
             [](Program& self, const Columns& x, const Columns& y, size_t heads, size_t size,
                const std::optional<Numbers>& weight, float offset,
                float epsilon) { self.norm(at(x), at(y), heads, size, span(weight), offset, epsilon); })
        .def("table", [](Program& self, const Numbers& cosine, const Numbers& sine,
                         size_t pairs) { return self.table(span(cosine), span(sine), pairs); })
        .def("rotate",
             [](Program& self, const Columns& x, size_t heads, size_t size, size_t first, bool interleaved,
                size_t table) { self.rotate(at(x), heads, size, first, interleaved, table); })
        .def("write", [](Program& self, size_t layer, const Columns& keys,
                         const Columns& values) { self.write(layer, at(keys), at(values)); })
        .def("attend",
             [](Program& self, size_t layer, const Columns& q, size_t heads, float scale, float softcap,
                size_t window, const std::optional<Numbers>& sinks, const Columns& out) {
                 self.attend(layer, at(q), heads, {scale, softcap, window ? window : SIZE_MAX, span(sinks)},
                             at(out));
             })
        .def(
            "heads",
            [](Program& self, const kt::HeadLinear& linear, const Columns& x, size_t x_stride,
               const Columns& y,
               size_t y_stride) { return self.heads(&linear, at(x), x_stride, at(y), y_stride); },
            py::keep_alive<1, 2>())
        .def("copy",
             [](Program& self, const Columns& x, size_t x_stride, const Columns& y, size_t y_stride,
                size_t heads, size_t size) { self.copy(at(x), x_stride, at(y), y_stride, heads, size); })
        .def("route", &route)
        .def(
            "experts",
            [](Program& self, const kt::Experts& experts, const Columns& x, const Columns& y, bool add) {
                return self.experts(&experts, at(x), at(y), add);
            },
            py::keep_alive<1, 2>())
        .def("combine",
             [](Program& self, const std::string& kind, const Columns& a, const Columns& b,
                const Columns& out, size_t size) {
                 self.combine(kt::bindings::combination_of(kind), at(a), at(b), at(out), size);
             })
        .def("add_gated", [](Program& self, const Columns& x, const Columns& gate, const Columns& y,
                             size_t size) { self.add_gated(at(x), at(gate), at(y), size); })
        .def("gather", [](Program& self, const std::vector<size_t>& buffers) { self.gather(buffers); })
        .def("give", [](Program& self, const Columns& x, size_t width) { self.give(at(x), width); })
        .def("run", &run)
        // What is added is kept alive by the caller until it is forgotten. A step holds the pool: not the GIL
        // meanwhile.
        .def("adapt", &Program::adapt, py::call_guard<py::gil_scoped_release>())
        .def("adapt_heads", &Program::adapt_heads, py::call_guard<py::gil_scoped_release>())
        .def("adapt_experts", &adapt_experts)
        .def("forget", &Program::forget, py::call_guard<py::gil_scoped_release>())
        .def("keep_times", &Program::keep_times)
        .def("times", &Program::times);
    m.def("decodes_rows", [](const std::string& format) { return kt::row_decoder(format) != nullptr; });
}
