// What the patches of ggml call for a node of edgekv's attention, which works in the memory of the graph's plan as products do.
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ggml_tensor;

#ifdef __cplusplus
extern "C" {
#endif

// What n_threads threads work in; 0 for any other node.
size_t edgekv_attention_bytes(const struct ggml_tensor * node, int n_threads);

// Compute the part of one thread; false for any other node. workspace: edgekv_attention_bytes
bool edgekv_compute_attention(struct ggml_tensor * node, void * workspace, int thread, int n_threads);

#ifdef __cplusplus
}
#endif
