// The routed experts of one layer in training: forward, and back to the input, the routing weights and the
// low-rank additions. The weights are those that inference uses, and frozen.
#pragma once

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
};

struct TrainingGradients {
    const void* dy;                        // [tokens, hidden]
    void* dx;                              // [tokens, hidden]
    float* weights;                        // [tokens, slots]
    LoraGradient lora[kProjections] = {};  // experts without rows are not written
};

// Activations are rounded to bfloat16 before every product, whatever the weights' format; sums are float32,
// in an order that does not depend on the number of threads.
class Training {
  public:
    // wave_bytes bounds the scratch memory of a call: experts are computed in waves of as many as fit, at
    // least one.
    Training(const Experts& layer, size_t wave_bytes) : layer_(layer), wave_bytes_(wave_bytes) {}

    size_t kept_columns() const;

    // Both throw std::invalid_argument where a weight is stored in a format that is not decoded to bfloat16.
    void forward(const TrainingCall& call, void* y) const;
    void backward(const TrainingCall& call, const TrainingGradients& gradients) const;

  private:
    struct Run;

    const Experts& layer_;
    size_t wave_bytes_;
};

}  // namespace kt
