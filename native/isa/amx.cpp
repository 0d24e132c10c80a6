// AMX tiles for the prefill path. One or a few rows leave tiles empty: those kernels are the tiers' below.
#define KT_VNNI
#define KT_BF16
#define KT_VBMI
#include "kernels/simd_avx512_floats-inl.h"
#include "kernels/table-inl.h"

#include "kernels/prefill_amx-inl.h"

namespace kt {
namespace {

// GFLOP/s of the direct path and of this on 16 threads of an Emerald Rapids Xeon, 2048 x 2048, weights from
// memory: BF16 at 4 rows 360 and 391, at 8 634 and 720, at 256 856 and 3414; Q8_0 at 32 rows 1932 and 1740,
// at 64 2118 and 2467; Q4_1 at 32 rows 1929 and 1916, at 64 2049 and 2558.
constexpr uint32_t kFromBf16 = 8;
constexpr uint32_t kFromInt8 = 40;

}  // namespace

extern const KernelTable kt_table_amx;
constexpr KernelTable kt_table_amx = make_prefill_table(
    "amx", {gather_amx, prefill_amx, kMaxTileRows, 2, false, {0, kFromBf16, kFromInt8}}, Formats{});
}  // namespace kt
