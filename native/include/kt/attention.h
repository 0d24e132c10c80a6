// A cache of keys and values in pages, and attention over it.
#pragma once

#include "kt/matrix.h"

namespace kt {

// A page holds `page` consecutive keys of one sequence: for each kv head a block of keys, then one of values.
//
//   keys    [page / 16][steps][16 keys][4 bytes]: a step is two bfloat16 columns or one float32 column
//   values  [value_size / 16][page / 2 or page][16 columns][4 bytes]: a step is two bfloat16 keys or one
//   float32
//           key; columns are filled up to a multiple of 16
//
// Both are what the kernels read, front to back. With shared values (multi-head latent attention) there is no
// second block: values are the keys' first value_size columns. Bytes of keys not written yet may be anything.
struct PageLayout {
    Dtype dtype;
    size_t heads;
    size_t key_size;
    size_t value_size;
    size_t page;  // a multiple of 16
    bool shared;

    size_t per_step() const { return dtype == Dtype::kBf16 ? 2 : 1; }
    size_t key_steps() const { return divide_up(key_size, per_step()); }
    size_t value_panels() const { return divide_up(value_size, kLanes); }
    size_t key_bytes() const { return page / kLanes * key_steps() * kStepBytes; }
    size_t value_bytes() const { return shared ? 0 : value_panels() * (page / per_step()) * kStepBytes; }
    size_t head_bytes() const { return key_bytes() + value_bytes(); }
    size_t page_bytes() const { return heads * head_bytes(); }

    // Throws std::invalid_argument for sizes that a page cannot have.
    void check() const;
};

// Keys and values of `tokens` tokens to or from their slots. Slot s is key s % page of page s / page; a
// negative one is left out. Slots of one call must differ. Strides are elements from token to token.
struct PageRows {
    PageLayout layout;
    uint8_t* pages;
    size_t page_count;
    const int64_t* slots;
    size_t tokens;
    void* keys;    // [tokens][heads][key_size]
    void* values;  // [tokens][heads][value_size]; null: shared
    Dtype dtype;   // of keys and values; bfloat16 pages round float32 to nearest even
    size_t key_stride;
    size_t value_stride;
};

// Both throw std::invalid_argument for a slot beyond the last page. keys and values are only read by the
// first.
void write_pages(Pool::Lease& lease, const PageRows& rows);
void read_pages(Pool::Lease& lease, const PageRows& rows);

// Queries of several sequences, flattened: sequence s has tokens starts[s] .. starts[s + 1] - 1, which are
// the last of its lengths[s] keys. The keys must be in the pages already.
struct AttentionCall {
    PageLayout layout;
    const uint8_t* pages;
    size_t page_count;
    const int32_t* tables;  // [sequences][table_stride]: pages in order; those before the window are not read
    size_t table_stride;
    const int32_t* lengths;
    const int32_t* starts;  // [sequences + 1]
    size_t sequences;
    const void* q;  // [tokens][query_heads][key_size], tokens q_stride elements apart
    size_t q_stride;
    size_t query_heads;  // a multiple of layout.heads
    void* out;           // [tokens][query_heads][value_size]
    Dtype dtype;         // of q and out
    float scale;
    float softcap;       // 0: none
    size_t window;       // keys that a query sees, its own included; SIZE_MAX: all
    const float* sinks;  // [query_heads]: one more score in the sum, without a value; null: none
};

// out = softmax(scale q k) v over the keys up to each query's own. q and the softmax's weights are rounded to
// the pages' type, all else is float32. A query's result is the same bits whatever the number of threads and
// the other queries of the call.
// Throws std::invalid_argument for lengths, starts and pages that do not fit together.
void attend(Pool::Lease& lease, const Kernels& kernels, const AttentionCall& call);

}  // namespace kt
