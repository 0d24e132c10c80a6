// Rows of a token embedding in its stored format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kt {

// Decodes `blocks` stored blocks to float32: the values that the format's definition in ggml gives, products
// and sums in float32.
using DecodeFn = void (*)(const uint8_t* stored, size_t blocks, float* out);

// Null for a format that is not decoded here: only those that embeddings are published in are.
DecodeFn row_decoder(std::string_view format);

}  // namespace kt
