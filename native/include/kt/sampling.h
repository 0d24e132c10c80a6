// The choice of a token from a row of logits.
#pragma once

#include "kt/dispatch.h"
#include "kt/pool.h"

namespace kt {

// In this order: temperature (0: the most likely token), top-k (0: off), top-p (1: off), min-p (0: off),
// typical-p (1: off); each filter sees the distribution that the one before it left.
struct Choosing {
    double temperature;
    size_t top_k;
    double top_p;
    double min_p;
    double typical_p;
};

// `best` is the largest logit, NaN where any is one. The token means something where it is finite.
struct Chosen {
    int64_t token;
    float best;
};

// `uniform` in [0, 1) is where the distribution is inverted, by an order that only the row decides. count is
// at least 1 and below 2^32. Nothing is allocated once a thread has seen the size.
Chosen choose(const Kernels& kernels, const float* logits, size_t count, const Choosing& how, double uniform);

// The same for several rows of one length, on the lease's threads.
struct LogitsRow {
    const float* logits;
    Choosing how;
    double uniform;
};
void choose(Pool::Lease& lease, const Kernels& kernels, std::span<const LogitsRow> rows, size_t count,
            Chosen* chosen);

// What choose() draws from at a temperature above 0, in its order: tokens, and weights in proportion to their
// probabilities. There is room for `count` of both; returns how many.
size_t candidates(const Kernels& kernels, const float* logits, size_t count, const Choosing& how,
                  int64_t* ids, float* weights);

// The k largest, largest first, of equal ones the lower index first, without those that are -inf; returns how
// many, none where there is a NaN.
size_t largest(const Kernels& kernels, const float* x, size_t count, size_t k, int64_t* ids);

// log(sum of exp(x)), to 1e-6.
double log_total(const Kernels& kernels, const float* x, size_t count);

}  // namespace kt
