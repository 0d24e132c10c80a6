// AMX tiles for the prefill path. One or a few rows leave tiles empty: those kernels are the tiers' below.
#define KT_BF16
#define KT_VBMI
#include "kernels/simd_avx512-inl.h"
#include "kernels/table-inl.h"

#include "kernels/prefill_amx-inl.h"

namespace kt {
extern const KernelTable kt_table_amx;
constexpr KernelTable kt_table_amx =
    make_prefill_table("amx", {gather_amx, prefill_amx, kMaxTileRows, 2, false, {0, 16, 16}}, Formats{});
}  // namespace kt
