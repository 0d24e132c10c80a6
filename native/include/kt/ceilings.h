// What this machine can do at best: the memory's read rate, the ceiling of decoding, and the peak of each
// arithmetic unit, the ceiling of prefill.
#pragma once

#include <cstddef>

#include "kt/pool.h"
#include "kt/table.h"

namespace kt {

// Memory to read again and again. Machines are seen whose memory changes its speed from one moment to the
// next, so a probe must be short and at hand.
class ReadProbe {
  public:
    // bytes: more than the caches hold. Throws std::bad_alloc.
    ReadProbe(Pool& pool, size_t bytes);

    // Bytes per second of one pass over all of it by all of the pool's threads.
    double rate() const;

  private:
    Pool& pool_;
    std::vector<Arena::Piece> parts_;  // one for each group of threads, in its node's memory
};

// Operations per second of the pool's threads, all of them in `peak` for about `seconds` together.
double peak_rate(Pool& pool, PeakFn peak, double seconds);

}  // namespace kt
