// edgekv: a KV cache that stays inside a budget of cells.
//
// A model and a context are llama.cpp's own. An `edgekv_cache` is opened over a context and from then on
// feeds it: it knows which token every cell of every (layer, KV head) holds, scores the cells, and compacts
// each head to its budget. A C program can use this header alone, beside llama.h.
//
// Conventions
//   - Every call that can fail returns a status and takes `err`/`err_size`: optional, on failure it holds a
//     NUL-terminated message, cut at err_size. A failed call changes nothing unless it says otherwise.
//   - No exception leaves the library, and misuse never aborts the host.
//   - A cache belongs to one thread at a time. Scoring and moving use as many threads as the context's.
//   - Cells are physical slots, positions are true positions in the text; ranges are half-open [p0, p1).
//   - Scores are float32; higher is kept.
#ifndef EDGEKV_H
#define EDGEKV_H

#include "llama.h"

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#    if defined(EDGEKV_BUILD)
#        define EDGEKV_API __declspec(dllexport)
#    else
#        define EDGEKV_API __declspec(dllimport)
#    endif
#else
#    define EDGEKV_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define EDGEKV_ABI_VERSION 1

// New values go last.
enum edgekv_status {
    EDGEKV_STATUS_OK               = 0,
    EDGEKV_STATUS_INVALID_ARGUMENT = 1, // an argument is out of its range
    EDGEKV_STATUS_INVALID_STATE    = 2, // the call does not fit the cache's state (full, empty, foreign cells)
    EDGEKV_STATUS_NOT_FINITE       = 3, // a score or a logit is NaN or infinite
    EDGEKV_STATUS_UNSUPPORTED      = 4, // the model's cache is of a kind edgekv does not handle
    EDGEKV_STATUS_MODEL_INVALID    = 5, // llama.cpp refused the model file
    EDGEKV_STATUS_OUT_OF_MEMORY    = 6, // an allocation failed
    EDGEKV_STATUS_INTERNAL         = 7, // anything else; the message says what
};

EDGEKV_API uint32_t     edgekv_abi_version(void);
EDGEKV_API const char * edgekv_status_name(enum edgekv_status status);

// ---- models and contexts: llama.cpp's own calls, with its reasons as text and its aborts as a status ----

// Load a model as llama_model_load_from_file does; free it with llama_model_free.
EDGEKV_API enum edgekv_status edgekv_model_load(
                          const char * path,
     const struct llama_model_params * params,
                 struct llama_model ** model,
                                char * err,
                              size_t   err_size);

// Make a context as llama_init_from_model does; free it with llama_free.
EDGEKV_API enum edgekv_status edgekv_context_new(
                  struct llama_model * model,
   const struct llama_context_params * params,
               struct llama_context ** ctx,
                                char * err,
                              size_t   err_size);

struct edgekv_shape {
    uint32_t n_layer;       // layers that have a cache
    uint32_t n_head_total;  // KV heads, summed over those layers
    uint32_t n_head_kv_max; // KV heads of the widest layer
    uint32_t head_dim_k;    // elements of a key, at most
    uint32_t head_dim_v;    // elements of a value, at most
    uint32_t n_cells;       // cells per head (the context's size)
    uint32_t n_threads;     // threads that scoring and moving use
    uint32_t staged;        // 1 if the rows lie on a device, and are scored and moved in a copy of one layer
    uint64_t cell_bytes;    // K and V of one cell, over all layers and heads
    uint64_t layer_bytes;   // K and V of all cells of the widest layer
};

// Say what the context's cache looks like.
//   EDGEKV_STATUS_UNSUPPORTED  sliding-window, recurrent, hybrid, MLA, ALiBi, encoder and multi-position models
EDGEKV_API enum edgekv_status edgekv_context_shape(
          const struct llama_context * ctx,
                 struct edgekv_shape * shape,
                                char * err,
                              size_t   err_size);

struct edgekv_memory {
    uint64_t weight_bytes;  // weights in the host's memory (mapped ones count: they are resident)
    uint64_t repack_bytes;  // second copies of weights in the processor's own order
    uint64_t kv_bytes;      // KV cache in the host's memory
    uint64_t compute_bytes; // graph buffers in the host's memory
    uint64_t output_bytes;  // logits, and the candidates of a sampler
    uint64_t device_bytes;  // everything on other devices
};

// Sum up what a context holds, or would hold if its model was loaded with no_alloc.
EDGEKV_API enum edgekv_status edgekv_context_memory(
          const struct llama_context * ctx,
                struct edgekv_memory * memory,
                                char * err,
                              size_t   err_size);

// ---- policies on plain arrays: no model needed ----

enum edgekv_base {
    EDGEKV_BASE_SINK    = 0, // score = position
    EDGEKV_BASE_RANDOM  = 1, // score = a uniform hash of (seed, layer, head, position)
    EDGEKV_BASE_KEYDIFF = 2, // score = -similarity(anchor, key)
};

enum edgekv_anchor {
    EDGEKV_ANCHOR_UNIT_MEAN = 0,
    EDGEKV_ANCHOR_MEAN      = 1,
    EDGEKV_ANCHOR_MEDIAN    = 2,
    EDGEKV_ANCHOR_PAIRWISE  = 3, // cosine only
};

enum edgekv_metric {
    EDGEKV_METRIC_COSINE    = 0,
    EDGEKV_METRIC_DOT       = 1,
    EDGEKV_METRIC_EUCLIDEAN = 2,
};

enum edgekv_pool {
    EDGEKV_POOL_AVG = 0,
    EDGEKV_POOL_MAX = 1,
};

struct edgekv_policy {
    int32_t  base;   // enum edgekv_base
    int32_t  anchor; // enum edgekv_anchor
    int32_t  metric; // enum edgekv_metric
    int32_t  pool;   // enum edgekv_pool
    uint32_t kernel; // cells under the pooling kernel, odd; 1 = no pooling
    uint32_t reserved;
    uint64_t seed;
};

// The keys of one head: n rows of head_dim elements, `stride_bytes` apart.
struct edgekv_rows {
    const void * data;
    int32_t      type;    // enum ggml_type: F32, F16, Q8_0 or Q4_0
    uint32_t     dim;     // elements of a row
    uint64_t     n;
    uint64_t     stride_bytes;
    uint32_t     rotation; // rows are stored Hadamard-rotated in runs of this many elements; 0 = as they are
    uint32_t     reserved;
};

// Score n cells. positions (n,) need not be sorted; scores (n,) come in the order of the rows.
EDGEKV_API enum edgekv_status edgekv_score(
          const struct edgekv_policy * policy,
            const struct edgekv_rows * keys,
                       const int32_t * positions,
                            uint32_t   layer,
                            uint32_t   head,
                               float * scores,
                                char * err,
                              size_t   err_size);

struct edgekv_protection {
    uint32_t        n_sink;   // positions [0, n_sink) stay
    uint32_t        n_recent; // the newest n_recent cells stay
    const int32_t * pinned;   // pairs p0, p1: positions [p0, p1) stay
    size_t          n_pinned; // number of pairs
};

// Choose the cells that stay: protected ones first, then the best scores; ties keep the later position.
//   kept   : room for min(n, budget) cell indices; written ascending by position
//   EDGEKV_STATUS_INVALID_ARGUMENT  the protected cells alone exceed the budget
//   EDGEKV_STATUS_NOT_FINITE        a score is NaN or infinite
EDGEKV_API enum edgekv_status edgekv_select(
                         const float * scores,
                       const int32_t * positions,
                              size_t   n,
                              size_t   budget,
      const struct edgekv_protection * protection,
                            uint32_t * kept,
                              size_t * n_kept,
                                char * err,
                              size_t   err_size);

// ---- the cache of a context ----

struct edgekv_cache;

struct edgekv_cache_params {
    int32_t staged; // nonzero: copy rows through a host buffer even where the cache lies in host memory (for tests)
};

// Open a context's cache and empty it. The context must outlive it; nothing else may feed the context meanwhile.
EDGEKV_API enum edgekv_status edgekv_cache_open(
                struct llama_context * ctx,
    const struct edgekv_cache_params * params,
                struct edgekv_cache ** cache,
                                char * err,
                              size_t   err_size);

EDGEKV_API void edgekv_cache_free(struct edgekv_cache * cache);

// Bytes that an open cache of this shape holds for itself, beyond the context's own.
EDGEKV_API uint64_t edgekv_cache_estimate_bytes(const struct edgekv_shape * shape);
EDGEKV_API uint64_t edgekv_cache_bytes(const struct edgekv_cache * cache);

// Drop every cell; the next token is fed at position 0.
EDGEKV_API enum edgekv_status edgekv_cache_clear(struct edgekv_cache * cache, char * err, size_t err_size);

// Decode n tokens at the next positions, and compute logits for the last one if want_logits.
//   n : at most the context's n_ubatch, and at most the free cells
//   EDGEKV_STATUS_INVALID_STATE  too few free cells; compact first
//   EDGEKV_STATUS_NOT_FINITE     a logit is NaN or infinite; the cache is as before
//   EDGEKV_STATUS_INTERNAL       llama_decode failed; the cache is as before
EDGEKV_API enum edgekv_status edgekv_cache_feed(
                 struct edgekv_cache * cache,
                 const llama_token   * tokens,
                              size_t   n,
                             int32_t   want_logits,
                                char * err,
                              size_t   err_size);

struct edgekv_compaction {
    uint64_t n_evicted; // cells evicted, summed over heads
    int64_t  score_us;  // time to score and select
    int64_t  move_us;   // time to move the survivors
};

// Score every head's cells and keep `budget` of them; nothing happens when no head holds more.
// Survivors end in cells [0, budget). On failure the cache is unchanged.
EDGEKV_API enum edgekv_status edgekv_cache_compact(
                 struct edgekv_cache * cache,
          const struct edgekv_policy * policy,
      const struct edgekv_protection * protection,
                            uint32_t   budget,
            struct edgekv_compaction * result,
                                char * err,
                              size_t   err_size);

EDGEKV_API uint32_t edgekv_cache_n_cells(const struct edgekv_cache * cache); // cells used per head
EDGEKV_API int32_t  edgekv_cache_n_past (const struct edgekv_cache * cache); // position of the next token

// Write the positions held by one head, ascending: room for edgekv_cache_n_cells of them.
EDGEKV_API enum edgekv_status edgekv_cache_positions(
           const struct edgekv_cache * cache,
                            uint32_t   layer,
                            uint32_t   head,
                             int32_t * positions,
                                char * err,
                              size_t   err_size);

// Copy one head's stored keys or values (as stored: typed, and rotated where the context rotates them) in the
// order of edgekv_cache_positions. `rows` describes the copy; rows->data is owned by the caller: dst.
EDGEKV_API enum edgekv_status edgekv_cache_read(
           const struct edgekv_cache * cache,
                            uint32_t   layer,
                            uint32_t   head,
                             int32_t   values,
                                void * dst,
                              size_t   dst_size,
                  struct edgekv_rows * rows,
                                char * err,
                              size_t   err_size);

#ifdef __cplusplus
}
#endif

#endif // EDGEKV_H
