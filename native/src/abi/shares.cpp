#include "abi/shares.h"

#include <algorithm>
#include <atomic>

namespace {

constexpr int64_t n_pieces = 4; // of a share: fewer cannot be evened out, and each further one is read less evenly

int64_t rounded_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

std::atomic<int> & taken(edgekv_shares * shares, int share) {
    return *reinterpret_cast<std::atomic<int> *>(&shares->of[share].n_taken);
}

} // namespace

void edgekv_begin_shares(edgekv_shares * shares, int n_threads) {
    for (int i = 0; i < n_threads; ++i) {
        taken(shares, i).store(0, std::memory_order_relaxed);
    }
}

bool edgekv_take_piece(
    edgekv_shares * shares, int thread, int n_threads, int64_t n_rows, int64_t multiple, int64_t * from, int64_t * to) {
    const int64_t share = rounded_up((n_rows + n_threads - 1) / n_threads, multiple);
    const int64_t piece = rounded_up((share + n_pieces - 1) / n_pieces, multiple);
    for (int step = 0; step < n_threads; step = std::max(1, 2 * step)) { // its own share, and those 1, 2, 4 ... further on
        const int    owner = (thread + step) % n_threads;
        const auto   end = std::min((owner + 1) * share, n_rows);
        const auto   first = owner * share;
        auto &       n_taken = taken(shares, owner);
        if (first + n_taken.load(std::memory_order_relaxed) * piece >= end) {
            continue;
        }
        *from = first + n_taken.fetch_add(1, std::memory_order_relaxed) * piece;
        *to = std::min(*from + piece, end);
        if (*from < end) {
            return true;
        }
    }
    return false;
}
