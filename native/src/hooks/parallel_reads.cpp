#include "hooks/parallel_reads.h"

#include <algorithm>

namespace edgekv {

namespace {

constexpr size_t most_of_piece = 1 << 20; // bytes

size_t sum_of(const std::vector<ParallelReads::Span> & spans) {
    size_t n_bytes = 0;
    for (const auto & span : spans) {
        n_bytes += span.n_bytes;
    }
    return n_bytes;
}

} // namespace

ParallelReads::~ParallelReads() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stops_ = true;
    }
    to_do_.notify_all();
    for (std::thread & thread : threads_) {
        thread.join();
    }
}

void ParallelReads::begin() {
    threads_.reserve(n_threads);
    while (threads_.size() < n_threads) {
        threads_.emplace_back([this] { work(); });
    }
}

int ParallelReads::read(const std::vector<Span> & spans) {
    std::unique_lock<std::mutex> lock(mutex_);
    Job                          job = { spans, newest_ };
    newest_                          = &job;
    for (size_t i = std::min(sum_of(spans) / (4 * most_of_piece), n_threads); i > 0; --i) {
        to_do_.notify_one(); // none for a small layer: if its file is in memory, to wake them costs more than they copy
    }
    while (job.has_piece()) {
        read_piece(job, lock);
    }
    done_.wait(lock, [&] { return job.n_in_flight == 0; });
    Job ** link = &newest_;
    while (*link != &job) {
        link = &(*link)->after;
    }
    *link = job.after;
    return job.result;
}

void ParallelReads::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        Job * job = nullptr;
        to_do_.wait(lock, [&] { return stops_ || (job = job_to_do()) != nullptr; });
        if (stops_) {
            return;
        }
        read_piece(*job, lock);
    }
}

ParallelReads::Job * ParallelReads::job_to_do() const {
    Job * job = newest_;
    while (job != nullptr && !job->has_piece()) {
        job = job->after;
    }
    return job;
}

void ParallelReads::read_piece(Job & job, std::unique_lock<std::mutex> & lock) {
    const Span & span = job.spans[job.next];
    const size_t from = job.n_begun, n = std::min(most_of_piece, span.n_bytes - from);
    job.n_begun += n;
    if (job.n_begun == span.n_bytes) {
        ++job.next;
        job.n_begun = 0;
    }
    ++job.n_in_flight;
    lock.unlock();
    const int result = file_->try_read(span.offset + from, span.to + from, n);
    lock.lock();
    if (result != 0) {
        job.result = result;
    }
    if (--job.n_in_flight == 0) {
        done_.notify_all();
    }
}

} // namespace edgekv
