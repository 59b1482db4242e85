#include "hooks/matrix_rows.h"

#include <algorithm>
#include <atomic>

namespace {

constexpr int64_t n_pieces = 4; // of a stretch: fewer cannot be evened out, and each further one is read less evenly

int64_t rounded_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

std::atomic<int> & taken(edgekv_matrix_rows * rows, int stretch) {
    return *reinterpret_cast<std::atomic<int> *>(&rows->of[stretch].n_taken);
}

} // namespace

void edgekv_begin_matrix(edgekv_matrix_rows * rows, int n_threads) {
    for (int i = 0; i < n_threads; ++i) {
        taken(rows, i).store(0, std::memory_order_relaxed);
    }
}

bool edgekv_take_rows(
    edgekv_matrix_rows * rows, int thread, int n_threads, int64_t n_rows, int64_t multiple, int64_t * from, int64_t * to) {
    const int64_t stretch = rounded_up((n_rows + n_threads - 1) / n_threads, multiple);
    const int64_t piece = rounded_up((stretch + n_pieces - 1) / n_pieces, multiple);
    for (int step = 0; step < n_threads; step = std::max(1, 2 * step)) { // its own stretch, and those 1, 2, 4 ... further on
        const int    owner = (thread + step) % n_threads;
        const auto   end = std::min((owner + 1) * stretch, n_rows);
        const auto   first = owner * stretch;
        auto &       n_taken = taken(rows, owner);
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
