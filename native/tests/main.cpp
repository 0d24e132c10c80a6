// Every runnable tier against the scalar oracle, in one process, with all inputs ending at a guard page.
// A plain program, so that sanitizers need nothing else. Prints what fails; exit status 1 if anything did.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "kt/ceilings.h"
#include "kt/experts.h"
#include "kt/linear.h"
#include "kt/prefill.h"
#include "tests/stored.h"
#include "tests/tiles.h"

#include "kernels/prefill_amx-inl.h"

namespace {

using namespace kt;

constexpr Gating kPlainSilu{Activation::kSilu, {INFINITY, 0.0f}};

int failures = 0;

// Under the thread sanitizer only what uses threads is worth its time.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreads = true;
#else
constexpr bool kThreads = false;
#endif

#define CHECK(condition, ...)                                           \
    do {                                                                \
        if (!(condition)) {                                             \
            ++failures;                                                 \
            std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            std::printf(__VA_ARGS__);                                   \
            std::printf("\n");                                          \
        }                                                               \
    } while (0)

std::vector<const Kernels*> runnable_kernels() {
    std::vector<const Kernels*> out;
    for (const Tier& tier : tiers()) {
        if (runnable(tier, cpu_features())) out.push_back(&kernels(tier.name));
    }
    return out;
}

// Runs one kernel directly: packs, prepares, multiplies; every buffer ends at a guard page.
std::vector<float> multiply(const Kernels& k, size_t format, size_t rows, size_t cols, size_t tokens,
                            const Stored& stored, const Guarded& x) {
    const FormatInfo& info = *k.formats[format].info;
    const size_t panels = divide_up(rows, kPanelRows);
    const size_t panel_bytes = k.formats[format].panel_bytes(stored.matrix);
    const Guarded packed(panels * panel_bytes);
    for (size_t p = 0; p < panels; ++p) {
        k.formats[format].pack(stored.matrix, p * kPanelRows, packed.as<uint8_t>() + p * panel_bytes);
    }
    const size_t bytes = info.policy == Policy::kInt8   ? cols / kGroup * sizeof(Group32)
                         : info.policy == Policy::kBf16 ? divide_up(cols, 2) * 4
                                                        : cols * 4;
    const Guarded prepared(tokens * bytes);
    std::vector<const uint8_t*> pointers;
    for (size_t t = 0; t < tokens; ++t) {
        uint8_t* const row = prepared.as<uint8_t>() + t * bytes;
        k.prepare[static_cast<size_t>(info.policy)](x.as<float>() + t * cols, 0, cols, row);
        pointers.push_back(row);
    }
    const Guarded out(tokens * panels * kPanelRows * sizeof(float));
    std::memset(out.as<uint8_t>(), 0xff, out.bytes());  // NaN
    k.formats[format].matmul({packed.as<uint8_t>(), panel_bytes, panels, cols, pointers.data(), tokens,
                              out.as<float>(), panels * kPanelRows});
    return {out.as<float>(), out.as<float>() + tokens * panels * kPanelRows};
}

void compare(const std::vector<float>& got, const std::vector<float>& expected, double tolerance,
             const char* tier, const char* what) {
    double size = 1e-30;
    for (const float value : expected) size = std::max(size, std::fabs(static_cast<double>(value)));
    for (size_t i = 0; i < expected.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got[i]) - expected[i]) / size;
        if (error <= tolerance) continue;  // false for NaN
        CHECK(false, "%s %s: %g for %g at %zu", tier, what, static_cast<double>(got[i]),
              static_cast<double>(expected[i]), i);
        return;
    }
}

void test_kernels_match_the_oracle() {
    const Kernels& oracle = kernels("scalar");
    for (size_t f = 0; f < kFormatSlots && oracle.formats[f].info; ++f) {
        const FormatInfo& info = *oracle.formats[f].info;
        for (const size_t rows : {1, 15, 16, 17, 50}) {
            for (const size_t units : {1, 2, 3, 7}) {
                const size_t cols = info.block == 1 ? units * 9 : units * info.block;
                const Stored stored(oracle, f, rows, cols);
                for (const size_t tokens : {1, 2, 3, 5, 7, 8, 9, 17}) {
                    const Guarded x(tokens * cols * sizeof(float));
                    for (size_t i = 0; i < tokens * cols; ++i) x.as<float>()[i] = random_value();
                    const std::vector<float> expected = multiply(oracle, f, rows, cols, tokens, stored, x);
                    for (const Kernels* k : runnable_kernels()) {
                        compare(multiply(*k, f, rows, cols, tokens, stored, x), expected, 2e-6, k->name,
                                info.name);
                    }
                }
            }
        }
    }
}

void test_preparation_is_the_same_bits_and_activation_nearly() {
    const Kernels& oracle = kernels("scalar");
    constexpr size_t kCount = 96;
    float x[kCount], up[kCount];
    for (float& value : x) value = random_value() * std::exp2(static_cast<float>(generator() % 40) - 20);
    for (float& value : up) value = random_value();
    x[5] = 0;
    x[40] = std::nanf("");
    for (const Kernels* k : runnable_kernels()) {
        for (size_t p = 0; p < kPolicies; ++p) {
            std::vector<uint8_t> a(4 * kCount), b(4 * kCount);
            oracle.prepare[p](x, 0, kCount, a.data());
            k->prepare[p](x, 0, 32, b.data());  // in parts, as a task of the gate/up phase does
            k->prepare[p](x + 32, 32, kCount, b.data());
            CHECK(a == b, "%s policy %zu", k->name, p);
        }
        for (size_t activation = 0; activation < kActivations; ++activation) {
            float a[kCount], b[kCount];
            const Clamp clamp{activation % 2 ? 0.75f : INFINITY, 1.702f};
            oracle.activate[activation](x, up, kCount, clamp, a);
            k->activate[activation](x, up, kCount, clamp, b);
            // exp to 3 units in the last place, the sum, the quotient and three products: 8 units, 2^-21.
            // GELU's exponent is a polynomial, rounded four times on each side, and an error in it is one of
            // the result.
            for (size_t i = 0; i < kCount; ++i) {
                const float exponent = static_cast<Activation>(activation) == Activation::kGeluTanh
                                           ? 1.6f * std::abs(x[i]) * (1 + 0.045f * x[i] * x[i])
                                           : 0.0f;
                const float bound = 4.8e-7f + 4.8e-7f * std::min(exponent, 90.0f);  // beyond, exp is 0
                CHECK(
                    std::abs(a[i] - b[i]) <= std::abs(a[i]) * bound || (std::isnan(a[i]) && std::isnan(b[i])),
                    "%s activation %zu of %g: %g for %g", k->name, activation, static_cast<double>(x[i]),
                    static_cast<double>(b[i]), static_cast<double>(a[i]));
            }
        }
    }
}

// A tier's kernels, or those with the tile kernel run by the model of its instructions.
std::vector<std::pair<std::string, Kernels>> prefill_kernels() {
    std::vector<std::pair<std::string, Kernels>> out;
    for (const Kernels* k : runnable_kernels()) out.emplace_back(k->name, *k);
    out.emplace_back("model of amx", kernels("scalar"));
    out.back().second.prefill = {gather_amx, prefill_amx, kMaxTileRows, 2, false, {0, 4, 4}};
    return out;
}

std::vector<uint8_t> packed(const Kernels& k, const Stored& stored) {
    const FormatEntry& format = k.formats[stored.matrix.format];
    const size_t panel_bytes = format.panel_bytes(stored.matrix);
    std::vector<uint8_t> out(divide_up(stored.matrix.rows, kPanelRows) * panel_bytes);
    for (size_t p = 0; p * kPanelRows < stored.matrix.rows; ++p) {
        format.pack(stored.matrix, p * kPanelRows, out.data() + p * panel_bytes);
    }
    return out;
}

void test_packing_is_the_same_bytes() {
    const Kernels& oracle = kernels("scalar");
    for (size_t f = 0; f < kFormatSlots && oracle.formats[f].info; ++f) {
        const FormatInfo& info = *oracle.formats[f].info;
        for (const size_t units : {1, 3, 10}) {
            const Stored stored(oracle, f, 24, info.block == 1 ? units * 9 : units * info.block);
            const std::vector<uint8_t> expected = packed(oracle, stored);
            for (const Kernels* k : runnable_kernels()) {
                CHECK(packed(*k, stored) == expected, "%s %s, %zu units", k->name, info.name, units);
            }
        }
    }
}

// Whether this CPU can run what a tier compiles besides tile instructions.
bool decodes(const Tier& tier) {
    const Features tiles = kAmxTile | kAmxInt8 | kAmxBf16 | kOsAmx | kAmxPermission;
    return tier.table && (tier.needs & ~tiles & ~cpu_features()) == 0;
}

void test_decoding_is_the_same_bits() {
    const Kernels& oracle = kernels("scalar");
    for (size_t f = 0; f < kFormatSlots && oracle.formats[f].info; ++f) {
        if (!oracle.formats[f].unpack) continue;
        const FormatInfo& info = *oracle.formats[f].info;
        const size_t cols = 4 * info.step;
        const Stored stored(oracle, f, kPanelRows, cols);
        const std::vector<uint8_t> source = packed(oracle, stored);
        const Guarded panel(source.size());
        std::memcpy(panel.as<uint8_t>(), source.data(), source.size());
        std::vector<uint16_t> expected(kPanelRows * cols);
        oracle.formats[f].unpack(panel.as<uint8_t>(), 0, cols, expected.data());
        for (const Tier& tier : tiers()) {
            if (!decodes(tier) || !tier.table->formats[f].unpack) continue;
            for (size_t begin = 0; begin < cols; begin += info.step) {  // up to the end, in one go or in two
                const Guarded out(2 * kPanelRows * (cols - begin));
                tier.table->formats[f].unpack(panel.as<uint8_t>(), begin, cols, out.as<uint16_t>());
                CHECK(!std::memcmp(out.as<uint8_t>(), expected.data() + kPanelRows * begin, out.bytes()),
                      "%s %s from %zu", tier.name, info.name, begin);
            }
        }
    }
}

// Rows `first` .. of x by the prefill kernel; every buffer ends at a guard page.
std::vector<float> prefill_multiply(const Kernels& k, size_t format, size_t rows, size_t cols,
                                    const Guarded& panels, const float* x, size_t tokens) {
    Tiles tiles = tile_shape(k.prefill, tokens, cols);
    const Guarded memory(tiles.total_bytes()), row(prepared_bytes(Policy::kBf16, cols));
    tiles.data = memory.as<uint8_t>();
    for (size_t t = 0; t < tokens; ++t) {
        k.prepare[static_cast<size_t>(Policy::kBf16)](x + t * cols, 0, cols, row.as<uint8_t>());
        if (cols > 32) gather(k.prefill, tiles, row.as<uint8_t>(), 0, 32, t);  // in parts, as h is
        gather(k.prefill, tiles, row.as<uint8_t>(), cols > 32 ? 32 : 0, cols, t);
    }
    std::memset(row.as<uint8_t>(), 0, row.bytes());
    fill_up(k.prefill, tiles, row.as<uint8_t>(), 0, cols, tokens);
    const size_t width = divide_up(rows, kPanelRows);
    const size_t panel_bytes = panels.bytes() / width;
    PanelMatrix weight{format, rows, cols, panel_bytes, panel_bytes, panels.as<uint8_t>()};
    const Guarded scratch(2 * kDecodedValues), out(tiles.count * tiles.rows * width * kPanelRows * 4);
    std::memset(out.as<uint8_t>(), 0xff, out.bytes());
    prefill(k, weight, 0, width, tiles, 0, tiles.count, scratch.as<uint16_t>(), out.as<float>());
    return {out.as<float>(), out.as<float>() + tokens * width * kPanelRows};
}

void test_prefill_matches_the_decoded_product() {
    const Kernels& oracle = kernels("scalar");
    const size_t bf16 = oracle.format("BF16");
    for (size_t f = 0; f < kFormatSlots && oracle.formats[f].info; ++f) {
        const FormatInfo& info = *oracle.formats[f].info;
        if (f != bf16 && !oracle.formats[f].unpack) continue;
        for (const size_t rows : {1, 16, 33, 50}) {
            for (const size_t units : {1, 3, 7, 19, 65}) {  // 65: more than two blocks of every tier
                if (units == 65 && rows != 33) continue;
                const size_t cols = info.block == 1 ? units * 33 : units * info.block;
                const Stored stored(oracle, f, rows, cols);
                const std::vector<uint8_t> source = packed(oracle, stored);
                const Guarded panels(source.size());
                std::memcpy(panels.as<uint8_t>(), source.data(), source.size());
                // the same product by BF16's direct kernel over panels that the oracle decoded
                const size_t width = divide_up(rows, kPanelRows);
                const size_t decoded_bytes = divide_up(cols, 2) * 64, panel_bytes = source.size() / width;
                std::vector<uint8_t> decoded = source;
                if (f != bf16) {
                    decoded.resize(width * decoded_bytes);
                    for (size_t p = 0; p < width; ++p) {
                        oracle.formats[f].unpack(
                            source.data() + p * panel_bytes, 0, cols,
                            reinterpret_cast<uint16_t*>(decoded.data() + p * decoded_bytes));
                    }
                }
                // Another order of the same float32 sums: the error grows with their length.
                const double sums = 2e-6 * std::max(1.0, static_cast<double>(cols) / 640);
                constexpr size_t kTokens = 40;
                std::vector<float> x(kTokens * cols);
                for (float& value : x) value = random_value();
                for (const auto& [name, k] : prefill_kernels()) {
                    std::vector<uint8_t> prepared(kTokens * decoded_bytes);
                    std::vector<const uint8_t*> pointers;
                    for (size_t t = 0; t < kTokens; ++t) {
                        pointers.push_back(prepared.data() + t * decoded_bytes);
                        k.prepare[static_cast<size_t>(Policy::kBf16)](&x[t * cols], 0, cols,
                                                                      prepared.data() + t * decoded_bytes);
                    }
                    const size_t row_floats = width * kPanelRows;
                    std::vector<float> expected(kTokens * row_floats);
                    k.formats[bf16].matmul({decoded.data(), decoded_bytes, width, cols, pointers.data(),
                                            kTokens, expected.data(), row_floats});
                    const std::vector<float> whole =
                        prefill_multiply(k, f, rows, cols, panels, x.data(), kTokens);
                    compare(whole, expected, k.prefill.same_bits ? 0 : sums, name.c_str(), info.name);
                    for (const size_t tokens : {1, 2, 5, 11, 12, 13, 16, 17, 25, 33}) {
                        const size_t first = kTokens - tokens;
                        const std::vector<float> part =
                            prefill_multiply(k, f, rows, cols, panels, &x[first * cols], tokens);
                        CHECK(!std::memcmp(part.data(), &whole[first * row_floats], 4 * part.size()),
                              "%s %s: %zu rows differ from the same rows among 40", name.c_str(), info.name,
                              tokens);
                    }
                }
            }
        }
    }
}

// A layer of three experts, all rows by the prefill path or none, on some threads.
std::vector<float> run_layers(const Kernels& k, const StoredMatrix& square, const std::vector<float>& x,
                              const std::vector<int>& threads, size_t from) {
    std::vector<ThreadGroup> groups;
    for (const int count : threads) groups.push_back({count, {}});
    Pool pool(groups);
    Experts layer(pool, k, 3, 96, 96, kPlainSilu);
    layer.load(0, std::vector(3, ExpertWeights{&square, &square, &square}));
    const Linear linear(pool, k, square, nullptr);
    const size_t tokens = x.size() / 96;
    std::vector<int64_t> ids(tokens * 2);
    for (size_t t = 0; t < tokens; ++t) {  // nearly all on expert 1, one token on expert 0
        ids[2 * t] = t == 7 ? 0 : 1;
        ids[2 * t + 1] = t % 3 ? -1 : 2;
    }
    const std::vector<float> weights(tokens * 2, 0.5f);
    std::vector<float> y(2 * tokens * 96);
    force_prefill(from);
    linear.forward(x.data(), Dtype::kF32, tokens, y.data());
    layer.forward({x.data(), ids.data(), weights.data(), &y[tokens * 96], Dtype::kF32, tokens, 2});
    force_prefill(0);
    return y;
}

void test_layers_by_both_paths() {
    const Kernels& oracle = kernels("scalar");
    for (const char* format : {"BF16", "Q8_0", "Q4_1"}) {
        const Stored stored(oracle, oracle.format(format), 96, 96);
        for (const size_t tokens : {37, 600}) {
            std::vector<float> x(tokens * 96);
            for (float& value : x) value = random_value() / 8;
            for (const auto& [name, k] : prefill_kernels()) {
                const std::vector<float> direct = run_layers(k, stored.matrix, x, {2}, SIZE_MAX);
                const std::vector<float> one = run_layers(k, stored.matrix, x, {1}, 1);
                compare(one, direct, 0.03, name.c_str(), format);  // int8 against bfloat16 activations
                for (const std::vector<int>& threads : {std::vector{3}, {1, 2}, {1, 1, 1, 1}}) {
                    const std::vector<float> more = run_layers(k, stored.matrix, x, threads, 1);
                    CHECK(one == more, "%s %s: %zu groups", name.c_str(), format, threads.size());
                }
                const std::vector<float> mixed = run_layers(k, stored.matrix, x, {1, 1}, 20);
                compare(mixed, direct, 0.03, name.c_str(), format);
            }
        }
    }
}

void test_choice() {
    const Features avx2 = kAvx2 | kFma | kF16c | kOsYmm;
#if defined(__x86_64__)
    CHECK(std::string(choose(avx2, "").tier->name) == "avx2", "an AVX2 machine");
#endif
    CHECK(choose(avx2, "mmx").verdict == Verdict::kUnknown, "unknown name");
    const Choice refused = choose(0, "avx2");
    CHECK(refused.verdict == Verdict::kNotRunnable, "%s", refused.reason.c_str());
    CHECK(refused.reason.find("fma") != std::string::npos, "%s", refused.reason.c_str());
}

void test_pool() {
    Pool pool(3);
    std::atomic<int> sum{0};
    for (int round = 0; round < 300; ++round) {
        if (round % 60 == 59) pool.resize({{1 + round / 60 % 4, {}}});
        Pool::Lease lease(pool);
        int before[7] = {};
        Phase first(7), second(50), third(5);
        sum = 0;
        lease.parallel([&](const Worker& worker) {
            first.run(worker, [&](size_t task, size_t) { before[task] = round; });
            second.run(worker, [&](size_t task, size_t) {
                sum += before[task % 7] == round ? static_cast<int>(task) : 1000000;
            });
            third.run(worker, [&](size_t, size_t) {
                if (sum % 1000000 != 1225) sum += 1000000;
            });
        });
        CHECK(sum == 1225, "round %d: %d", round, sum.load());
    }
    bool refused = false;
    try {
        pool.resize({{0, {}}});
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    CHECK(refused, "a pool of no threads");
    CHECK(ReadProbe(pool, 1 << 20).rate() > 0, "reads");
}

// Each task once, those of a lane in order, whoever takes them.
void test_lanes() {
    Pool pool({{2, {}}, {2, {}}});
    constexpr size_t kBegins[] = {0, 30, 31, 31, 60};  // two parts of two lanes
    for (int round = 0; round < 300; ++round) {
        Pool::Lease lease(pool);
        CHECK(lease.lanes(2) == 2 && lease.lanes(5) == 1, "lanes");
        Phase working;
        working.set(kBegins, false, lease.lanes(2));
        std::atomic<int> done[60] = {};
        Turn turns[4];
        std::atomic<int> wrong{0};
        lease.parallel([&](const Worker& worker) {
            working.run(worker, [&](size_t task, size_t lane) {
                wrong += task < kBegins[lane] || task >= kBegins[lane + 1];
                turns[lane].wait(worker, static_cast<uint32_t>(task - kBegins[lane]));
                done[task] += 1;
                turns[lane].pass();
            });
        });
        for (int task = 0; task < 60; ++task) wrong += done[task] != 1;
        CHECK(wrong == 0, "round %d: %d", round, wrong.load());
    }
}

void test_parts() {
    Pool pool({{2, {}}, {1, {}}, {1, {}}});
    constexpr size_t kBegins[] = {0, 40, 40, 43};
    for (int round = 0; round < 300; ++round) {
        const bool stay = round % 2;
        Pool::Lease lease(pool);
        std::atomic<size_t> sum{0}, strangers{0};
        size_t last[3] = {};
        Phase working, checking(1);
        working.set(kBegins, stay && lease.can_stay(3));
        lease.parallel([&](const Worker& worker) {
            working.run(worker, [&](size_t task, size_t part) {
                sum += task;
                strangers += worker.group != part;
                if (task + 1 == kBegins[part + 1]) last[part] = task;
            });
            checking.run(worker, [&](size_t, size_t) {
                CHECK(sum == 43 * 42 / 2, "round %d: %zu", round, sum.load());
                CHECK(last[0] == 39 && last[2] == 42, "round %d: tasks of another part", round);
                CHECK(!stay || strangers == 0, "round %d: %zu did not stay", round, strangers.load());
            });
        });
    }
    const Pool::Lease lease(pool);
    CHECK((lease.split(9) == std::vector<size_t>{0, 4, 6, 9}), "split by threads");
    CHECK((lease.split(1) == std::vector<size_t>{0, 0, 0, 1}), "one unit");
    CHECK(!lease.can_stay(2), "two parts, three groups");
}

void test_layers_on_threads() {
    Pool pool(2);
    const Kernels& k = kernels();
    const Stored stored(k, k.format("Q8_0"), 64, 64);
    const StoredMatrix& weight = stored.matrix;
    Experts layer(pool, k, 3, 64, 64, kPlainSilu);
    const ExpertWeights all{&weight, &weight, &weight};
    layer.load(0, {&all, 1});
    layer.load(2, {&all, 1});
    const Linear linear(pool, k, weight, nullptr);
    constexpr size_t kTokens = 530;
    const Guarded x(kTokens * 64 * 4), ids(kTokens * 2 * 8), weights(kTokens * 2 * 4);
    for (size_t i = 0; i < kTokens * 64; ++i) x.as<float>()[i] = random_value();
    for (size_t i = 0; i < kTokens * 2; ++i) {
        ids.as<int64_t>()[i] = static_cast<int64_t>(generator() % 6) - 2;
        weights.as<float>()[i] = random_value();
    }
    std::vector<std::vector<float>> results(3);
    std::vector<std::thread> callers;
    for (std::vector<float>& result : results) {
        callers.emplace_back([&] {
            const Guarded y(kTokens * 64 * 4);
            linear.forward(x.as<float>(), Dtype::kF32, kTokens, y.as<float>());
            layer.forward({x.as<float>(), ids.as<int64_t>(), weights.as<float>(), y.as<float>(), Dtype::kF32,
                           kTokens, 2});
            result.assign(y.as<float>(), y.as<float>() + kTokens * 64);
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(results[0] == results[1] && results[1] == results[2], "callers disagree");
}

#if !defined(__SANITIZE_THREAD__)  // its run time does not support threads after fork
void test_fork() {
    Pool& pool = default_pool();
    const auto count = [&pool] {
        std::atomic<int> workers{0};
        Pool::Lease lease(pool);
        Phase meeting(3);  // each task waits for the others, so it takes three threads to end
        lease.parallel([&](const Worker& worker) {
            meeting.run(worker, [&](size_t, size_t) {
                for (++workers; workers < 3;) std::this_thread::yield();
            });
        });
        return workers.load();
    };
    pool.resize({{3, {}}});
    CHECK(count() == 3, "parent");
    const pid_t child = fork();
    if (child == 0) _exit(count() == 3 ? 0 : 1);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "child: %d", status);
    CHECK(count() == 3, "parent afterwards");
}
#endif

}  // namespace

#include "tests/attention.h"
#include "tests/sampling.h"
#include "tests/training.h"

int main() {
    for (const Kernels* k : runnable_kernels()) std::printf("tier %s\n", k->name);
    if (!kThreads) {
        test_kernels_match_the_oracle();
        test_preparation_is_the_same_bits_and_activation_nearly();
        test_packing_is_the_same_bytes();
        test_decoding_is_the_same_bits();
        test_prefill_matches_the_decoded_product();
        test_sampling();
    }
    test_layers_by_both_paths();
    test_attention();
    test_training();
    test_choice();
    test_pool();
    test_lanes();
    test_parts();
    test_layers_on_threads();
#if !defined(__SANITIZE_THREAD__)
    test_fork();
#endif
    std::printf(failures ? "%d failures\n" : "all good\n", failures);
    return failures ? 1 : 0;
}
