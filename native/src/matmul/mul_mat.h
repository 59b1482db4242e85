// What ggml's processor backend calls: products of a block with quantised weights that edgekv computes itself (products.h).
#pragma once

#include "ggml.h"
#include "matmul/row_order.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EDGEKV_ROWS_TOGETHER = 32 }; // threads take so many rows, or a multiple: no set of instructions unpacks more at once

// Whether edgekv computes this GGML_OP_MUL_MAT or GGML_OP_MUL_MAT_ID, the weights of which lie in that order. It depends on types and
// shapes alone.
bool edgekv_takes_mul_mat(const struct ggml_tensor * product, struct edgekv_row_order order);

// Bytes that it works in.
size_t edgekv_mul_mat_bytes(const struct ggml_tensor * product, struct edgekv_row_order order, int n_threads);

// A thread's part of the activations, made whole numbers; all of them come before any rows.
void edgekv_mul_mat_columns(const struct ggml_tensor * product, struct edgekv_row_order order, void * workspace, int thread,
                            int n_threads);

// Rows [from, to) of the weights with all columns; of every expert's weights, with the columns that chose it.
void edgekv_mul_mat_rows(const struct ggml_tensor * product, struct edgekv_row_order order, void * workspace, int thread,
                         int64_t from, int64_t to);

// The whole of it, by each thread of those that compute a graph (patches/0006).
struct ggml_compute_params;
void edgekv_compute_mul_mat(const struct ggml_compute_params * params, struct ggml_tensor * product,
                            struct edgekv_row_order order);

#ifdef __cplusplus
}
#endif
