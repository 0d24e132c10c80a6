#include "kt/matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace kt {
namespace {

uint16_t to_bf16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

struct ScaleName {
    Scale kind;
    std::string_view name;
};
constexpr ScaleName kScaleNames[] = {{Scale::kF32, "F32"},
                                     {Scale::kF16, "F16"},
                                     {Scale::kBf16, "BF16"},
                                     {Scale::kE8m0, "E8M0"},
                                     {Scale::kE4m3, "E4M3"}};
// Rows that lie a multiple of so many cache lines apart share a few sets of the first cache, of 4 KiB a way,
// and the rows of one product push each other out.
constexpr size_t kLine = 64, kSameSet = 32;

constexpr size_t kScaleBytes[kScales] = {0, 4, 2, 2, 1, 1};

Scale scale_of(const FormatInfo& info, const Description& d) {
    if (!info.scale_kinds && d.scale.empty()) return Scale::kNone;
    std::string known;
    for (const auto& [kind, name] : kScaleNames) {
        if (!(info.scale_kinds >> static_cast<size_t>(kind) & 1)) continue;
        if (name == d.scale) return kind;
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw std::invalid_argument(std::string(info.name) + " takes scales of " +
                                (known.empty() ? "no kind" : known) + ", got '" + std::string(d.scale) + "'");
}

size_t group_of(const FormatInfo& info, const Description& d) {
    if (!info.scale_kinds) return 0;
    const size_t fixed = info.group == kWholeRow ? d.cols : info.group;
    const size_t group = d.group ? d.group : fixed;
    if (fixed && group != fixed) {
        throw std::invalid_argument(std::string(info.name) + " has groups of " + std::to_string(fixed) +
                                    ", got " + std::to_string(group));
    }
    if (!fixed && (group == 0 || group % kGroup || d.cols % group)) {
        throw std::invalid_argument(std::string(info.name) +
                                    " needs groups of a multiple of 32 that divides its " +
                                    std::to_string(d.cols) + " columns, got " + std::to_string(group));
    }
    return group;
}

struct Size {
    size_t rows, row_bytes;
};
struct Sizes {
    Size data, scales, zeros;
};

Sizes sizes_of(const FormatInfo& info, const Description& d, size_t group, size_t scale_bytes) {
    const size_t groups = group ? divide_up(d.cols, group) : 0;
    const size_t words = d.rows / 8 * 4;  // bytes of a row of 8 nibbles a word
    const bool in_words = info.layout == Layout::kAwq || (info.layout == Layout::kGptq && d.zeros.data);
    if (in_words && d.rows % 8) {
        throw std::invalid_argument(std::string(info.name) + " needs a multiple of 8 rows, got " +
                                    std::to_string(d.rows));
    }
    if (info.layout == Layout::kRows) {
        return {{d.rows, d.cols / info.block * info.block_bytes},
                {group ? divide_up(d.rows, info.scale_rows) : 0, groups * scale_bytes},
                {info.zeros == Zeros::kNever ? 0 : d.rows, divide_up(groups, 2)}};
    }
    const Size data = info.layout == Layout::kGptq ? Size{d.cols / 8, 4 * d.rows} : Size{d.cols, words};
    return {data, {groups, d.rows * scale_bytes}, {groups, words}};
}

// An array of no rows must not be there.
void check(const FormatInfo& info, const char* name, const StoredArray& array, const Size& size) {
    const auto text = [](size_t rows, size_t bytes) {
        return rows ? std::to_string(rows) + " rows of " + std::to_string(bytes) + " bytes" : "none";
    };
    const size_t rows = array.data ? array.rows : 0;
    if (rows != size.rows || (rows && array.row_bytes != size.row_bytes)) {
        throw std::invalid_argument(std::string(info.name) + " needs " + name + ": " +
                                    text(size.rows, size.row_bytes) + ", got " + text(rows, array.row_bytes));
    }
    if (rows > 1 && array.stride < array.row_bytes) {
        throw std::invalid_argument(std::string("rows of ") + name + " must not overlap");
    }
}

}  // namespace

StoredMatrix stored_matrix(const Kernels& kernels, const Description& d) {
    const size_t index = kernels.format(d.format);
    const FormatInfo& info = *kernels.formats[index].info;
    if (d.rows == 0 || d.cols == 0) {
        throw std::invalid_argument("a weight needs at least one row and one column");
    }
    if (std::max(d.rows, d.cols) > INT32_MAX) {  // so that no size below overflows
        throw std::invalid_argument("a weight has at most 2^31 - 1 rows and columns");
    }
    if (d.cols % info.block != 0) {
        throw std::invalid_argument(std::string(info.name) + " needs a multiple of " +
                                    std::to_string(info.block) + " columns, got " + std::to_string(d.cols));
    }
    const size_t group = group_of(info, d);
    const Scale scale = scale_of(info, d);
    const Sizes sizes = sizes_of(info, d, group, kScaleBytes[static_cast<size_t>(scale)]);
    check(info, "data", d.data, sizes.data);
    check(info, "scales", d.scales, sizes.scales);
    if (d.zeros.data || info.zeros == Zeros::kAlways) check(info, "zeros", d.zeros, sizes.zeros);
    if (d.multiplier != 1 && !info.multiplier) {
        throw std::invalid_argument(std::string(info.name) + " has no multiplier");
    }
    return {index,           d.rows, d.cols,       d.data.data,    d.data.stride, d.scales.data,
            d.scales.stride, scale,  d.zeros.data, d.zeros.stride, group,         d.multiplier};
}

PanelMatrix panel_shape(const Kernels& kernels, const StoredMatrix& stored, size_t begin, size_t end) {
    const size_t rows = std::min(stored.rows, end * kPanelRows) - std::min(stored.rows, begin * kPanelRows);
    const size_t bytes = kernels.formats[stored.format].panel_bytes(stored);
    return {stored.format, rows, stored.cols, bytes, bytes, nullptr};
}

namespace {

// Panels of a task. Words of AWQ's rows: 8 panels are a cache line.
size_t task_panels(const Kernels& kernels, const Packing& job) {
    return kernels.formats[job.from->format].info->layout == Layout::kAwq ? 8 : 1;
}

void pack_panels(const Kernels& kernels, const Packing& job, size_t begin, size_t end) {
    const FormatEntry& format = kernels.formats[job.from->format];
    for (size_t p = begin; p < end; ++p) {
        format.pack(*job.from, (job.first + p) * kPanelRows, job.to + p * job.stride);
    }
}

}  // namespace

void pack(Pool::Lease& lease, const Kernels& kernels, std::span<const Packing> jobs,
          std::span<const size_t> begins) {
    std::vector<size_t> starts{0};  // each job's first task, and the end
    for (const Packing& job : jobs) {
        starts.push_back(starts.back() + divide_up(job.count, task_panels(kernels, job)));
    }
    std::vector<size_t> tasks;
    for (const size_t begin : begins) tasks.push_back(starts[begin]);
    Phase packing;
    packing.set(tasks, lease.can_stay(begins.size() - 1));
    lease.parallel([&](const Worker& worker) {
        packing.run(worker, [&](size_t task, size_t) {
            const size_t at = std::ranges::upper_bound(starts, task) - starts.begin() - 1;
            const size_t width = task_panels(kernels, jobs[at]), panel = (task - starts[at]) * width;
            pack_panels(kernels, jobs[at], panel, std::min(panel + width, jobs[at].count));
        });
    });
}

size_t prepared_bytes(Policy policy, size_t k) {
    size_t bytes = 0;
    switch (policy) {
        case Policy::kF32:
            bytes = k * sizeof(float);
            break;
        case Policy::kBf16:
            bytes = divide_up(k, 2) * 4;
            break;
        case Policy::kInt8:
            bytes = divide_up(k, kGroup) * sizeof(Group32);
            break;
    }
    const size_t lines = divide_up(bytes, kLine);
    return (lines % kSameSet ? lines : lines + 1) * kLine;
}

const float* row_f32(const void* x, Dtype dtype, size_t index, size_t k, float* scratch) {
    if (dtype == Dtype::kF32) return static_cast<const float*>(x) + index * k;
    const uint16_t* row = static_cast<const uint16_t*>(x) + index * k;
    for (size_t i = 0; i < k; ++i) scratch[i] = std::bit_cast<float>(static_cast<uint32_t>(row[i]) << 16);
    return scratch;
}

void write_row(const float* values, size_t n, Dtype dtype, void* y, size_t offset) {
    if (dtype == Dtype::kF32) {
        std::memcpy(static_cast<float*>(y) + offset, values, n * sizeof(float));
        return;
    }
    uint16_t* out = static_cast<uint16_t*>(y) + offset;
    for (size_t i = 0; i < n; ++i) out[i] = to_bf16(values[i]);
}

void add_row(const float* values, size_t n, void* y, size_t offset) {
    float* const out = static_cast<float*>(y) + offset;
    for (size_t i = 0; i < n; ++i) out[i] += values[i];
}

size_t panels_per_task(size_t total_panels, size_t panel_bytes, int threads) {
    constexpr size_t kTaskBytes = size_t{256} << 10;
    const size_t panels =
        std::min(kTaskBytes / panel_bytes, total_panels / (4 * static_cast<size_t>(threads)));
    return std::clamp<size_t>(panels / 2 * 2, 2, kPanelsPerTask);
}

}  // namespace kt
