// How ggml's threads wait: for each other at a barrier, awake for a moment, then asleep, so that a busy machine gives the
// processor to the one that they wait for; and for weights that are read from the model's file.
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Return once *value is no longer `seen`.
void edgekv_wait_while(const int * value, int seen);

// Wake all that wait for a value that has just changed.
void edgekv_wake(const int * value);

struct ggml_tensor;

// Return once the streamed weights that a node computes with are there; false if they cannot be read. All threads that
// compute the node call it before. The function is in streamed_weights.cpp.
bool edgekv_await_weights(const struct ggml_tensor * node);

#ifdef __cplusplus
}
#endif
