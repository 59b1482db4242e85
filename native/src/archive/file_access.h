// Bytes of a file at a place, whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgekv {

// Throw Error(EDGEKV_STATUS_ARCHIVE) with the system's reason.
void write_at(int fd, uint64_t offset, const void * src, size_t n);
void read_at(int fd, uint64_t offset, void * dst, size_t n);

// Have the system write what was written in this range.
void begin_writing_out(int fd, uint64_t offset, uint64_t n);

} // namespace edgekv
