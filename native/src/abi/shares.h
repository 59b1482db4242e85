// How ggml's threads divide the rows of a matrix that is multiplied by one column (patches/0012). Each has a share of
// neighbouring rows, the same for every token: what its own caches hold of them serves again, and nobody fetches in advance what
// another one reads. A thread that is done takes over pieces of other shares, because processors differ in speed.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EDGEKV_MAX_SHARES = 512 }; // as many threads as ggml allows

// How many pieces of each share are taken, on cache lines of their own. One for each of ggml's pools of threads.
struct edgekv_shares {
    struct {
        int n_taken;
        char rest_of_line[60];
    } of[EDGEKV_MAX_SHARES];
};

struct ggml_threadpool;

// Those of a pool.
struct edgekv_shares * edgekv_shares_of(struct ggml_threadpool * pool);

// Begin a matrix. Called by one thread, before a barrier that all of them pass.
void edgekv_begin_shares(struct edgekv_shares * shares, int n_threads);

// Take a piece of a matrix of n_rows for this thread: rows *from to *to, both multiples of `multiple` but for the last row's end.
// Returns whether there was one.
bool edgekv_take_piece(
    struct edgekv_shares * shares, int thread, int n_threads, int64_t n_rows, int64_t multiple, int64_t * from, int64_t * to);

#ifdef __cplusplus
}
#endif
