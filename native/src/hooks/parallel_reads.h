// Reads of the model's file in pieces, several at a time: a disk gives more bytes a second to many reads than to one after another.
#pragma once

#include "hooks/weights_file.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace edgekv {

class ParallelReads {
  public:
    static constexpr size_t n_threads = 7; // beside the one that asks

    struct Span {
        uint64_t offset; // in the file
        char *   to;
        size_t   n_bytes;
    };

    explicit ParallelReads(std::shared_ptr<const WeightsFile> file) : file_(std::move(file)) {}
    ~ParallelReads();
    ParallelReads(const ParallelReads &)             = delete;
    ParallelReads & operator=(const ParallelReads &) = delete;

    // Start the threads. Until then whoever asks reads alone. Throws std::system_error, std::bad_alloc.
    void begin();

    // Read all spans. Returns 0, or what WeightsFile::try_read returned for a piece of them; then the others may be read in part.
    // Several threads may ask at once: who asked last comes first. Nothing is allocated.
    int read(const std::vector<Span> & spans);

  private:
    struct Job {
        const std::vector<Span> & spans;
        Job *                     after;           // who asked before
        size_t                    next        = 0; // the span of which pieces are left
        size_t                    n_begun     = 0; // bytes of it
        size_t                    n_in_flight = 0; // pieces
        int                       result      = 0;

        bool has_piece() const { return result == 0 && next < spans.size(); }
    };

    void  work();
    Job * job_to_do() const;
    void  read_piece(Job & job, std::unique_lock<std::mutex> & lock);

    std::shared_ptr<const WeightsFile> file_;
    std::mutex                         mutex_;
    std::condition_variable            to_do_;
    std::condition_variable            done_;
    Job *                              newest_ = nullptr;
    bool                               stops_  = false;
    std::vector<std::thread>           threads_;
};

} // namespace edgekv
