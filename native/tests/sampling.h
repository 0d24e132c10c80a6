// The choice of tokens on every tier: what sorting finds, on rows that end at a guard page. For main.cpp.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "kt/sampling.h"

namespace {

// Logits of three kinds: all different, many equal, most ruled out.
std::vector<float> logits_of(size_t count, int kind) {
    std::mt19937 random(static_cast<uint32_t>(count));
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> x(count);
    for (float& value : x) {
        value = normal(random);
        if (kind == 1) value = std::round(value);
        if (kind == 2 && random() % 10) value = -INFINITY;
    }
    x[count / 2] = 1.0f;
    return x;
}

// Ids by falling logit, of equal ones the lower first, without those that are ruled out.
std::vector<int64_t> ranked(const std::vector<float>& x) {
    std::vector<int64_t> ids;
    for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] > -INFINITY) ids.push_back(static_cast<int64_t>(i));
    }
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
        return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
    });
    return ids;
}

void check_row(const Kernels& k, const std::vector<float>& x) {
    const size_t n = x.size();
    const Guarded row(n * sizeof(float));
    std::copy(x.begin(), x.end(), row.as<float>());
    const float* const logits = row.as<float>();
    const std::vector<int64_t> order = ranked(x);
    std::vector<int64_t> ids(n);
    std::vector<float> weights(n);
    CHECK(choose(k, logits, n, {0.0, 0, 1.0, 0.0, 1.0}, 0.0).token == order[0], "%s, %zu", k.name, n);
    for (const size_t most : {size_t{1}, size_t{7}, size_t{400}, n}) {
        const size_t found = largest(k, logits, n, most, ids.data());
        const size_t expected = std::min(most, order.size());
        CHECK(found == expected &&
                  std::equal(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(found), order.begin()),
              "%s, %zu of %zu", k.name, most, n);
    }
    for (const double mass : {0.0, 0.5, 0.95}) {
        const size_t found = candidates(k, logits, n, {1.0, 0, mass, 0.0, 1.0}, ids.data(), weights.data());
        double total = 0.0, held = 0.0, last = INFINITY;
        for (const float value : x) total += std::exp(static_cast<double>(value));
        for (size_t i = 0; i < found; ++i) {
            held += std::exp(static_cast<double>(x[static_cast<size_t>(ids[i])]));
            last = std::min(last, std::exp(static_cast<double>(x[static_cast<size_t>(ids[i])])));
        }
        CHECK(held >= (mass - 1e-5) * total && held - last <= (mass + 1e-5) * total, "%s, top-p %g of %zu",
              k.name, mass, n);
    }
    for (const Choosing& how : {Choosing{0.7, 0, 1.0, 0.0, 1.0}, Choosing{1.0, 0, 1.0, 0.1, 1.0},
                                Choosing{2.0, 0, 1.0, 0.0, 0.7}, Choosing{1.0, 50, 0.9, 0.01, 0.9}}) {
        for (const double uniform : {0.0, 0.3, 1.0 - 0x1p-53}) {
            const Chosen chosen = choose(k, logits, n, how, uniform);
            const bool there = chosen.token >= 0 && static_cast<size_t>(chosen.token) < n;
            CHECK(there && x[static_cast<size_t>(chosen.token)] > -INFINITY, "%s, %zu at %g", k.name, n,
                  uniform);
        }
    }
}

void test_sampling() {
    for (const Kernels* k : runnable_kernels()) {
        for (const size_t count : {1, 15, 16, 17, 127, 128, 129, 255, 256, 257, 5000}) {
            for (int kind = 0; kind < 3; ++kind) check_row(*k, logits_of(count, kind));
        }
    }
}

}  // namespace
