// A model's step as a list of operations over fixed rows of float32, replayed by one call with new tokens and
// pages.
//
// Operations are those of linear.h, experts.h, attention.h, heads.h and layer.h; what they refer to (weights,
// pages, tables) must live as long as the program, but for arrays given as spans, which are copied. Results
// are the same bits for every number of threads, as theirs are.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "kt/attention.h"
#include "kt/experts.h"
#include "kt/heads.h"
#include "kt/layer.h"
#include "kt/linear.h"
#include "kt/training.h"

namespace kt {

// The new tokens of some sequences. Token t is number positions[t] of its sequence, its keys go to slots[t].
struct ProgramStep {
    const int64_t* tokens;
    const int64_t* positions;
    const int64_t* slots;
    size_t count;
    const int32_t* tables;  // [sequences][table_stride], as AttentionCall has them
    size_t table_stride;
    const int32_t* lengths;
    const int32_t* starts;
    size_t sequences;
    const int64_t* outputs;  // rows whose results are wanted, rising
    size_t output_count;
    const float* embedded;  // [count][width]: for programs that begin with `given`
    float* results;         // [output_count][width of the results]
    // Of each sequence, whose additions it takes: a number that `adapt` was told, or -1. Null: none takes
    // any.
    const int32_t* adapters = nullptr;
};

class Program {
  public:
    // Throws std::invalid_argument where no token would fit.
    Program(Pool& pool, const Kernels& kernels, size_t max_tokens);
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    size_t max_tokens() const { return max_tokens_; }
    size_t bytes() const;  // of all rows

    // A buffer of one row of `width` numbers for each token. Rows of a step that another step wrote may hold
    // anything.
    size_t rows(size_t width);
    // Columns `first` and on of a buffer.
    struct Columns {
        size_t buffer;
        size_t first = 0;
    };
    // In place of a buffer: the caller's results, as wide as whatever writes them.
    static constexpr size_t kResults = SIZE_MAX;

    // Pages of the next attention layer, which are given before the first step; returns its number.
    size_t layer(const PageLayout& layout);
    void set_pages(size_t layer, uint8_t* pages, size_t count);

    // ---- operations, in the order of the step; all throw std::invalid_argument for what does not fit
    // together ----

    // x = rows of a table [vocab][width] in its stored format, which stays where it is.
    void embed(std::string_view format, const uint8_t* table, size_t vocab, size_t stride, size_t width,
               Columns x);
    // x = the step's embedded rows.
    void given(size_t width, Columns x);

    // The rows that products meet: x; or x normed; or silu(x) * other.
    struct Source {
        enum Kind { kRows, kNorm, kSiluGate } kind = kRows;
        Columns x;
        Columns other = {};
        std::span<const float> weight = {};
        float offset = 0;
        float epsilon = 0;
        bool keeps = false;  // the rows are wanted as well, in `keep`
        Columns keep = {};
    };
    struct Product {
        const Linear* linear;
        Columns y;
        bool add = false;
    };
    // Returns the operation's number among the linear ones.
    size_t linear(const Source& source, std::span<const Product> products);

    // RMSNorm of `heads` runs of `size` columns, in place where y is x. weight: none or [size].
    void norm(Columns x, Columns y, size_t heads, size_t size, std::span<const float> weight, float offset,
              float epsilon);
    // Rotary tables, cos and sin [rows][pairs]; returns their number.
    size_t table(std::span<const float> cosine, std::span<const float> sine, size_t pairs);
    void rotate(Columns x, size_t heads, size_t size, size_t first, bool interleaved, size_t table);
    // Puts the step's keys and values into the layer's pages; values are not looked at where they are shared.
    void write(size_t layer, Columns keys, Columns values);
    struct Rule {
        float scale;
        float softcap = 0;
        size_t window = SIZE_MAX;
        std::span<const float> sinks = {};
    };
    // out is a buffer of query_heads * value_size.
    void attend(size_t layer, Columns q, size_t query_heads, const Rule& rule, Columns out);
    // Heads lie `stride` columns apart.
    // Returns the operation's number among those of heads.
    size_t heads(const HeadLinear* linear, Columns x, size_t x_stride, Columns y, size_t y_stride);
    void copy(Columns x, size_t x_stride, Columns y, size_t y_stride, size_t heads, size_t size);

    // The choice of rule.slots experts by logits; the rule's pointers are not looked at. `experts` uses the
    // last choice, and returns the operation's number among those of experts.
    void route(Columns logits, const RouteArgs& rule, std::span<const float> bias);
    size_t experts(const Experts* experts, Columns x, Columns y, bool add);
    void combine(Combination kind, Columns a, Columns b, Columns out, size_t size);
    // y += sigmoid(gate) x, one gate a row.
    void add_gated(Columns x, Columns gate, Columns y, size_t size);
    // From here on rows are the step's outputs; those of the buffers named are kept.
    void gather(std::span<const size_t> buffers);
    // The results are `width` columns of x.
    void give(Columns x, size_t width);

    // ---- additions to weights, for the sequences of a step that take them; between steps, from any thread
    // ----

    // To a product of a linear operation: y += b (a x).
    void adapt(int32_t adapter, size_t operation, size_t product, const Linear* a, const Linear* b);
    // In place of an operation's own heads.
    void adapt_heads(int32_t adapter, size_t operation, const HeadLinear* heads);
    // To the experts of an operation: every expert's gate, up and down, of one rank.
    struct ExpertAdditions {
        size_t rank;
        float scale;
        LoraPair lora[kProjections] = {};
    };
    void adapt_experts(int32_t adapter, size_t operation, const ExpertAdditions& additions);
    // Nothing of that number is looked at any more.
    void forget(int32_t adapter);

    // Throws std::invalid_argument for a step that does not fit; rows, pages and results may be written then.
    void run(const ProgramStep& step);

    // Seconds spent in each kind of operation since they were last asked for, where times are kept.
    void keep_times(bool on) { timed_ = on; }
    std::vector<std::pair<std::string, double>> times();

  private:
    // Rows of a step that take the same additions.
    struct Stretch {
        size_t first;
        size_t count;
        int32_t adapter;
    };
    struct Run {
        Pool::Lease& lease;
        const ProgramStep& step;
        size_t rows;
        std::span<const Stretch> stretches;  // of all rows; none where no row takes any
    };
    // What is added to operations, by the adapter. Operations refer to these: deques.
    struct LowRank {
        size_t product;
        const Linear *a, *b;
    };
    using AddedToLinear = std::map<int32_t, std::vector<LowRank>>;
    using AddedToHeads = std::map<int32_t, const HeadLinear*>;  // -1: the operation's own
    struct AddedToExperts {
        size_t hidden;
        std::map<int32_t, ExpertAdditions> by_adapter;
    };
    struct Operation {
        const char* kind;
        std::function<void(Run&)> work;
        double seconds = 0;
    };
    struct Rows {
        Buffer memory;
        size_t width;
    };
    struct Layer {
        PageLayout layout;
        uint8_t* pages = nullptr;
        size_t count = 0;
    };
    struct Table {
        const float *cosine, *sine;
        size_t rows, pairs;
    };

    void add(const char* kind, std::function<void(Run&)> work) {
        operations_.push_back({kind, std::move(work)});
    }
    const float* keep(std::span<const float> numbers);
    // Checks that `columns` columns from there on are in the buffer.
    Columns checked(Columns at, size_t columns) const;
    float* data(Columns at) const;
    size_t stride(Columns at) const { return rows_[at.buffer].width; }
    void check(const ProgramStep& step) const;
    std::span<const Stretch> stretched(const ProgramStep& step, bool outputs);
    void add_low_rank(Run& run, const RowSource& rows, std::span<const Linear::Target> targets,
                      std::span<const LowRank> added, size_t count);
    void add_to_experts(Run& run, const Experts& experts, const ExpertAdditions& added,
                        const ExpertsCall& call);

    Pool& pool_;
    const Kernels& kernels_;
    size_t max_tokens_;
    std::deque<Rows> rows_;
    std::deque<std::vector<float>> kept_;
    std::vector<Layer> layers_;
    std::vector<Table> tables_;
    std::vector<Operation> operations_;
    std::vector<int64_t> ids_;  // of the last choice: [max_tokens][slots]
    std::vector<float> weights_;
    std::deque<AddedToLinear> added_to_linear_;
    std::deque<AddedToHeads> added_to_heads_;
    std::deque<AddedToExperts> added_to_experts_;
    std::deque<std::vector<std::pair<size_t, size_t>>>
        shapes_;  // columns and rows of a linear operation's products
    std::vector<Stretch> stretches_;
    std::vector<float> low_;  // [rows][ranks] of an addition, [rows][hidden] of one to experts
    size_t slots_ = 0;
    bool timed_ = false;
};

}  // namespace kt
