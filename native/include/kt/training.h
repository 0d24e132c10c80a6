// The routed experts of one layer in training: forward, and back to the input, the routing weights, the
// low-rank additions and the weights themselves. The weights are those that inference uses; those that are
// trained are rounded from float32 copies.
#pragma once

#include <array>

#include "kt/experts.h"

namespace kt {

// gate, up, down
constexpr size_t kProjections = 3;

// A low-rank addition to a projection of each expert, W + scale * B A. bfloat16, contiguous.
struct LoraPair {
    const uint16_t* a = nullptr;  // [experts][rank][in]
    const uint16_t* b = nullptr;  // [experts][out][rank]
};

// Sums over all rows. b is turned over, so that both are written row by row.
struct LoraGradient {
    float* a = nullptr;  // [experts][rank][in]
    float* b = nullptr;  // [experts][rank][out]
};

struct TrainingCall {
    const void* x;         // [tokens, hidden]
    const int64_t* ids;    // [tokens, slots]; as in ExpertsCall
    const float* weights;  // [tokens, slots]
    Dtype dtype;           // of x, y, dy and dx
    size_t tokens;
    size_t slots;
    size_t rank = 0;  // 0: no low-rank additions
    float scale = 0;
    LoraPair lora[kProjections] = {};
    // gate x and up x with their additions, [tokens * slots, Training::kept_columns()]: written by forward
    // and read by backward. Null: forward keeps nothing, backward computes them again; the results are the
    // same bits.
    uint16_t* gate = nullptr;
    uint16_t* up = nullptr;
    // Forward alone: up to kFewRows rows of an expert meet its weights as they are stored, activations
    // rounded to int8 as that takes them. Decoding a block for a row or two took 3.4 times as long with Q4_K.
    bool as_stored = false;
};

struct TrainingGradients {
    const void* dy;                        // [tokens, hidden]
    void* dx;                              // [tokens, hidden]
    float* weights;                        // [tokens, slots]
    LoraGradient lora[kProjections] = {};  // experts without rows are not written
    float* base[kProjections] = {};        // [experts][out][in], of the weights; all or, null, none
};

// Activations are rounded to bfloat16 before every product, whatever the weights' format (but see as_stored);
// sums are float32, in an order that does not depend on the number of threads.
class Training {
  public:
    // wave_bytes bounds the scratch memory of a call: experts are computed in waves of as many as fit, at
    // least one.
    Training(const Experts& layer, size_t wave_bytes) : layer_(layer), wave_bytes_(wave_bytes) {}

    size_t kept_columns() const;

    // Both throw std::invalid_argument where a weight is stored in a format that is not decoded to bfloat16.
    void forward(const TrainingCall& call, void* y) const;
    void forward(Pool::Lease& lease, const TrainingCall& call, void* y) const;
    void backward(const TrainingCall& call, const TrainingGradients& gradients) const;

  private:
    struct Run;

    const Experts& layer_;
    size_t wave_bytes_;
};

// AdamW with decoupled decay: m and v are running means of the gradient and its square,
// w -= rate (decay w + (m / unbias_first) / (sqrt(v / unbias_second) + epsilon)).
struct AdamW {
    float rate, beta_second, epsilon, decay;
    float rest_first, rest_second;      // 1 - beta, not rounded twice
    float unbias_first, unbias_second;  // 1 - beta^step
};

// The float32 weights of a projection of each expert, [experts][out][in], and what AdamW keeps of them.
struct Masters {
    float* weights = nullptr;  // null: there is no such projection
    const float* gradient = nullptr;
    float* first = nullptr;
    float* second = nullptr;
};

// A step of AdamW, and the experts' weights anew, rounded from the result: one pass through memory, on all
// threads. Without a gradient weights are rounded alone. Throws std::invalid_argument for an expert that is
// not loaded or not in BF16.
void step(Experts& layer, const AdamW& how, const std::array<Masters, kProjections>& masters);

}  // namespace kt
