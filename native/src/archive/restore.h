// The rows of a snapshot that lie in an archive, brought back into their cells.
#pragma once

#include "archive/archive.h"

namespace edgekv {

// Read the rows that the archive has for a cache whose numbers were restored. Throws Error; then the cells are of no use.
void restore_archived(edgekv_cache & cache, const edgekv_archive & archive);

} // namespace edgekv
