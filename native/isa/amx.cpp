// AMX tiles for the prefill path. One or a few rows leave tiles empty: those kernels are the tiers' below.
#define KT_BF16
#define KT_VBMI
#include "kernels/simd_avx512-inl.h"
#include "kernels/table-inl.h"

#include "kernels/prefill_amx-inl.h"

namespace kt {
namespace {

// Measured on 16 threads of an Emerald Rapids Xeon, 2048 x 2048, weights from memory, GFLOP/s of the direct
// path and of this: BF16 at 4 rows 544 and 510, at 8 733 and 914, at 256 949 and 4358; Q8_0 at 32 rows 2025
// and 1750, at 64 2163 and 2621; Q4_1 at 32 rows 1870 and 1863, at 64 2203 and 3019.
constexpr uint32_t kFromBf16 = 8;
constexpr uint32_t kFromInt8 = 48;

}  // namespace

extern const KernelTable kt_table_amx;
constexpr KernelTable kt_table_amx = make_prefill_table(
    "amx", {gather_amx, prefill_amx, kMaxTileRows, 2, false, {0, kFromBf16, kFromInt8}}, Formats{});
}  // namespace kt
