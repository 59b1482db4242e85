// A few threads that share the work of one compaction.
#pragma once

#include "hooks/aborts.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace edgekv {

// Threads that start together, sleep between two pieces of work, and end with the team. If one cannot be started, fewer do
// the work. Only the constructor allocates.
class Team {
  public:
    explicit Team(size_t n_threads); // the caller's is one of them
    ~Team();
    Team(const Team &)             = delete;
    Team & operator=(const Team &) = delete;

    // Call body(task, thread) once for every task in [0, n_tasks); thread is in [0, n_threads). The first exception is
    // rethrown here once no thread is at work. An abort of ggml is one on all threads where it is one on the caller's.
    template <typename Body> void each(size_t n_tasks, const Body & body) {
        run({ [](const void * body, size_t task, size_t thread) { (*static_cast<const Body *>(body))(task, thread); }, &body, n_tasks,
              Contained::is_here() });
    }

  private:
    struct Work {
        void (*call)(const void * body, size_t task, size_t thread);
        const void * body;
        size_t       n_tasks;
        bool         is_contained;
    };

    void run(const Work & work);
    void take_tasks(const Work & work, size_t thread) noexcept;
    void serve(size_t thread) noexcept;

    std::mutex              mutex_; // of all but next_
    std::condition_variable wake_;
    std::condition_variable idle_;
    const Work *            work_   = nullptr; // that a thread may join
    uint64_t                round_  = 0;       // which it is
    size_t                  n_busy_ = 0;       // threads at work, besides the caller's
    bool                    stop_   = false;
    std::atomic<size_t>     next_{ 0 };
    std::exception_ptr      error_;

    std::vector<std::thread> threads_;
};

} // namespace edgekv
