// Buffers of weights, cells and graphs in pages of 2 MiB: they are read from end to end for every token, and pages
// of 4 KiB make the processor look up where each of them lies.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Ask the system for large pages where these n bytes span any. Memory that is never touched is still not held, but it is held
// 2 MiB at a time.
void edgekv_use_huge_pages(void * data, size_t n);

// Take that back before the bytes are freed: an allocator may give them out again, in small pieces.
void edgekv_use_small_pages(void * data, size_t n);

#ifdef __cplusplus
}
#endif
