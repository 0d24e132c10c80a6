// The parts of a decoder layer beside its weights: addresses, sizes and names, as in module.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <stdexcept>
#include <tuple>

#include "kt/attention.h"
#include "kt/heads.h"
#include "kt/layer.h"
#include "layer_types.h"

namespace py = pybind11;

namespace {

using kt::Dtype;
using kt::bindings::Choice;
using kt::bindings::dtype_of;
using kt::bindings::Layout;
using kt::bindings::layout_of;
using kt::bindings::pointer;
using kt::bindings::Weighing;

void move_rows(bool write, const Layout& layout, uintptr_t pages, size_t page_count, uintptr_t slots,
               size_t tokens, const std::array<uintptr_t, 2>& rows, const std::array<size_t, 2>& strides,
               const std::string& dtype) {
    const kt::PageRows call{layout_of(layout),
                            pointer<uint8_t>(pages),
                            page_count,
                            pointer<const int64_t>(slots),
                            tokens,
                            pointer<void>(rows[0]),
                            pointer<void>(rows[1]),
                            dtype_of(dtype),
                            strides[0],
                            strides[1]};
    const py::gil_scoped_release release;
    kt::Pool::Lease lease(kt::default_pool());
    write ? kt::write_pages(lease, call) : kt::read_pages(lease, call);
}

// batch: tables, columns of tables, lengths, starts, sequences
using Batch = std::tuple<uintptr_t, size_t, uintptr_t, uintptr_t, size_t>;
// rows: q, elements from token to token, query heads, out, dtype
using Queries = std::tuple<uintptr_t, size_t, size_t, uintptr_t, std::string>;
// scale, softcap, window (0: none), sinks
using Rule = std::tuple<float, float, size_t, uintptr_t>;

void attend(const Layout& layout, uintptr_t pages, size_t page_count, const Batch& batch, const Queries& rows,
            const Rule& rule, const std::string& tier) {
    const auto& [tables, table_stride, lengths, starts, sequences] = batch;
    const auto& [q, q_stride, query_heads, out, dtype] = rows;
    const auto& [scale, softcap, window, sinks] = rule;
    const kt::AttentionCall call{.layout = layout_of(layout),
                                 .pages = pointer<const uint8_t>(pages),
                                 .page_count = page_count,
                                 .tables = pointer<const int32_t>(tables),
                                 .table_stride = table_stride,
                                 .lengths = pointer<const int32_t>(lengths),
                                 .starts = pointer<const int32_t>(starts),
                                 .sequences = sequences,
                                 .q = pointer<const void>(q),
                                 .q_stride = q_stride,
                                 .query_heads = query_heads,
                                 .out = pointer<void>(out),
                                 .dtype = dtype_of(dtype),
                                 .scale = scale,
                                 .softcap = softcap,
                                 .window = window ? window : SIZE_MAX,
                                 .sinks = pointer<const float>(sinks)};
    const kt::Kernels& kernels = kt::kernels(tier);
    const py::gil_scoped_release release;
    kt::Pool::Lease lease(kt::default_pool());
    kt::attend(lease, kernels, call);
}

// (data, elements from token to token)
using Rows = std::pair<uintptr_t, size_t>;

void rms_norm(const Rows& x, uintptr_t residual, const Rows& y, const std::string& dtype, uintptr_t weight,
              float offset, float epsilon, const std::array<size_t, 3>& sizes, const std::string& tier) {
    const kt::NormCall call{pointer<const void>(x.first),
                            x.second,
                            pointer<void>(residual),
                            pointer<void>(y.first),
                            y.second,
                            dtype_of(dtype),
                            pointer<const float>(weight),
                            offset,
                            epsilon,
                            sizes[0],
                            sizes[1],
                            sizes[2]};
    const kt::Kernels& kernels = kt::kernels(tier);
    const py::gil_scoped_release release;
    kt::Pool::Lease lease(kt::default_pool());
    kt::rms_norm(lease, kernels, call);
}

// sizes: tokens, heads, head size, first rotated column, pairs; table: cosines, sines, rows
void rotate(const Rows& x, const std::string& dtype, const std::array<size_t, 5>& sizes, bool interleaved,
            const std::tuple<uintptr_t, uintptr_t, size_t>& table, uintptr_t positions,
            const std::string& tier) {
    const auto& [cosine, sine, table_rows] = table;
    const kt::RotateCall call{pointer<void>(x.first),
                              x.second,
                              dtype_of(dtype),
                              sizes[0],
                              sizes[1],
                              sizes[2],
                              sizes[3],
                              sizes[4],
                              interleaved,
                              pointer<const float>(cosine),
                              pointer<const float>(sine),
                              table_rows,
                              pointer<const int64_t>(positions)};
    const kt::Kernels& kernels = kt::kernels(tier);
    const py::gil_scoped_release release;
    kt::Pool::Lease lease(kt::default_pool());
    kt::rotate(lease, kernels, call);
}

void route(uintptr_t logits, const std::array<size_t, 3>& sizes, const Choice& choice,
           const Weighing& weighing, uintptr_t ids, uintptr_t weights, const std::string& tier) {
    const kt::RouteArgs rule = kt::bindings::rule_of(sizes[1], sizes[2], choice, weighing);
    const kt::RouteCall call{rule, pointer<const float>(logits), sizes[0], pointer<int64_t>(ids),
                             pointer<float>(weights)};
    const kt::Kernels& kernels = kt::kernels(tier);
    const py::gil_scoped_release release;
    kt::Pool::Lease lease(kt::default_pool());
    kt::route(lease, kernels, call);
}

void combine(const std::string& kind, const Rows& a, const Rows& b, const Rows& out, const std::string& dtype,
             const std::array<size_t, 2>& sizes, const std::string& tier) {
    const kt::CombineCall call{kt::bindings::combination_of(kind),
                               pointer<const void>(a.first),
                               a.second,
                               pointer<const void>(b.first),
                               b.second,
                               pointer<void>(out.first),
                               out.second,
                               dtype_of(dtype),
                               sizes[0],
                               sizes[1]};
    const kt::Kernels& kernels = kt::kernels(tier);
    const py::gil_scoped_release release;
    kt::Pool::Lease lease(kt::default_pool());
    kt::combine(lease, kernels, call);
}

// weights: uint8 [heads * rows, row_bytes], head after head
std::unique_ptr<kt::HeadLinear> make_head_linear(const std::string& format, size_t heads, size_t cols,
                                                 const py::buffer& weights, const std::string& tier) {
    const kt::Kernels& kernels = kt::kernels(tier);
    const py::buffer_info info = weights.request();
    if (info.itemsize != 1 || info.ndim != 2 || info.strides[1] != 1 || info.strides[0] != info.shape[1]) {
        throw std::invalid_argument("weight data must be uint8 [heads * rows, row_bytes] without gaps");
    }
    const size_t all = static_cast<size_t>(info.shape[0]), row_bytes = static_cast<size_t>(info.shape[1]);
    if (heads == 0 || all == 0 || all % heads)
        throw std::invalid_argument("rows must be the same for every head");
    const size_t rows = all / heads;
    std::vector<kt::StoredMatrix> stored;
    for (size_t h = 0; h < heads; ++h) {
        const uint8_t* const data = static_cast<const uint8_t*>(info.ptr) + h * rows * row_bytes;
        stored.push_back(kt::stored_matrix(
            kernels,
            {.format = format, .rows = rows, .cols = cols, .data = {data, rows, row_bytes, row_bytes}}));
    }
    const py::gil_scoped_release release;
    return std::make_unique<kt::HeadLinear>(kt::default_pool(), kernels, stored);
}

// strides: of x and of y, from token to token and from head to head
void head_linear(const kt::HeadLinear& self, uintptr_t x, uintptr_t y, const std::array<size_t, 4>& strides,
                 const std::string& dtype, size_t tokens) {
    kt::Pool::Lease lease(self.pool());
    self.forward(lease, {pointer<void>(x), strides[0], strides[1]}, dtype_of(dtype), tokens,
                 {pointer<void>(y), strides[2], strides[3]});
}

}  // namespace

void bind_attention(py::module_& m) {
    m.def("page_bytes", [](const Layout& layout) { return layout_of(layout).page_bytes(); });
    m.def("move_rows", &move_rows);
    m.def("attend", &attend);
    m.def("rms_norm", &rms_norm);
    m.def("rotate", &rotate);
    m.def("route", &route);
    m.def("combine", &combine);
    py::class_<kt::HeadLinear>(m, "HeadLinear")
        .def(py::init(&make_head_linear))
        .def_property_readonly("rows", &kt::HeadLinear::rows)
        .def_property_readonly("cols", &kt::HeadLinear::cols)
        .def_property_readonly("nbytes", &kt::HeadLinear::bytes)
        .def("forward", &head_linear, py::call_guard<py::gil_scoped_release>());
}
