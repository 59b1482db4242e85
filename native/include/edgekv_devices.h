// Bytes of a model, its context and its cache on each device that holds some of its layers: a GPU, or a device of an RPC server.
//
// A planner asks for it before anything is allocated: by a context over a model that was loaded with no_alloc.
#ifndef EDGEKV_DEVICES_H
#define EDGEKV_DEVICES_H

#include "edgekv.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EDGEKV_DEVICE_NAME_SIZE 64

struct edgekv_device_usage {
    char     name[EDGEKV_DEVICE_NAME_SIZE]; // ggml's, such as "CUDA0" or "RPC0"; cut if it is longer
    uint32_t n_layers;      // whose weights and cells lie there
    uint32_t has_output;    // 1 if the output matrix lies there, else 0
    uint64_t weight_bytes;
    uint64_t kv_bytes;      // cells, sliding windows and recurrent states
    uint64_t compute_bytes; // llama.cpp's graph buffers
    uint64_t scoring_bytes; // what an open cache holds there: queries, copies of states, and the graphs that score and move rows
    uint64_t state_bytes;   // of kv_bytes, sliding windows and recurrent states
    uint64_t serving_bytes; // what the server that lends it holds besides while it computes; only a planner knows
    uint64_t context_bytes; // what its driver takes there besides; likewise
};

// The usage of all devices that layers were assigned to, in this order; of those without layers, too.
//   params   : of the cache that will be opened on the context
//   usages   : room for n_usages; the first ones are written
//   n_usages : at least as many as devices, or usages is NULL, and then nothing is written
//   n        : how many devices there are
EDGEKV_API enum edgekv_status edgekv_context_devices(
        const struct llama_context * ctx, const struct edgekv_cache_params * params,
        struct edgekv_device_usage * usages, size_t n_usages, size_t * n,
        char * err, size_t err_size);

// The usage of all devices by a plan that this planner made for a request.
//   plan      : NULL = write their names alone
//   usages, n : as of edgekv_context_devices
EDGEKV_API enum edgekv_status edgekv_planner_devices(
        struct edgekv_planner * planner, const struct edgekv_plan_request * request, const struct edgekv_plan * plan,
        struct edgekv_device_usage * usages, size_t n_usages, size_t * n,
        char * err, size_t err_size);

// Have every client of RPC that connects from now on end the process once its server was silent for so many milliseconds, while it
// waits for it: for one graph at most, however long a text is. 0, as at first: it waits for ever.
EDGEKV_API void edgekv_rpc_limit_silence(uint32_t ms);

#ifdef __cplusplus
}
#endif

#endif // EDGEKV_DEVICES_H
