// Rows of a matrix that threads take: each is taken once, by whoever has time, and a thread alone takes them in order.
#include "check.h"
#include "hooks/matrix_rows.h"

#include <memory>
#include <thread>
#include <vector>

namespace {

// How often each row is taken by threads that begin one after the other, or all at once.
std::vector<int> times_taken(int64_t n_rows, int n_threads, int64_t multiple, bool at_once) {
    auto             rows = std::make_unique<edgekv_matrix_rows>();
    std::vector<int> taken(n_rows);
    const auto       take = [&](int thread) {
        int64_t from, to;
        while (edgekv_take_rows(rows.get(), thread, n_threads, n_rows, multiple, &from, &to)) {
            CHECK(from < to && to <= n_rows && from % multiple == 0 && (to % multiple == 0 || to == n_rows));
            for (int64_t row = from; row < to; ++row) {
                ++taken[row];
            }
        }
    };
    edgekv_begin_matrix(rows.get(), n_threads);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < n_threads; ++thread) {
        if (at_once) {
            threads.emplace_back(take, thread);
        } else {
            take(thread);
        }
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    return taken;
}

} // namespace

void test_matrix_rows() {
    for (int64_t n_rows : { 1, 7, 8, 24, 64, 192, 576, 1000, 49152 }) {
        for (int n_threads : { 1, 2, 3, 4, 7, 16 }) {
            for (int64_t multiple : { 1, 8, 16 }) {
                for (bool at_once : { false, true }) {
                    CHECK(times_taken(n_rows, n_threads, multiple, at_once) == std::vector<int>(n_rows, 1));
                }
            }
        }
    }
}
