// Run independent tasks on a few threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace edgekv {

// Call body(task, thread) once for every task in [0, n_tasks); thread is in [0, n_threads). The first exception
// is rethrown here once all threads have stopped. Where a thread cannot be started, fewer do the work.
template <typename Body> void parallel_for(size_t n_tasks, size_t n_threads, const Body & body) {
    std::atomic<size_t> next{0};
    std::exception_ptr  error;
    std::mutex          mutex;

    auto work = [&](size_t thread) {
        try {
            for (size_t task = next++; task < n_tasks; task = next++) {
                body(task, thread);
            }
        } catch (...) {
            next = n_tasks;
            const std::lock_guard<std::mutex> lock(mutex);
            if (!error) {
                error = std::current_exception();
            }
        }
    };

    std::vector<std::thread> threads;
    threads.reserve(n_threads);
    try {
        for (size_t i = 1; i < n_threads && i < n_tasks; ++i) {
            threads.emplace_back(work, i);
        }
    } catch (const std::system_error &) {
    }
    work(0);
    for (auto & thread : threads) {
        thread.join();
    }
    if (error) {
        std::rethrow_exception(error);
    }
}

} // namespace edgekv
