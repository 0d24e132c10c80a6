// What this CPU and operating system can run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kt {

// One bit each. The os_ bits say that the system saves the registers; amx_permission that it granted the
// tile data. The other names are those of /proc/cpuinfo.
using Features = uint64_t;
enum Feature : Features {
    kAvx2 = 1 << 0,
    kFma = 1 << 1,
    kF16c = 1 << 2,
    kAvx512f = 1 << 3,
    kAvx512bw = 1 << 4,
    kAvx512dq = 1 << 5,
    kAvx512vl = 1 << 6,
    kAvx512Vnni = 1 << 7,
    kAvx512Vbmi = 1 << 8,
    kAvx512Bf16 = 1 << 9,
    kAmxTile = 1 << 10,
    kAmxInt8 = 1 << 11,
    kAmxBf16 = 1 << 12,
    kOsYmm = 1 << 13,
    kOsZmm = 1 << 14,
    kOsAmx = 1 << 15,
    kAmxPermission = 1 << 16,
};

struct FeatureName {
    Feature bit;
    const char* name;
};

std::span<const FeatureName> feature_names();
std::vector<std::string> names_of(Features features);

// Asked once a process: cpuid, XCR0 and, for AMX, the kernel's permission request.
Features cpu_features();

// Whether the core's own look-ahead in memory ends with a page of 4 KiB, as on Intel's CPUs: then even a
// plain stream is faster where the program asks for what comes, as long as it computes in between.
bool looks_ahead_within_pages();

// CPUs that this process may run on.
int allowed_cpus();

}  // namespace kt
