#include "kt/cpu.h"

#include <sched.h>

#include <iterator>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kt {
namespace {

constexpr FeatureName kNames[] = {
    {kAvx2, "avx2"},
    {kFma, "fma"},
    {kF16c, "f16c"},
    {kAvx512f, "avx512f"},
    {kAvx512bw, "avx512bw"},
    {kAvx512dq, "avx512dq"},
    {kAvx512vl, "avx512vl"},
    {kAvx512Vnni, "avx512_vnni"},
    {kAvx512Vbmi, "avx512vbmi"},
    {kAvx512Bf16, "avx512_bf16"},
    {kAmxTile, "amx_tile"},
    {kAmxInt8, "amx_int8"},
    {kAmxBf16, "amx_bf16"},
    {kOsYmm, "os_ymm"},
    {kOsZmm, "os_zmm"},
    {kOsAmx, "os_amx"},
    {kAmxPermission, "amx_permission"},
};

#if defined(__x86_64__)

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero when the CPU does not have the leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

// Register states that the operating system saves on a context switch.
uint64_t saved_states(const Registers& leaf1) {
    constexpr unsigned kOsxsave = 1u << 27;
    if (!(leaf1.ecx & kOsxsave)) return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low | static_cast<uint64_t>(high) << 32;
}

// Linux hands out the 8 KiB of tile data on request only; without it the first tile instruction is fatal.
bool amx_permission() {
    constexpr long kArchReqXcompPerm = 0x1023;
    constexpr long kXtileData = 18;
    return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
}

Features detect() {
    const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0);
    const Registers leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Registers{};
    const uint64_t saved = saved_states(leaf1);
    Features found = 0;
    const auto set = [&found](Feature feature, bool present) { found |= present ? Features{feature} : 0; };
    const auto bit = [](unsigned value, int index) { return (value >> index & 1) != 0; };
    const auto saves = [saved](uint64_t mask) { return (saved & mask) == mask; };
    set(kFma, bit(leaf1.ecx, 12));
    set(kF16c, bit(leaf1.ecx, 29));
    set(kAvx2, bit(leaf7.ebx, 5));
    set(kAvx512f, bit(leaf7.ebx, 16));
    set(kAvx512dq, bit(leaf7.ebx, 17));
    set(kAvx512bw, bit(leaf7.ebx, 30));
    set(kAvx512vl, bit(leaf7.ebx, 31));
    set(kAvx512Vbmi, bit(leaf7.ecx, 1));
    set(kAvx512Vnni, bit(leaf7.ecx, 11));
    set(kAmxBf16, bit(leaf7.edx, 22));
    set(kAmxTile, bit(leaf7.edx, 24));
    set(kAmxInt8, bit(leaf7.edx, 25));
    set(kAvx512Bf16, bit(leaf7_1.eax, 5));
    set(kOsYmm, saves(0x6));      // SSE, AVX
    set(kOsZmm, saves(0xe6));     // and opmask, upper halves of zmm0-15, zmm16-31
    set(kOsAmx, saves(0x60000));  // tile configuration, tile data
    set(kAmxPermission, (found & kAmxTile) && (found & kOsAmx) && amx_permission());
    return found;
}

#else

Features detect() {
    return 0;
}

#endif

}  // namespace

std::span<const FeatureName> feature_names() {
    return kNames;
}

std::vector<std::string> names_of(Features features) {
    std::vector<std::string> names;
    for (const FeatureName& f : kNames) {
        if (features & f.bit) names.emplace_back(f.name);
    }
    return names;
}

Features cpu_features() {
    static const Features features = detect();
    return features;
}

bool looks_ahead_within_pages() {
#if defined(__x86_64__)
    static const bool intel = [] {
        constexpr unsigned kGenuineIntel[] = {0x756e6547, 0x49656e69, 0x6c65746e};  // as cpuid spells it
        const Registers r = cpuid(0, 0);
        return r.ebx == kGenuineIntel[0] && r.edx == kGenuineIntel[1] && r.ecx == kGenuineIntel[2];
    }();
    return intel;
#else
    return false;
#endif
}

int allowed_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;  // more than 1024 CPUs: the caller sets the size
    return CPU_COUNT(&set);
}

}  // namespace kt
