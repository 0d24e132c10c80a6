// A step of AdamW on float32 weights, and the panels of bfloat16 that products read, written anew from them.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kt/training.h"

namespace kt {

// The panels of a layer, and the rows of the masters that each of them holds.
class TrainedPanels {
  public:
    TrainedPanels(Experts& layer, Pool::Lease& lease, const std::array<Masters, kProjections>& masters)
        : kernels_(layer.kernels_), lease_(lease) {
        const size_t parts = layer.inner_.size() - 1, hidden = layer.hidden_, inner = layer.intermediate_;
        const size_t rows[] = {inner, inner, hidden}, columns[] = {hidden, hidden, inner};
        most_columns_ = std::max(hidden, inner);
        begins_.push_back(0);
        for (size_t p = 0; p < parts; ++p) {
            for (size_t e = 0; e < layer.experts_.size(); ++e) {
                if (!layer.experts_[e].loaded()) throw std::invalid_argument("an expert is not loaded");
                Experts::Part& part = layer.experts_[e].parts[p];
                const PanelMatrix* const panels[] = {&part.gate, &part.up, &part.down};
                for (size_t i = 0; i < kProjections; ++i) {
                    if (!masters[i].weights) continue;
                    const size_t first = (i == 2 ? layer.outer_ : layer.inner_)[p] * kPanelRows;
                    add({*panels[i], masters[i], (e * rows[i] + first) * columns[i]});
                }
            }
            begins_.push_back(starts_.back());
        }
    }

    void step(const AdamW& how) {
        Phase phase;
        phase.set(begins_, lease_.can_stay(begins_.size() - 1));
        const size_t stride = prepared_bytes(Policy::kBf16, most_columns_);
        uint8_t* const rows = lease_.scratch<uint8_t>(0, lease_.threads() * kPanelRows * stride);
        lease_.parallel([&](const Worker& worker) {
            phase.run(worker, [&](size_t task, size_t) {
                const size_t at = std::ranges::upper_bound(starts_, task) - starts_.begin() - 1;
                panel(jobs_[at], task - starts_[at], how, rows + worker.index * kPanelRows * stride, stride);
            });
        });
    }

  private:
    struct Job {
        PanelMatrix panels;
        Masters masters;
        size_t offset;  // of the first row in the masters
    };

    void add(const Job& job) {
        if (job.panels.format != kernels_.format("BF16"))
            throw std::invalid_argument("only experts in BF16 can be trained themselves");
        jobs_.push_back(job);
        starts_.push_back(starts_.back() + job.panels.panel_count());
    }

    void panel(const Job& job, size_t index, const AdamW& how, uint8_t* rows, size_t stride) const {
        const PanelMatrix& m = job.panels;
        const size_t first = index * kPanelRows, count = std::min(kPanelRows, m.rows - first);
        for (size_t i = 0; i < count; ++i) {
            const size_t at = job.offset + (first + i) * m.cols;
            if (job.masters.gradient) update(how, job.masters, at, m.cols);
            kernels_.prepare[static_cast<size_t>(Policy::kBf16)](job.masters.weights + at, 0, m.cols,
                                                                 rows + i * stride);
        }
        StoredMatrix stored{};
        stored.format = m.format;
        stored.rows = count;
        stored.cols = m.cols;
        stored.data = rows;
        stored.stride = stride;
        kernels_.formats[m.format].pack(stored, 0, const_cast<uint8_t*>(m.panels) + index * m.stride);
    }

    static void update(const AdamW& how, const Masters& masters, size_t at, size_t n) {
        float* const w = masters.weights + at;
        float* const m = masters.first + at;
        float* const v = masters.second + at;
        const float* const g = masters.gradient + at;
        const float kept = 1 - how.rate * how.decay, size = how.rate / how.unbias_first;
        const float root = std::sqrt(how.unbias_second);
        for (size_t i = 0; i < n; ++i) {
            m[i] += (g[i] - m[i]) * how.rest_first;
            v[i] = v[i] * how.beta_second + g[i] * g[i] * how.rest_second;
            w[i] = w[i] * kept - size * m[i] / (std::sqrt(v[i]) / root + how.epsilon);
        }
    }

    const Kernels& kernels_;
    Pool::Lease& lease_;
    size_t most_columns_ = 0;
    std::vector<Job> jobs_;
    std::vector<size_t> starts_{0};  // each job's first task, and the end
    std::vector<size_t> begins_;     // each part's first task, and the end
};

void step(Experts& layer, const AdamW& how, const std::array<Masters, kProjections>& masters) {
    Pool::Lease lease(layer.pool());
    TrainedPanels(layer, lease, masters).step(how);
}

}  // namespace kt
