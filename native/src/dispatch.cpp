#include "kt/dispatch.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace kt {

extern const KernelTable kt_table_scalar;
#ifdef KT_TIER_AVX2
extern const KernelTable kt_table_avx2;
#define KT_TABLE_AVX2 &kt_table_avx2
#else
#define KT_TABLE_AVX2 nullptr
#endif
#ifdef KT_TIER_AVX512
extern const KernelTable kt_table_avx512;
#define KT_TABLE_AVX512 &kt_table_avx512
#else
#define KT_TABLE_AVX512 nullptr
#endif
#ifdef KT_TIER_AVX512_VNNI
extern const KernelTable kt_table_avx512_vnni;
#define KT_TABLE_AVX512_VNNI &kt_table_avx512_vnni
#else
#define KT_TABLE_AVX512_VNNI nullptr
#endif
#ifdef KT_TIER_AVX512_VBMI
extern const KernelTable kt_table_avx512_vbmi;
#define KT_TABLE_AVX512_VBMI &kt_table_avx512_vbmi
#else
#define KT_TABLE_AVX512_VBMI nullptr
#endif
#ifdef KT_TIER_AVX512_BF16
extern const KernelTable kt_table_avx512_bf16;
#define KT_TABLE_AVX512_BF16 &kt_table_avx512_bf16
#else
#define KT_TABLE_AVX512_BF16 nullptr
#endif
#ifdef KT_TIER_AMX
extern const KernelTable kt_table_amx;
#define KT_TABLE_AMX &kt_table_amx
#else
#define KT_TABLE_AMX nullptr
#endif

namespace {

std::atomic<bool> always_direct = [] {
    const char* value = std::getenv("KT_DETERMINISTIC");
    return value && std::string_view(value) == "1";
}();

std::atomic<size_t> prefill_forced{0};

constexpr Features kAvx2Tier = kAvx2 | kFma | kF16c | kOsYmm;
constexpr Features kAvx512Tier = kAvx2Tier | kAvx512f | kAvx512bw | kAvx512dq | kAvx512vl | kOsZmm;
// CPUs are not a line: VBMI's kernels multiply with VNNI, BF16 needs VBMI too (one CPU has it without,
// Cooper Lake), AMX everything.
constexpr Features kAmxTier = kAvx512Tier | kAvx512Vnni | kAvx512Vbmi | kAvx512Bf16 | kAmxTile | kAmxInt8 |
                              kAmxBf16 | kOsAmx | kAmxPermission;

const Tier kTiers[] = {
    {"scalar", 0, &kt_table_scalar},
    {"avx2", kAvx2Tier, KT_TABLE_AVX2},
    {"avx512", kAvx512Tier, KT_TABLE_AVX512},
    {"avx512_vnni", kAvx512Tier | kAvx512Vnni, KT_TABLE_AVX512_VNNI},
    {"avx512_vbmi", kAvx512Tier | kAvx512Vnni | kAvx512Vbmi, KT_TABLE_AVX512_VBMI},
    {"avx512_bf16", kAvx512Tier | kAvx512Vbmi | kAvx512Bf16, KT_TABLE_AVX512_BF16},
    {"amx", kAmxTier, KT_TABLE_AMX},
};

std::string join(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

std::string tier_names(Features features, bool only_runnable) {
    std::vector<std::string> names;
    for (const Tier& tier : kTiers) {
        if (!only_runnable || runnable(tier, features)) names.emplace_back(tier.name);
    }
    return join(names);
}

template <class T>
void fill_empty(T& entry, const T& below) {
    if (!entry) entry = below;
}

void fill_empty(LayerOps& out, const LayerOps& below) {
    fill_empty(out.attend_f32, below.attend_f32);
    fill_empty(out.attend_bf16, below.attend_bf16);
    fill_empty(out.norm, below.norm);
    fill_empty(out.rotate, below.rotate);
    fill_empty(out.route, below.route);
    for (size_t i = 0; i < kCombinations; ++i) fill_empty(out.combine[i], below.combine[i]);
    fill_empty(out.tops, below.tops);
    fill_empty(out.weigh, below.weigh);
    fill_empty(out.pick, below.pick);
}

Kernels resolve(const Tier& top, Features features) {
    Kernels out{};
    out.name = top.name;
    out.asks = looks_ahead_within_pages();
    for (const Tier* tier = &top; tier >= kTiers; --tier) {
        if (!runnable(*tier, features)) continue;
        const KernelTable& table = *tier->table;
        for (size_t i = 0; i < kPolicies; ++i) {
            if (!out.prepare[i]) out.prepare[i] = table.prepare[i];
        }
        for (size_t i = 0; i < kActivations; ++i) {
            if (!out.activate[i]) out.activate[i] = table.activate[i];
        }
        if (!out.prefill.matmul) {
            out.prefill = table.prefill;
            out.prefill_provider = tier->name;
        }
        for (size_t i = 0; i < kUnits; ++i) {
            if (!out.peaks[i]) out.peaks[i] = table.peaks[i];
        }
        fill_empty(out.layer, table.layer);
        if (!out.training.turn) out.training = table.training;
        if (!out.grids.search) out.grids = table.grids;
        for (size_t i = 0; i < kFormatSlots; ++i) {
            const UnpackFn unpack = out.formats[i].unpack;
            if (!out.formats[i].matmul && table.formats[i].matmul) {
                out.formats[i] = table.formats[i];
                out.provider[i] = tier->name;
            }
            out.formats[i].unpack = unpack ? unpack : table.formats[i].unpack;
        }
    }
    return out;
}

void print_search(Features features, const Choice& choice) {
    std::fprintf(stderr, "kt kernels: found %s\n", join(names_of(features)).c_str());
    for (const Tier& tier : kTiers) {
        const std::string lacks = join(missing(tier, features));
        std::fprintf(stderr, "kt kernels: %-12s %s\n", tier.name,
                     lacks.empty() ? "can run" : ("lacks " + lacks).c_str());
    }
    std::fprintf(stderr, "kt kernels: %s\n", choice.reason.c_str());
}

}  // namespace

std::span<const Tier> tiers() {
    return kTiers;
}

bool runnable(const Tier& tier, Features features) {
    return tier.table && (tier.needs & ~features) == 0;
}

std::vector<std::string> missing(const Tier& tier, Features features) {
    std::vector<std::string> names = names_of(tier.needs & ~features);
    if (!tier.table) names.emplace_back("compiler support");
    return names;
}

Choice choose(Features features, std::string_view forced) {
    if (forced.empty()) {
        const Tier* best = &kTiers[0];
        for (const Tier& tier : kTiers) {
            if (runnable(tier, features)) best = &tier;
        }
        const std::string reason = std::string(best->name) + " is the highest tier that this machine can run";
        return {Verdict::kOk, best, {}, reason};
    }
    for (const Tier& tier : kTiers) {
        if (tier.name != forced) continue;
        const std::string name = tier.name;
        if (runnable(tier, features)) return {Verdict::kOk, &tier, name, name + " was asked for"};
        return {Verdict::kNotRunnable, &tier, name,
                "kernel tier " + name + " cannot run here: missing " + join(missing(tier, features)) +
                    ". This machine can run: " + tier_names(features, true)};
    }
    return {Verdict::kUnknown, nullptr, std::string(forced),
            "unknown kernel tier '" + std::string(forced) + "'. Known: " + tier_names(features, false) +
                ". This machine can run: " + tier_names(features, true)};
}

size_t Kernels::format(std::string_view name) const {
    std::vector<std::string> known;
    for (size_t i = 0; i < kFormatSlots && formats[i].info; ++i) {
        if (formats[i].info->name == name) return i;
        known.emplace_back(formats[i].info->name);
    }
    throw std::invalid_argument("no kernel for weight format '" + std::string(name) +
                                "'. Known: " + join(known));
}

Kernels assumed(std::string_view name) {
    for (const Tier& tier : kTiers) {
        if (tier.name == name && tier.table) return resolve(tier, ~Features{0});
    }
    throw std::invalid_argument("kernel tier '" + std::string(name) + "' is not in this build");
}

void force_prefill(size_t rows) {
    prefill_forced.store(rows, std::memory_order_relaxed);
}

bool deterministic() {
    return always_direct.load(std::memory_order_relaxed);
}

void set_deterministic(bool on) {
    always_direct.store(on, std::memory_order_relaxed);
}

size_t Kernels::prefill_from(size_t format) const {
    const Policy policy = formats[format].info->policy;
    const size_t forced = prefill_forced.load(std::memory_order_relaxed);
    const bool decoded = formats[format].unpack;
    const size_t own = formats[format].prefill_from;
    const size_t usual = prefill.from[static_cast<size_t>(decoded ? Policy::kInt8 : policy)];
    const size_t from = forced ? forced : own ? own : usual;
    if (policy == Policy::kInt8 && !decoded) return SIZE_MAX;
    const bool same = prefill.same_bits && policy == Policy::kBf16 && !decoded;
    return from == 0 || policy == Policy::kF32 || (deterministic() && !same) ? SIZE_MAX : from;
}

const Choice& chosen() {
    static const Choice choice = [] {
        const char* forced = std::getenv("KT_KERNEL_CPU_VARIANT");
        Choice result = choose(cpu_features(), forced ? forced : "");
        if (forced && *forced && result.verdict == Verdict::kOk) result.reason += " by KT_KERNEL_CPU_VARIANT";
        const char* debug = std::getenv("KT_KERNEL_DEBUG");
        if (debug && std::string_view(debug) == "1") print_search(cpu_features(), result);
        return result;
    }();
    return choice;
}

const Kernels& kernels(std::string_view tier) {
    static std::mutex mutex;
    static std::map<const Tier*, std::unique_ptr<Kernels>> resolved;
    const Choice choice = tier.empty() ? chosen() : choose(cpu_features(), tier);
    if (choice.verdict != Verdict::kOk) throw std::runtime_error(choice.reason);
    const std::lock_guard lock(mutex);
    std::unique_ptr<Kernels>& slot = resolved[choice.tier];
    if (!slot) slot = std::make_unique<Kernels>(resolve(*choice.tier, cpu_features()));
    return *slot;
}

}  // namespace kt
