// What the operating system says this process holds.
#pragma once

#include <cstdint>
#include <functional>

namespace edgekv {

constexpr uint64_t thread_bytes = 1 << 15; // stack of one thread

// What a plan counts, as edgekv_process_bytes says. Throws Error(EDGEKV_STATUS_UNSUPPORTED) if the system does not say.
uint64_t counted_bytes();

// Bytes that counted_bytes() grows by while `work` is done. The holes that the heap has are taken meanwhile: how many there are differs
// from run to run, and what was allocated there would not count. Throws what `work` throws.
uint64_t taken_by(const std::function<void()> & work);

// Give freed memory back to the system, so that it does not count on top of what comes next (glibc).
void return_freed_memory();

} // namespace edgekv
