#include "evict/team.h"

#include <optional>
#include <utility>

namespace edgekv {

Team::Team(size_t n_threads) {
    try {
        threads_.reserve(n_threads);
        for (size_t i = 1; i < n_threads; ++i) {
            threads_.emplace_back([this, i] { serve(i); });
        }
    } catch (...) { // no memory for another, or the system's limit
    }
}

Team::~Team() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (auto & thread : threads_) {
        thread.join();
    }
}

void Team::run(const Work & work) {
    next_ = 0;
    if (threads_.empty() || work.n_tasks < 2) {
        take_tasks(work, 0);
    } else {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            ++round_;
        }
        wake_.notify_all();
        take_tasks(work, 0);
        std::unique_lock<std::mutex> lock(mutex_);
        work_ = nullptr; // those that are still asleep have nothing to wake up for
        idle_.wait(lock, [&] { return n_busy_ == 0; });
    }
    if (error_) {
        std::rethrow_exception(std::exchange(error_, nullptr));
    }
}

void Team::take_tasks(const Work & work, size_t thread) noexcept {
    try {
        std::optional<Contained> contained;
        if (work.is_contained) {
            contained.emplace();
        }
        for (size_t task = next_++; task < work.n_tasks; task = next_++) {
            work.call(work.body, task, thread);
        }
    } catch (...) {
        next_ = work.n_tasks;
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!error_) {
            error_ = std::current_exception();
        }
    }
}

void Team::serve(size_t thread) noexcept {
    uint64_t                     last = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stop_ || (work_ != nullptr && round_ != last); });
        if (stop_) {
            return;
        }
        last               = round_;
        const Work & work  = *work_;
        ++n_busy_;
        lock.unlock();
        take_tasks(work, thread);
        lock.lock();
        if (--n_busy_ == 0) {
            idle_.notify_one();
        }
    }
}

} // namespace edgekv
