// A refill: the next tokens get cells with their archived rows, and are not decoded.
#pragma once

#include "archive/archive.h"

#include <cstdint>

namespace edgekv {

// Give the next n tokens their cells. Throws Error; then the cells are as before.
void refill(edgekv_cache & cache, const edgekv_archive & archive, uint32_t n);

} // namespace edgekv
