// AMX tiles for the prefill path. One or a few rows leave tiles empty: those kernels are the tiers' below.
#include <immintrin.h>

#include "kernels/prefill_amx-inl.h"

namespace kt {
extern const KernelTable kt_table_amx;
constexpr KernelTable kt_table_amx{
    "amx", {}, {}, {}, {gather_amx, prefill_amx, kMaxTileRows, 2, false, {0, 16, 16}}};
}  // namespace kt
