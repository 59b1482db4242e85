#include "hooks/huge_pages.h"

#if defined(__linux__)
#    include <cstdint>
#    include <sys/mman.h>
#    include <unistd.h>

static void advise(void * data, size_t n, int advice) {
    const auto page  = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const auto end   = (reinterpret_cast<uintptr_t>(data) + n) / page * page;
    if (first < end) {
        madvise(reinterpret_cast<void *>(first), end - first, advice); // a system without large pages does as before
    }
}

void edgekv_use_huge_pages(void * data, size_t n) { advise(data, n, MADV_HUGEPAGE); }

void edgekv_use_small_pages(void * data, size_t n) { advise(data, n, MADV_NOHUGEPAGE); }

#else

void edgekv_use_huge_pages(void *, size_t) {}

void edgekv_use_small_pages(void *, size_t) {}

#endif
