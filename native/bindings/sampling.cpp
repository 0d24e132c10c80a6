// The choice of a token: addresses and sizes, as in module.cpp.
#include "kt/sampling.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "layer_types.h"

namespace py = pybind11;

namespace {

using kt::bindings::pointer;
// temperature, top-k, top-p, min-p, typical-p
using How = std::tuple<double, size_t, double, double, double>;

kt::Choosing choosing(const How& how) {
    const auto& [temperature, top_k, top_p, min_p, typical_p] = how;
    return {temperature, top_k, top_p, min_p, typical_p};
}

size_t checked(size_t count) {
    if (count == 0 || count > UINT32_MAX) throw std::invalid_argument("expected 1 to 2^32 - 1 logits");
    return count;
}

// Of each row: the token and the largest logit.
std::vector<std::pair<int64_t, float>> choose(const std::vector<std::tuple<uintptr_t, How, double>>& rows,
                                              size_t count, const std::string& tier) {
    checked(count);
    std::vector<kt::LogitsRow> wanted;
    for (const auto& [logits, how, uniform] : rows)
        wanted.push_back({pointer<const float>(logits), choosing(how), uniform});
    std::vector<kt::Chosen> chosen(rows.size());
    {
        const py::gil_scoped_release release;
        kt::Pool::Lease lease(kt::default_pool());
        kt::choose(lease, kt::kernels(tier), wanted, count, chosen.data());
    }
    std::vector<std::pair<int64_t, float>> found;
    for (const kt::Chosen& one : chosen) found.emplace_back(one.token, one.best);
    return found;
}

}  // namespace

void bind_sampling(py::module_& m) {
    m.def("choose", &choose);
    m.def("candidates", [](uintptr_t logits, size_t count, const How& how, uintptr_t ids, uintptr_t weights,
                           const std::string& tier) {
        return kt::candidates(kt::kernels(tier), pointer<const float>(logits), checked(count), choosing(how),
                              pointer<int64_t>(ids), pointer<float>(weights));
    });
    m.def("largest", [](uintptr_t x, size_t count, size_t k, uintptr_t ids, const std::string& tier) {
        return kt::largest(kt::kernels(tier), pointer<const float>(x), checked(count), k,
                           pointer<int64_t>(ids));
    });
    m.def("log_total", [](uintptr_t x, size_t count, const std::string& tier) {
        return kt::log_total(kt::kernels(tier), pointer<const float>(x), checked(count));
    });
}
