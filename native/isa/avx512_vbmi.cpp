// AVX-512 VBMI. No format of this version gains from byte permutes, so every entry falls to the tier
// below. The tier exists because its detection and its forced name are part of the interface.
#include "kt/table.h"

namespace kt {
extern const KernelTable kt_table_avx512_vbmi;
constexpr KernelTable kt_table_avx512_vbmi{"avx512_vbmi", {}, {}, {}, {}, {}};
}  // namespace kt
