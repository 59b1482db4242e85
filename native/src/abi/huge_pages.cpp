#include "abi/huge_pages.h"

#if defined(__linux__)
#    include <cstdint>
#    include <sys/mman.h>
#    include <unistd.h>
#endif

void edgekv_use_huge_pages(void * data, size_t n) {
#if defined(__linux__)
    const auto page  = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const auto end   = (reinterpret_cast<uintptr_t>(data) + n) / page * page;
    if (first < end) {
        madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE); // a system without them does as before
    }
#else
    (void) data;
    (void) n;
#endif
}
