// What the operating system says this process holds.
#pragma once

#include <cstdint>

namespace edgekv {

// What a plan counts, as edgekv_process_bytes says. Throws Error(EDGEKV_STATUS_UNSUPPORTED) where the system does not say.
uint64_t counted_bytes();

// Give freed memory back to the system, so that it does not count on top of what comes next (glibc).
void return_freed_memory();

} // namespace edgekv
