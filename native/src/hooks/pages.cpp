#include "hooks/pages.h"

#include "ggml.h"

#include <cstdint>
#include <new>

#if defined(_WIN32)
#    ifndef NOMINMAX
#        define NOMINMAX
#    endif
#    include <windows.h>
#else
#    include <sys/mman.h>
#    include <unistd.h>
#endif

namespace edgekv {

#if defined(__linux__)

const bool gives_pages = true;

size_t page_bytes() {
    static const size_t n = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return n;
}

char * reserve_pages(size_t n) {
    void * pages = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        throw std::bad_alloc();
    }
    madvise(pages, n, MADV_NOHUGEPAGE);
    return static_cast<char *>(pages);
}

void free_pages(char * begin, size_t n) { munmap(begin, n); }
void drop_pages(char * begin, size_t n) { madvise(begin, n, MADV_DONTNEED); }

#else

const bool gives_pages = false;

size_t page_bytes() { return 4096; }
char * reserve_pages(size_t) { throw std::bad_alloc(); }
void   free_pages(char *, size_t) {}
void   drop_pages(char *, size_t) {}

#endif

namespace {

size_t system_page_bytes() {
#if defined(_WIN32)
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
#else
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
#endif
}

} // namespace

void return_pages(char * begin, char * end) {
    const size_t page  = system_page_bytes();
    char *       first = reinterpret_cast<char *>(GGML_PAD(reinterpret_cast<uintptr_t>(begin), page));
    char *       last  = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(end) / page * page);
    if (first >= last) {
        return;
    }
#if defined(_WIN32)
    DiscardVirtualMemory(first, static_cast<size_t>(last - first));
#elif defined(__APPLE__)
    madvise(first, static_cast<size_t>(last - first), MADV_FREE_REUSABLE);
#else
    madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED);
#endif
}

size_t most_bytes(size_t n_bytes, size_t n, size_t page) { return n * (GGML_PAD(n_bytes, page) + page); }

} // namespace edgekv
