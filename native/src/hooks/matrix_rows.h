// How ggml's threads take the rows of a matrix that is multiplied by one column. Each has a stretch of neighbouring rows, the
// same for every token: what its own caches hold of them serves again, and nobody fetches in advance what another one reads. A
// thread that is done takes pieces of other stretches, because processors differ in speed.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EDGEKV_MAX_THREADS = 512 }; // as many threads as ggml allows

// How many pieces of each stretch are taken, on cache lines of their own. One for each of ggml's pools of threads.
struct edgekv_matrix_rows {
    struct {
        int n_taken;
        char rest_of_line[60];
    } of[EDGEKV_MAX_THREADS];
};

struct ggml_threadpool;

// Those of a pool.
struct edgekv_matrix_rows * edgekv_matrix_rows_of(struct ggml_threadpool * pool);

// Begin a matrix. Called by one thread, before a barrier that all of them pass.
void edgekv_begin_matrix(struct edgekv_matrix_rows * rows, int n_threads);

// Take a piece of a matrix of n_rows for this thread: rows *from to *to, both multiples of `multiple` but for the last row's end.
// Returns whether there was one.
bool edgekv_take_rows(
    struct edgekv_matrix_rows * rows, int thread, int n_threads, int64_t n_rows, int64_t multiple, int64_t * from, int64_t * to);

#ifdef __cplusplus
}
#endif
