// What a tier offers: plain functions over raw pointers, gathered in one constant table.
//
// This header, grids.h, ops.h and <immintrin.h> are all that a tier's file may include. It must stay free of
// inline functions and inline variables: those become weak symbols, and the linker may then keep the copy
// that was compiled for a newer CPU and run it on an older one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kt/grids.h"
#include "kt/ops.h"

namespace kt {

// Weights are kept in panels of 16 consecutive output rows, K-major: one 512-bit vector of 32-bit
// lanes holds one value of every row, so no kernel ever adds across lanes.
constexpr size_t kPanelRows = 16;

// Activations are quantised to int8 in groups of this many values along K.
constexpr size_t kGroup = 32;

// What activations are rounded to before they meet a weight. One policy per weight format.
enum class Policy : uint8_t { kF32, kBf16, kInt8 };
constexpr size_t kPolicies = 3;

// What makes h of gate and up. kSwigluOai is gpt-oss's; kReluSquared has no gate.
enum class Activation : uint8_t { kSilu, kGeluTanh, kSwigluOai, kReluSquared };
constexpr size_t kActivations = 4;

// One group of an int8 row: value = scale * q. sums are those of q's two halves, each at most 16 * 127; total
// is scale times both, and minus their negative, which kernels would else make for every panel.
struct Group32 {
    int8_t q[kGroup];
    float scale;
    int16_t sums[2];
    float total;
    int32_t minus;
};
static_assert(sizeof(Group32) == 48);

// What numbers an array of scales holds.
enum class Scale : uint8_t { kNone, kF32, kF16, kBf16, kE8m0, kE4m3 };
constexpr size_t kScales = 6;

constexpr uint32_t kWholeRow = UINT32_MAX;

// How the arrays of a stored weight of N rows and K columns lie.
enum class Layout : uint8_t {
    kRows,  // data [N, K / block blocks], scales [N / scale_rows, K / group], zeros: nibbles [N, K / group]
    kGptq,  // data [K / 8, N] words of 8 nibbles along K, scales [K / group, N], zeros [K / group, N / 8]
            // words
    kAwq,   // data [K, N / 8] words of 8 nibbles along N, scales and zeros as in GPTQ
};

enum class Zeros : uint8_t { kNever, kOptional, kAlways };

// A weight format: how it is stored on disk and in panels.
struct FormatInfo {
    const char* name;
    Policy policy;
    uint32_t block;        // elements of a stored block along K; K must be a multiple of it
    uint32_t block_bytes;  // bytes of a stored block
    uint32_t step;         // elements along K of a panel's repeating unit; K is padded to it with zeros
    uint32_t step_bytes;   // bytes of that unit for 16 rows; 0: it depends on the weight

    // For formats with arrays beside the data.
    Layout layout = Layout::kRows;
    uint32_t scale_kinds = 0;  // 1 << Scale of each kind allowed; 0: no scales
    uint32_t group = 0;        // elements along K of a scale, or kWholeRow; 0: the weight says it
    uint32_t scale_rows = 1;   // rows of a scale
    Zeros zeros = Zeros::kNever;
    bool multiplier = false;  // whether a factor of the whole weight is allowed
};

// A weight as stored. Rows of an array are `stride` bytes apart; value = multiplier * scale * (q - zero).
struct StoredMatrix {
    size_t format;  // index in the table
    size_t rows;
    size_t cols;
    const uint8_t* data;
    size_t stride;
    const uint8_t* scales;  // null: none
    size_t scale_stride;
    Scale scale;
    const uint8_t* zeros;  // null: none
    size_t zero_stride;
    size_t group;  // elements along K of a scale
    float multiplier;
};

// Rearranges rows first .. first + 15 of a weight, or what there is of them, into one panel.
using PackFn = void (*)(const StoredMatrix& stored, size_t first, uint8_t* panel);

// Bytes of a panel of the weight.
using PanelBytesFn = size_t (*)(const StoredMatrix& stored);

// out[m * out_stride + 16 * p + lane] = dot(prepared row m, output row `lane` of panel p).
// A row's result is the same bits for every row_count, panel_count and position in the call.
struct MatmulArgs {
    const uint8_t* panels;
    size_t panel_bytes;
    size_t panel_count;
    size_t k;
    const uint8_t* const* rows;  // prepared rows
    size_t row_count;
    float* out;
    size_t out_stride;              // floats, >= 16 * panel_count
    bool asks = false;              // for weights ahead of their use, also where few rows meet them
    const uint8_t* next = nullptr;  // weights that are read after these; null: those that follow
};
using MatmulFn = void (*)(const MatmulArgs&);

// Rounds elements begin .. end - 1, which x points at, into their place in a prepared row. begin is a
// multiple of 32; end is one too or is K, in which case padding after it is written as well.
using PrepareFn = void (*)(const float* x, size_t begin, size_t end, uint8_t* row);

// Decodes columns begin .. end - 1 (multiples of the format's step) of one panel to bfloat16, scales
// multiplied in, to nearest even, in the order of a BF16 panel: [(end - begin) / 2][16][2].
using UnpackFn = void (*)(const uint8_t* panel, size_t begin, size_t end, uint16_t* out);

// gate is clamped to at most limit and up to -limit .. limit before anything else; infinity changes nothing.
struct Clamp {
    float limit;
    float alpha;  // of kSwigluOai: the slope inside its sigmoid
};

// out[i] = activation(gate[i]) * up[i], or activation(up[i]) where there is no gate, for n values, a multiple
// of
// 16. out may be gate or up.
using ActivateFn = void (*)(const float* gate, const float* up, size_t n, Clamp clamp, float* out);

// The way back through an activation: h again, dgate and dup from weight * dh, for n values, a multiple
// of 16. Returns the sum of h * dh. Without a gate neither gate nor dgate is touched.
struct ActivateBackArgs {
    const float* gate;
    const float* up;
    const float* dh;
    float weight;
    size_t n;
    Clamp clamp;
    float* h;
    float* dgate;
    float* dup;
};
using ActivateBackFn = float (*)(const ActivateBackArgs&);

// `blocks` runs of 16 columns of a BF16 panel, each as 16 rows of the weight turned over: 256 values that are
// a part of a BF16 panel, `stride` values from one block to the next.
using TurnFn = void (*)(const uint16_t* panel, size_t blocks, uint16_t* out, size_t stride);

// out[r * out_stride + j] = sum over i of factors[i * stride + r] * rows[i][begin + j], rows of bfloat16 that
// are readable up to a multiple of 16 columns. `columns` is one.
struct OuterArgs {
    const float* factors;
    size_t stride;
    size_t rank;
    const uint8_t* const* rows;
    size_t count;
    size_t begin;
    size_t columns;
    float* out;
    size_t out_stride;
};
using OuterFn = void (*)(const OuterArgs&);

struct TrainingOps {
    ActivateBackFn back[kActivations] = {};
    TurnFn turn = nullptr;
    OuterFn outer = nullptr;
};

struct FormatEntry {
    const FormatInfo* info;
    PackFn pack;
    PanelBytesFn panel_bytes;
    MatmulFn matmul;
    UnpackFn unpack;        // null for BF16, which needs none, and for the float32 policy
    uint32_t prefill_from;  // rows from which the prefill path is faster for this format; 0: as Prefill says
};
constexpr size_t kFormatSlots = 48;  // room for formats; the tail is null

// The prefill path: many rows against weights that are decoded to bfloat16 one block at a time, into
// memory that stays in a core's caches while all the rows pass. Its rows lie in tiles of up to
// Prefill::max_tile_rows rows, in the order that the tier's kernel reads them.

// The largest block that a tier decodes at once.
constexpr size_t kBlockColumns = 1024;
constexpr size_t kBlockPanels = 2;

// Puts columns begin .. end - 1 of a row that kBf16 prepared into place `index` of a tile
// of tile_rows rows. begin is a multiple of 32; end is one too or is K.
using GatherFn = void (*)(const uint8_t* row, size_t begin, size_t end, size_t tile_rows, size_t index,
                          uint8_t* tile);

// out[(t * tile_rows + r) * out_stride + 16 * p + lane] = dot(row r of tile t, output row `lane` of panel p)
// for all rows of all tiles. A row's result is the same bits whatever tile, call and company it is in.
struct PrefillArgs {
    const uint8_t* panels;
    const uint8_t* more;  // where panels from `split` on are: a second weight of the same form
    size_t split;
    size_t panel_bytes;
    size_t panel_stride;  // from one panel of a weight to its next
    size_t panel_count;   // of both
    size_t k;
    UnpackFn unpack;  // null: the panels are bfloat16
    const uint8_t* tiles;
    size_t tile_bytes;
    size_t tile_count;
    size_t tile_rows;
    uint16_t* scratch;  // kBlockPanels * 16 * kBlockColumns, 64-byte aligned
    float* out;
    size_t out_stride;  // floats, >= 16 * panel_count
};
using PrefillFn = void (*)(const PrefillArgs&);

struct Prefill {
    GatherFn gather;
    PrefillFn matmul;
    uint32_t max_tile_rows;
    uint32_t value_bytes;  // of a gathered value
    bool same_bits;        // as the tier's matmul for weights with bfloat16 activations
    // Rows from which this path is faster, by the weight's policy; 0: never. That of int8 holds for all
    // weights that must be decoded.
    uint32_t from[kPolicies];
};

// Arithmetic units that products are made with. A tier without a dot product for bfloat16 or int8 makes them
// with the instructions that its kernels use instead.
enum class Unit : uint8_t { kF32, kBf16, kInt8, kTileBf16, kTileInt8 };
constexpr size_t kUnits = 5;

// Keeps a unit as busy as it can be for `rounds` rounds and returns the operations that were done: a multiply
// and an add are two.
using PeakFn = double (*)(size_t rounds);

// A null entry means: use the next runnable tier below.
struct KernelTable {
    const char* name;
    PrepareFn prepare[kPolicies];
    ActivateFn activate[kActivations];
    FormatEntry formats[kFormatSlots];
    Prefill prefill;
    LayerOps layer{};
    PeakFn peaks[kUnits]{};  // null where no tier has the unit
    TrainingOps training{};  // all or none
    GridOps grids{};         // both or none
};

}  // namespace kt
