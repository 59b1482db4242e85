#include "hooks/waiting.h"

#include <atomic>
#include <thread>

#if defined(__linux__)
#    include <linux/futex.h>
#    include <sys/syscall.h>
#    include <unistd.h>
#endif
#if defined(__x86_64__)
#    include <immintrin.h>
#endif

namespace {

// Threads that run at the same time meet within microseconds; going to sleep and waking up takes longer than that.
constexpr int n_awake = 1000; // pauses, some 40 microseconds

std::atomic<int> n_asleep{ 0 };

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

} // namespace

void edgekv_wait_while(const int * value, int seen) {
    const auto & now = *reinterpret_cast<const std::atomic<int> *>(value);
    for (int i = 0; i < n_awake; ++i) {
        if (now.load(std::memory_order_relaxed) != seen) {
            return;
        }
        relax();
    }
    n_asleep.fetch_add(1); // before the system looks at the value, as edgekv_wake looks here after it has changed
    while (now.load() == seen) {
#if defined(__linux__)
        syscall(SYS_futex, value, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
        std::this_thread::yield();
#endif
    }
    n_asleep.fetch_sub(1);
}

void edgekv_wake(const int * value) {
#if defined(__linux__)
    if (n_asleep.load() > 0) {
        syscall(SYS_futex, value, FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, nullptr, nullptr, 0);
    }
#else
    (void) value;
#endif
}
