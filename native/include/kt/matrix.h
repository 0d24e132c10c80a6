// Packed weights, prepared rows, and the sizes of both.
#pragma once

#include "kt/dispatch.h"
#include "kt/pool.h"

namespace kt {

constexpr size_t divide_up(size_t a, size_t b) {
    return (a + b - 1) / b;
}

// One array of a stored weight: rows of row_bytes adjacent bytes, `stride` bytes apart. No data: no array.
struct StoredArray {
    const uint8_t* data = nullptr;
    size_t rows = 0;
    size_t row_bytes = 0;
    size_t stride = 0;
};

// A weight as its owner describes it.
struct Description {
    std::string_view format;
    size_t rows = 0;
    size_t cols = 0;
    StoredArray data;
    StoredArray scales = {};
    StoredArray zeros = {};
    std::string_view scale = "";  // F32, F16, BF16, E8M0 or E4M3
    size_t group = 0;             // 0: as the format says
    float multiplier = 1;
};

// Throws std::invalid_argument where an array has not the size that the format, rows and columns ask for.
StoredMatrix stored_matrix(const Kernels& kernels, const Description& description);

// A weight, or a part of its rows, in panels of 16 rows. Does not own its memory.
struct PanelMatrix {
    size_t format = 0;
    size_t rows = 0;
    size_t cols = 0;
    size_t panel_bytes = 0;
    size_t stride = 0;  // from one panel to the next: more than panel_bytes where two weights take turns
    const uint8_t* panels = nullptr;

    size_t panel_count() const { return divide_up(rows, kPanelRows); }
    size_t bytes() const { return panel_count() * panel_bytes; }
};

// Panels begin .. end - 1 of a stored weight.
PanelMatrix panel_shape(const Kernels& kernels, const StoredMatrix& stored, size_t begin, size_t end);

// Panels of a stored weight from `first` on, and where they go: 64-byte aligned, a stride apart.
struct Packing {
    const StoredMatrix* from;
    size_t first;
    size_t count;
    uint8_t* to;
    size_t stride;
};

// Fills panels on all threads, each part's on its own group where it can be. jobs: part p's are numbers
// begins[p] .. begins[p + 1] - 1, at most 2^32 panels.
void pack(Pool::Lease& lease, const Kernels& kernels, std::span<const Packing> jobs,
          std::span<const size_t> begins);

// Bytes from one row of k activations prepared by `policy` to the next, an odd multiple of 64 where it
// matters.
size_t prepared_bytes(Policy policy, size_t k);

enum class Dtype { kF32, kBf16 };

// Row `index` of x [.., k] as float32: in place, or widened into scratch (k floats).
const float* row_f32(const void* x, Dtype dtype, size_t index, size_t k, float* scratch);

// values[n] to y[offset ...] in y's dtype, bf16 rounded to nearest even.
void write_row(const float* values, size_t n, Dtype dtype, void* y, size_t offset);

// values[n] on top of y[offset ...], float32.
void add_row(const float* values, size_t n, void* y, size_t offset);

// Rows that pass through a kernel together: bounds the tile of results that each thread keeps.
constexpr size_t kRowsPerTask = 64;
// Rows that are prepared at once: bounds the scratch memory.
constexpr size_t kRowsPerChunk = 512;
constexpr size_t kPanelsPerTask = 16;

// Panels per task: even, so that a task's 32 k of the next product are one int8 group; about 256 KiB, and
// at least four tasks a thread where there are enough panels.
size_t panels_per_task(size_t total_panels, size_t panel_bytes, int threads);

}  // namespace kt
