// The keys of a cache after a recall, turned to adjacent RoPE positions.
#pragma once

#include "archive/archive.h"
#include "archive/row_transfer.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// Turn all keys of every head, in order. A key is turned from its archived row, so that roundings do not add up. If there is none, or it
// cannot be read, the key is turned as the cell has it. If a device fails, the cache is emptied.
// room: for a key, and behind it for rows of a segment; positions: has memory for those of a head
void turn_recalled(edgekv_cache & cache, const edgekv_archive & archive, char * room, std::vector<int32_t> & positions, RowWriter & writer);

} // namespace edgekv
