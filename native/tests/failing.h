// Allocations, and starts of threads, that fail on demand, in everything that is linked into the program: edgekv, llama.cpp, ggml.
#pragma once

#include <cstddef>

namespace failing {

constexpr bool works = // as the linker must be able to wrap functions
#if defined(EDGEKV_TESTS_WRAP)
    true;
#else
    false;
#endif

// From now on count them, on all threads. The one with this number, from 0, fails, and with `all` every later one too; none
// fails where it is -1.
void begin(long number, bool all = false);

// Count no more; how many there were, and how many bytes they asked for together.
long   end();
size_t bytes();

// Called before the library has llama.cpp load a model, while `before_load` is not NULL.
inline void (*before_load)() = nullptr;

} // namespace failing
