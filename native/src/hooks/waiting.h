// How ggml's threads wait for each other at a barrier: awake for a moment, then asleep, so that a busy machine
// gives the processor to the one that they wait for.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Return once *value is no longer `seen`.
void edgekv_wait_while(const int * value, int seen);

// Wake all that wait for a value that has just changed.
void edgekv_wake(const int * value);

#ifdef __cplusplus
}
#endif
