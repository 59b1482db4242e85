#include "hooks/pages.h"

#include "ggml.h"

#include <cerrno>
#include <new>

#if defined(__linux__)
#    include <sys/mman.h>
#    include <unistd.h>
#elif defined(_WIN32)
#    if !defined(NOMINMAX)
#        define NOMINMAX
#    endif
#    include <windows.h>
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
int  take_pages(char *, size_t) { return 0; } // a page takes memory when it is written to
void drop_pages(char * begin, size_t n) { madvise(begin, n, MADV_DONTNEED); }

#elif defined(_WIN32)

const bool gives_pages = true;

size_t page_bytes() {
    static const size_t n = [] {
        SYSTEM_INFO info;
        GetSystemInfo(&info);
        return static_cast<size_t>(info.dwPageSize);
    }();
    return n;
}

char * reserve_pages(size_t n) {
    void * pages = VirtualAlloc(nullptr, n, MEM_RESERVE, PAGE_READWRITE);
    if (pages == nullptr) {
        throw std::bad_alloc();
    }
    return static_cast<char *>(pages);
}

void free_pages(char * begin, size_t) { VirtualFree(begin, 0, MEM_RELEASE); }
int  take_pages(char * begin, size_t n) { return VirtualAlloc(begin, n, MEM_COMMIT, PAGE_READWRITE) != nullptr ? 0 : ENOMEM; }
void drop_pages(char * begin, size_t n) { VirtualFree(begin, n, MEM_DECOMMIT); }

#else

const bool gives_pages = false;

size_t page_bytes() { return 4096; }
char * reserve_pages(size_t) { throw std::bad_alloc(); }
void   free_pages(char *, size_t) {}
int    take_pages(char *, size_t) { return ENOMEM; }
void   drop_pages(char *, size_t) {}

#endif

size_t most_bytes(size_t n_bytes, size_t n, size_t page) { return n * (GGML_PAD(n_bytes, page) + page); }

} // namespace edgekv
