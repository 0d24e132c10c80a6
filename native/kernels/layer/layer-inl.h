// What a tier offers beside weights. The including file brings table-inl.h and lanes_*-inl.h.
#pragma once

#include "activation-inl.h"

#include "attention-inl.h"
#include "routing-inl.h"
#include "rows-inl.h"
#include "training-inl.h"

#include "logits-inl.h"

namespace kt {
namespace {

// Every operation, for tiers that bring a wider vector.
[[maybe_unused]] constexpr LayerOps layer_ops{
    .attend_f32 = attend<F32Cache>,
    .attend_bf16 = attend<Bf16Cache>,
    .norm = rms_norm,
    .rotate = rotate,
    .route = route,
    .combine = {add_rows, multiply_rows, gate_rows, silu_rows},
    .tops = tops,
    .weigh = weigh,
    .pick = pick,
};

constexpr KernelTable with_layer(KernelTable table, const LayerOps& ops) {
    table.layer = ops;
    return table;
}

}  // namespace
}  // namespace kt
