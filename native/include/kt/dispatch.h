// Tiers, the choice among them, and the resolved table of kernels.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kt/cpu.h"
#include "kt/table.h"

namespace kt {

struct Tier {
    const char* name;
    Features needs;
    const KernelTable* table;  // null: the compiler could not build it
};

// Lowest first.
std::span<const Tier> tiers();

bool runnable(const Tier& tier, Features features);
// What keeps a tier from running: feature names, or "compiler support". Empty when it can run.
std::vector<std::string> missing(const Tier& tier, Features features);

enum class Verdict { kOk, kUnknown, kNotRunnable };

struct Choice {
    Verdict verdict;
    const Tier* tier;    // null for an unknown name
    std::string forced;  // the name asked for; empty: none
    std::string reason;  // a sentence; for a refusal it lists what can be used
};

// A pure function of its arguments. `forced` empty: the highest runnable tier.
Choice choose(Features features, std::string_view forced);

// A table without null entries: each taken from the highest runnable tier not above the chosen one.
struct Kernels : KernelTable {
    const char* provider[kFormatSlots];  // the tier that each format's matmul came from
    const char* prefill_provider;        // the tier that the prefill path came from
    bool asks;  // calls of few rows ask for weights ahead: where the CPU's own look-ahead ends early

    // Rows from which the prefill path multiplies a weight of that format; SIZE_MAX: never. In deterministic
    // mode only where both paths give the same bits.
    size_t prefill_from(size_t format) const;

    // Index of a format. Throws std::invalid_argument that lists the known names.
    size_t format(std::string_view name) const;
};

// What a CPU with all features of that tier and of those below would get: to be described, not called. Throws
// std::invalid_argument for a tier that was not built.
Kernels assumed(std::string_view tier);

// Whether a row's result must not depend on how many rows there are: KT_DETERMINISTIC=1 in the environment,
// or set by the caller. A layer asks once a call.
bool deterministic();
void set_deterministic(bool on);

// For measurements and tests: the prefill path from that many rows on for every format that has one, instead
// of where it is known to be faster; 0: as measured.
void force_prefill(size_t rows);

// The choice of this process, made at the first call: KT_KERNEL_CPU_VARIANT, or the best tier.
const Choice& chosen();

// Kernels of the chosen tier, or of the named one. Throws std::runtime_error with the choice's sentence.
const Kernels& kernels(std::string_view tier = {});

}  // namespace kt
