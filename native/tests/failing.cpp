#include "failing.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool>   counting{ false };
std::atomic<long>   n_so_far{ 0 };
std::atomic<long>   first_to_fail{ -1 };
std::atomic<bool>   all_later{ false };
std::atomic<size_t> n_bytes{ 0 };

[[maybe_unused]] bool fails(size_t n = 0) {
    if (!counting) {
        return false;
    }
    n_bytes += n;
    const long number = n_so_far++, first = first_to_fail;
    return first >= 0 && (all_later ? number >= first : number == first);
}

} // namespace

void failing::begin(long number, bool all) {
    n_so_far      = 0;
    n_bytes       = 0;
    first_to_fail = number;
    all_later     = all;
    counting      = true;
}

long failing::end() {
    counting = false;
    return n_so_far;
}

size_t failing::bytes() { return n_bytes; }

#if defined(EDGEKV_TESTS_WRAP)

#include "llama.h"

#include <pthread.h>

extern "C" {

llama_model * __real_llama_model_load_from_file(const char * path, llama_model_params params);
llama_model * __wrap_llama_model_load_from_file(const char * path, llama_model_params params) {
    if (failing::before_load != nullptr) {
        failing::before_load();
    }
    return __real_llama_model_load_from_file(path, params);
}

void * __real_malloc(size_t n);
void * __real_calloc(size_t n, size_t size);
void * __real_realloc(void * memory, size_t n);
int    __real_posix_memalign(void ** memory, size_t alignment, size_t n);
int    __real_pthread_create(pthread_t * thread, const pthread_attr_t * attributes, void * (*start)(void *), void * argument);

void * __wrap_malloc(size_t n) { return fails(n) ? nullptr : __real_malloc(n); }
void * __wrap_calloc(size_t n, size_t size) { return fails(n * size) ? nullptr : __real_calloc(n, size); }
void * __wrap_realloc(void * memory, size_t n) { return fails(n) ? nullptr : __real_realloc(memory, n); }
int    __wrap_posix_memalign(void ** memory, size_t alignment, size_t n) {
    return fails(n) ? ENOMEM : __real_posix_memalign(memory, alignment, n);
}
int __wrap_pthread_create(pthread_t * thread, const pthread_attr_t * attributes, void * (*start)(void *), void * argument) {
    return fails() ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

} // extern "C"

// All forms of them, as sanitizers bring their own.
void * operator new(size_t n, const std::nothrow_t &) noexcept { return fails(n) ? nullptr : __real_malloc(n > 0 ? n : 1); }
void * operator new(size_t n) {
    void * memory = operator new(n, std::nothrow);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}
void * operator new[](size_t n, const std::nothrow_t &) noexcept { return operator new(n, std::nothrow); }
void * operator new[](size_t n) { return operator new(n); }

void operator delete(void * memory) noexcept { std::free(memory); }
void operator delete(void * memory, size_t) noexcept { std::free(memory); }
void operator delete(void * memory, const std::nothrow_t &) noexcept { std::free(memory); }
void operator delete[](void * memory) noexcept { std::free(memory); }
void operator delete[](void * memory, size_t) noexcept { std::free(memory); }
void operator delete[](void * memory, const std::nothrow_t &) noexcept { std::free(memory); }

#endif
