#include "kt/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace kt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeastLogit = std::numeric_limits<float>::lowest();
// Below it float32 has no numbers; all but the largest logits have lost any chance long before.
constexpr double kColdest = 1e-20;
// Rows of the grid that a distribution is summed up in: a column first, then the place in it.
constexpr size_t kGridRows = 128;
// Bins of positive floats: their exponent and the first four bits behind it.
constexpr int kBinShift = 19;
constexpr size_t kBins = size_t{1} << (31 - kBinShift);
// Of a logarithm or a mass: what lies as near to a border is looked at again.
constexpr double kSlack = 1e-3;

// A thread's memory for one row: new memory of this size costs more than what is written into it.
struct Scratch {
    std::vector<float> tops, values, weights, next_weights, shares;
    std::vector<uint32_t> ids, next_ids, places;
    std::vector<uint64_t> keys;
    std::vector<double> sums;
};
thread_local Scratch scratch;

template <class T>
T* room(std::vector<T>& values, size_t count) {
    if (values.size() < count) values.resize(count);
    return values.data();
}

uint32_t bits_of(float x) {
    return std::bit_cast<uint32_t>(x);
}

struct Best {
    size_t index;
    float value;  // NaN where any is
};

// Leaves the largest value of each run in scratch.tops.
Best best_of(const LayerOps& ops, const float* x, size_t count) {
    const size_t runs = (count + kRun - 1) / kRun;
    float* const tops = room(scratch.tops, runs);
    if (!ops.tops(x, count, tops)) return {0, std::numeric_limits<float>::quiet_NaN()};
    const size_t run = static_cast<size_t>(std::max_element(tops, tops + runs) - tops);
    size_t index = run * kRun;
    while (x[index] != tops[run]) ++index;
    return {index, tops[run]};
}

// After best_of for the same row. The k-th largest of the runs' largest values bounds the k-th largest of all
// from below, and few are above it.
size_t list_largest(const LayerOps& ops, const float* x, size_t count, size_t k) {
    const size_t runs = (count + kRun - 1) / kRun;
    const bool few = k <= runs;
    const size_t looked = few ? runs : count;
    float* const values = room(scratch.values, looked);
    std::copy_n(few ? scratch.tops.data() : x, looked, values);
    std::nth_element(values, values + (k - 1), values + looked, std::greater<>());
    uint32_t* const ids = room(scratch.ids, count + kLanes);
    const size_t found = ops.pick(x, count, scratch.tops.data(), std::max(values[k - 1], kLeastLogit), ids);
    const size_t kept = std::min(k, found);
    std::partial_sort(ids, ids + kept, ids + found,
                      [x](uint32_t a, uint32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
    return kept;
}

// What is left of a row's tokens, in an order, with weights exp((x - best) / temperature). At first all are,
// and there is no list of them.
class Left {
  public:
    Left(const LayerOps& ops, const float* x, size_t count, float best, double temperature)
        : ops_(ops),
          x_(x),
          size_(count),
          all_(count),
          best_(best),
          factor_(static_cast<float>(1.0 / std::max(temperature, kColdest))) {}

    void filter(const Choosing& how) {
        const bool top_p = how.top_p < 1.0, min_p = how.min_p > 0.0, typical = how.typical_p < 1.0;
        double reach = std::numeric_limits<double>::infinity();
        if (how.top_k > 0 && how.top_k < all_) {
            take(list_largest(ops_, x_, all_, how.top_k));
        } else if (top_p) {
            list_nucleus(how.top_p);
        } else if (min_p) {
            list_from(std::log(how.min_p) - kSlack);
        } else if (typical) {
            reach = list_typical(how.typical_p);
        } else {
            sum_all(room(scratch.weights, all_));
        }
        if (top_p) keep(nucleus(how.top_p));
        if (min_p) keep(likely(static_cast<float>(how.min_p)));
        if (typical) {
            recount();
            keep(typical_ones(how.typical_p, reach));
        }
    }

    size_t size() const { return size_; }
    uint32_t id(size_t place) const { return listed_ ? scratch.ids[place] : static_cast<uint32_t>(place); }

    // The place where the distribution reaches `uniform` of its sum; never one of weight 0.
    size_t draw(double uniform) const {
        const size_t columns = (size_ + kGridRows - 1) / kGridRows;
        float* const weights = room(scratch.weights, columns * kGridRows);
        std::fill(weights + size_, weights + columns * kGridRows, 0.0f);
        float* const totals = room(scratch.values, columns);
        std::copy_n(weights, columns, totals);
        for (size_t row = 1; row < kGridRows; ++row) {
            for (size_t c = 0; c < columns; ++c) totals[c] += weights[row * columns + c];
        }
        double* const sums = room(scratch.sums, columns);
        double sum = 0.0;
        for (size_t c = 0; c < columns; ++c) sums[c] = sum += static_cast<double>(totals[c]);
        const double target = uniform * sum;
        const double* const found = std::upper_bound(sums, sums + columns, target);
        const size_t column = std::min(static_cast<size_t>(found - sums), columns - 1);
        const double rest = target - (column ? sums[column - 1] : 0.0);
        // A column's sum is rounded, and so may lie above the sum of its parts; the last token with a weight
        // is meant then.
        size_t last = column;
        double inside = 0.0;
        for (size_t place = column; place < size_ && inside <= rest; place += columns) {
            inside += static_cast<double>(weights[place]);
            if (weights[place] > 0.0f) last = place;
        }
        return last;
    }

  private:
    void sum_all(float* weights) { ops_.weigh(x_, all_, best_, factor_, weights, totals_); }

    // The list is scratch.ids; so are the totals the list's.
    void take(size_t count) {
        listed_ = true;
        size_ = count;
        float* const values = room(scratch.values, count);
        for (size_t i = 0; i < count; ++i) values[i] = x_[scratch.ids[i]];
        ops_.weigh(values, count, best_, factor_, room(scratch.weights, count), totals_);
    }

    // The list is all tokens, rising, whose weight's logarithm is at least `least`; those of logit -inf
    // never.
    void list_from(double least) {
        const float border = best_ + static_cast<float>(least / static_cast<double>(factor_));
        take(ops_.pick(x_, all_, scratch.tops.data(), std::max(border, kLeastLogit),
                       room(scratch.ids, all_ + kLanes)));
    }

    // A list that has the nucleus, with the totals of all. Three mean distances below the best token hold 0.9
    // to 0.95 of what language models write; a step more costs a third of the sum, and half the row four of
    // it.
    void list_nucleus(double mass) {
        sum_all(nullptr);
        const double total = totals_[0], moment = totals_[1], mean = moment / total;
        const double wanted = (mass + kSlack * (1.0 - mass)) * total;
        double reach = 3.0 * mean + 1.0;
        for (int tries = 0; tries < 8; ++tries, reach *= 1.1) {
            list_from(-reach);
            if (totals_[0] >= wanted) break;
        }
        if (totals_[0] < wanted) list_from(-double{kInfinity});
        totals_[0] = total;
        totals_[1] = moment;
    }

    // The same for the tokens whose information is nearest to the entropy; returns how far from it they are
    // at most.
    double list_typical(double mass) {
        sum_all(nullptr);
        const double total = totals_[0], moment = totals_[1], mean = moment / total;
        const double wanted = (mass + kSlack * (1.0 - mass)) * total;
        double reach = 1.0;
        for (bool enough = false; !enough; reach *= 2.0) {
            if (reach > 200.0) reach = double{kInfinity};
            list_from(-mean - reach);
            double near = 0.0;
            for (size_t i = 0; i < size_; ++i) {
                if (std::abs(distance(i) - mean) <= reach) near += static_cast<double>(scratch.weights[i]);
            }
            enough = near >= wanted || reach == double{kInfinity};
        }
        totals_[0] = total;
        totals_[1] = moment;
        return reach / 2.0;
    }

    // Of the logarithm of a listed token's weight from the best one's.
    double distance(size_t place) const {
        return static_cast<double>((best_ - x_[scratch.ids[place]]) * factor_);
    }

    // Places in the order that is to be kept, in scratch.places; how many is returned by all that choose.
    void keep(size_t count) {
        uint32_t* const ids = room(scratch.next_ids, count);
        float* const weights = room(scratch.next_weights, count);
        for (size_t i = 0; i < count; ++i) {
            ids[i] = scratch.ids[scratch.places[i]];
            weights[i] = scratch.weights[scratch.places[i]];
        }
        scratch.ids.swap(scratch.next_ids);
        scratch.weights.swap(scratch.next_weights);
        size_ = count;
        totals_[0] = 0.0;
    }

    // Totals of the list, where a filter has made them others.
    void recount() {
        if (totals_[0] > 0.0) return;
        totals_[1] = 0.0;
        for (size_t i = 0; i < size_; ++i) {
            totals_[0] += static_cast<double>(scratch.weights[i]);
            totals_[1] += static_cast<double>(scratch.weights[i]) * distance(i);
        }
    }

    // Sums what `bin_of` and `mass_of` say of the list's places, from the first bin on, and returns the bin
    // in which `wanted` is reached, with what lies before it.
    template <class BinOf, class MassOf>
    std::pair<size_t, double> cut(double wanted, BinOf&& bin_of, MassOf&& mass_of) const {
        double* const bins = room(scratch.sums, kBins);
        size_t first = kBins - 1, last = 0;
        for (size_t i = 0; i < size_; ++i) {
            first = std::min(first, bin_of(i));
            last = std::max(last, bin_of(i));
        }
        std::fill(bins + first, bins + last + 1, 0.0);
        for (size_t i = 0; i < size_; ++i) bins[bin_of(i)] += static_cast<double>(mass_of(i));
        double sum = 0.0;
        for (; first < last && sum + bins[first] < wanted; ++first) sum += bins[first];
        return {first, sum};
    }

    // The fewest most likely tokens that have the mass; of equal ones those of lower places. Only the bin
    // that the cut goes through is sorted.
    size_t nucleus(double mass) const {
        const float total = static_cast<float>(totals_[0]);
        float* const shares = room(scratch.shares, size_);
        for (size_t i = 0; i < size_; ++i) shares[i] = scratch.weights[i] / total;
        const auto bin_of = [shares](size_t i) -> size_t {
            return kBins - 1 - (bits_of(shares[i]) >> kBinShift);
        };
        auto [bin, sum] = cut(mass, bin_of, [shares](size_t i) { return shares[i]; });
        uint32_t* const places = room(scratch.places, size_ + 1);
        uint32_t* const border = room(scratch.next_ids, size_ + 1);
        size_t kept = 0, on_border = 0;
        for (size_t i = 0; i < size_; ++i) {  // written wherever it is: a branch would be guessed wrong
            places[kept] = border[on_border] = static_cast<uint32_t>(i);
            kept += bin_of(i) < bin;
            on_border += bin_of(i) == bin;
        }
        std::sort(border, border + on_border, [shares](uint32_t a, uint32_t b) {
            return shares[a] > shares[b] || (shares[a] == shares[b] && a < b);
        });
        for (size_t i = 0; i < on_border && (i == 0 || sum < mass); ++i) {
            places[kept++] = border[i];
            sum += static_cast<double>(shares[border[i]]);
        }
        return kept;
    }

    // Tokens that are at least `least` times as likely as the most likely one.
    size_t likely(float least) const {
        const float* const weights = scratch.weights.data();
        const float border = least * *std::max_element(weights, weights + size_);
        uint32_t* const places = room(scratch.places, size_);
        size_t kept = 0;
        for (size_t i = 0; i < size_; ++i) {
            if (weights[i] >= border) places[kept++] = static_cast<uint32_t>(i);
        }
        return kept;
    }

    // The fewest tokens that have the mass, by how near their information is to the entropy (Meister et al.
    // 2022, arXiv:2202.00666): both less log(sum of weights) are the distance and its mean. None is further
    // than `reach`.
    size_t typical_ones(double mass, double reach) const {
        const double mean = totals_[1] / totals_[0], wanted = mass * totals_[0];
        float* const away = room(scratch.shares, size_);
        for (size_t i = 0; i < size_; ++i) {
            const double far = std::abs(distance(i) - mean);
            away[i] = far <= reach ? static_cast<float>(far) : kInfinity;
        }
        const auto bin_of = [away](size_t i) -> size_t { return bits_of(away[i]) >> kBinShift; };
        const size_t bin = cut(wanted, bin_of, [](size_t i) { return scratch.weights[i]; }).first;
        uint64_t* const keys = room(scratch.keys, size_);
        size_t count = 0;
        for (size_t i = 0; i < size_; ++i) {
            if (bin_of(i) <= bin) keys[count++] = uint64_t{bits_of(away[i])} << 32 | i;
        }
        std::sort(keys, keys + count);
        uint32_t* const places = room(scratch.places, count);
        size_t kept = 0;
        for (double sum = 0.0; kept < count && (kept == 0 || sum < wanted); ++kept) {
            places[kept] = static_cast<uint32_t>(keys[kept]);
            sum += static_cast<double>(scratch.weights[places[kept]]);
        }
        return kept;
    }

    const LayerOps& ops_;
    const float* const x_;
    size_t size_;
    const size_t all_;
    const float best_;
    const float factor_;
    bool listed_ = false;
    double totals_[2] = {};  // of weights, and of weights times distances
};

}  // namespace

Chosen choose(const Kernels& kernels, const float* logits, size_t count, const Choosing& how,
              double uniform) {
    const Best best = best_of(kernels.layer, logits, count);
    if (!std::isfinite(best.value) || how.temperature == 0.0)
        return {static_cast<int64_t>(best.index), best.value};
    Left left(kernels.layer, logits, count, best.value, how.temperature);
    left.filter(how);
    return {static_cast<int64_t>(left.id(left.draw(uniform))), best.value};
}

void choose(Pool::Lease& lease, const Kernels& kernels, std::span<const LogitsRow> rows, size_t count,
            Chosen* chosen) {
    const auto one = [&](size_t row) {
        chosen[row] = choose(kernels, rows[row].logits, count, rows[row].how, rows[row].uniform);
    };
    if (rows.size() == 1) return one(0);
    Phase working(rows.size());
    lease.parallel([&](const Worker& worker) { working.run(worker, [&](size_t row, size_t) { one(row); }); },
                   rows.size() * count * sizeof(float));
}

size_t candidates(const Kernels& kernels, const float* logits, size_t count, const Choosing& how,
                  int64_t* ids, float* weights) {
    const Best best = best_of(kernels.layer, logits, count);
    if (!std::isfinite(best.value)) return 0;
    Left left(kernels.layer, logits, count, best.value, how.temperature);
    left.filter(how);
    for (size_t i = 0; i < left.size(); ++i) ids[i] = left.id(i);
    std::copy_n(scratch.weights.data(), left.size(), weights);
    return left.size();
}

size_t largest(const Kernels& kernels, const float* x, size_t count, size_t k, int64_t* ids) {
    if (std::isnan(best_of(kernels.layer, x, count).value) || k == 0) return 0;
    const size_t found = list_largest(kernels.layer, x, count, std::min(k, count));
    std::copy_n(scratch.ids.data(), found, ids);
    return found;
}

double log_total(const Kernels& kernels, const float* x, size_t count) {
    const float best = best_of(kernels.layer, x, count).value;
    double totals[2];
    kernels.layer.weigh(x, count, best, 1.0f, nullptr, totals);
    return static_cast<double>(best) + std::log(totals[0]);
}

}  // namespace kt
