// AMX tiles. No tile kernel in this version: every entry falls to the tier below, and panels are already
// in B-tile order. The tier exists because its detection, the kernel's permission and its forced name are
// part of the interface.
#include "kt/table.h"

namespace kt {
extern const KernelTable kt_table_amx;
constexpr KernelTable kt_table_amx{"amx", {}, {}, {}};
}  // namespace kt
