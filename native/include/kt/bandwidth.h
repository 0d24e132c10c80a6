// The memory's own read rate: the ceiling of decoding.
#pragma once

#include <cstddef>

#include "kt/pool.h"

namespace kt {

// Bytes per second of the pool's threads reading `bytes` of fresh memory, each its own contiguous part,
// the best of `repeats` passes.
double read_rate(Pool& pool, size_t bytes, int repeats);

}  // namespace kt
