// Policies on plain arrays: one score for each cell, and the cells that stay. No model is needed, and no other header.
//
// edgekv.h includes this one, says how calls fail, and has the caches that policies evict from.
#ifndef EDGEKV_POLICY_H
#define EDGEKV_POLICY_H

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

#define EDGEKV_ABI_VERSION 29

// A struct that a program fills in begins with n_bytes, its size in the header that the program is compiled with. Begin with its default:
//
//     struct edgekv_policy policy = edgekv_policy_default();
//
// So members that are added later break no program. A shorter struct, of an older header, has the defaults of what it lacks. A longer one,
// of a newer header, is taken if all that this library does not know is 0. Another size is refused with EDGEKV_STATUS_INVALID_ARGUMENT.
// New members go last, and no such struct ends in padding. A struct that the library writes has one size for each EDGEKV_ABI_VERSION.
//
// edgekv_..._init writes the default to a struct of so many bytes. edgekv_..._default is compiled with the program.
#define EDGEKV_DEFAULT(name)                                               \
    EDGEKV_API void name##_init(struct name * given, uint32_t n_bytes);    \
    static inline struct name name##_default(void) {                       \
        struct name made;                                                  \
        name##_init(&made, (uint32_t) sizeof(made));                       \
        return made;                                                       \
    }

// New values go last.
enum edgekv_status {
    EDGEKV_STATUS_OK               = 0,
    EDGEKV_STATUS_INVALID_ARGUMENT = 1, // an argument is out of its range
    EDGEKV_STATUS_INVALID_STATE    = 2, // the call does not fit the cache's state (full, empty, foreign cells)
    EDGEKV_STATUS_NOT_FINITE       = 3, // a score or a logit is NaN or infinite
    EDGEKV_STATUS_UNSUPPORTED      = 4, // the model's cache is of a kind edgekv does not handle
    EDGEKV_STATUS_MODEL_INVALID    = 5, // llama.cpp refused the model file, or it was changed after it was loaded
    EDGEKV_STATUS_OUT_OF_MEMORY    = 6, // an allocation failed
    EDGEKV_STATUS_INTERNAL         = 7, // anything else; the message says what
    EDGEKV_STATUS_OVER_CEILING     = 8, // nothing fits the memory ceiling
    EDGEKV_STATUS_ARCHIVE          = 9, // an archive's file cannot be written or read, or is not what was written
};

EDGEKV_API uint32_t     edgekv_abi_version(void);
EDGEKV_API const char * edgekv_status_name(enum edgekv_status status);

enum edgekv_base {
    EDGEKV_BASE_SINK    = 0, // score = position
    EDGEKV_BASE_RANDOM  = 1, // score = a uniform hash of (seed, layer, head, position)
    EDGEKV_BASE_KEYDIFF = 2, // score = -similarity(anchor, key)
    EDGEKV_BASE_L2NORM  = 3, // score = -norm2(key)
    EDGEKV_BASE_H2O     = 4, // score = attention gathered so far
    EDGEKV_BASE_TOVA    = 5, // score = attention of the newest row
    EDGEKV_BASE_SNAPKV  = 6, // score = pooled attention of the newest rows
    EDGEKV_BASE_AHAKV   = 7, // score = value prior * sharpened attention of the newest rows
    EDGEKV_BASE_CUSTOM  = 8, // score = what policy.scorer writes; in a cache only
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

enum edgekv_aggregate {
    EDGEKV_AGGREGATE_MEAN = 0, // over the rows of the query heads that share a KV head
    EDGEKV_AGGREGATE_MAX  = 1,
};

enum edgekv_keydiff_flag {
    EDGEKV_KEYDIFF_BEFORE_ROPE = 1, // keys are compared as they were before RoPE; on plain arrays they are given so
};

enum edgekv_ahakv_flag {
    EDGEKV_AHAKV_FLOOR               = 1, // lambda is never less than the model's own scale
    EDGEKV_AHAKV_RECENT_ACCUMULATION = 2, // sum over the newest rows only
    EDGEKV_AHAKV_STEP_GAIN           = 4, // sharpen as the text grows
    EDGEKV_AHAKV_VALUE_PRIOR         = 8, // multiply by the pooled square norm of the values
};

enum edgekv_weigh {
    EDGEKV_WEIGH_NONE      = 0,
    EDGEKV_WEIGH_CAOTE     = 1, // by the error of the attention output without the cell
    EDGEKV_WEIGH_FASTCAOTE = 2, // the same with the mean of the values for the output
};

enum edgekv_spread {
    EDGEKV_SPREAD_HEAD  = 0, // every head of a layer keeps the same number of cells
    EDGEKV_SPREAD_LAYER = 1, // the heads of a layer share its cells by their scores
};

struct edgekv_scorer;

struct edgekv_policy {
    uint32_t n_bytes;
    int32_t  base;     // enum edgekv_base
    int32_t  anchor;   // enum edgekv_anchor
    int32_t  metric;   // enum edgekv_metric
    int32_t  pool;     // enum edgekv_pool
    uint32_t kernel;   // cells under the pooling kernel, odd; 1 = no pooling
    uint32_t rows;     // newest rows of queries that score: SNAPKV and AHAKV
    uint64_t seed;     // RANDOM
    uint32_t flags;    // sum of enum edgekv_keydiff_flag or edgekv_ahakv_flag
    int32_t  softmax;  // nonzero: what follows gets a softmax of the base scores
    int32_t  weigh;    // enum edgekv_weigh
    int32_t  critical; // nonzero: the share alpha by score, the rest by (score + epsilon) * wo_norm
    double   alpha;
    double   epsilon;  // of `critical`, at least 0; 1e-4 in the paper's Algorithm 1

    int32_t  aggregate; // SNAPKV: enum edgekv_aggregate
    int32_t  pool_rows; // SNAPKV, nonzero: rows are pooled one by one, before they are aggregated

    int32_t  spread;    // enum edgekv_spread
    double   safeguard; // LAYER and MODEL: the share of every budget that is split evenly, in [0, 1]
    double   pyramid;   // beta: budgets fall linearly from layer to layer, the last one's free cells to 1/beta of the mean;
                        // 0 = every layer has the same

    const struct edgekv_scorer * scorer; // CUSTOM
};

EDGEKV_DEFAULT(edgekv_policy) // keydiff

// Set a policy by its name, as Python and the command line spell it: a base, then wrappers, each with options of its own, as in
// "snapkv+ada" or "snapkv(window=64, kernel=61, aggregate=max)+critical". docs/policies.md lists them.
//   policy : n_bytes is the program's; all else is written
//   EDGEKV_STATUS_INVALID_ARGUMENT  there is no such name, option or value; or they do not go together; or the option protects cells,
//                                   which edgekv_protection does
EDGEKV_API enum edgekv_status edgekv_policy_parse(
                          const char * text,
                struct edgekv_policy * policy,
                                char * err,
                              size_t   err_size);

// The keys or values of one head: n rows of `dim` elements, `stride_bytes` apart.
struct edgekv_rows {
    uint32_t     n_bytes;
    int32_t      type; // enum ggml_type: F32, F16, Q8_0 or Q4_0
    const void * data;
    uint64_t     n;
    uint64_t     stride_bytes;
    uint32_t     dim;      // elements of a row
    uint32_t     rotation; // rows are stored Hadamard-rotated in runs of this many elements; 0 = as they are
};

EDGEKV_DEFAULT(edgekv_rows)

// The n cells of one head, in any order. What a policy does not read may be NULL.
struct edgekv_cells {
    uint32_t                   n_bytes;
    const struct edgekv_rows * keys;
    const struct edgekv_rows * values;      // AHAKV, `weigh`
    const int32_t *            positions;   // (n,)
    const float *              accumulated; // (n,) what earlier scorings left: H2O, AHAKV; NULL = 0
    const float *              wo_norm;     // (n,) as edgekv_wo_norm writes it: `critical`
    uint32_t                   layer;
    uint32_t                   head;
};

EDGEKV_DEFAULT(edgekv_cells)

// The newest queries of the heads that share one KV head, rotated as the keys are.
struct edgekv_queries {
    uint32_t        n_bytes;
    const float *   data;      // (n_head, n_rows, dim)
    const int32_t * positions; // (n_rows,) ascending
    uint32_t        n_head;
    uint32_t        n_rows;
    uint32_t        dim;
    int32_t         n_seen;  // tokens seen when the last row was fed, itself included
    float           scale;   // of Q K^T
    float           softcap; // c of the model's attention, c tanh(x/c); 0 = none
    const float *   sinks;   // (n_head,) logits of learnt sinks, which take attention and have no value; NULL = none
};

EDGEKV_DEFAULT(edgekv_queries)

// Score n cells. scores (n,) come in the order of the cells; of `critical` they are the second stage's.
//   queries : NULL if the policy reads none;  budget : cells, for AHAKV
EDGEKV_API enum edgekv_status edgekv_score(
          const struct edgekv_policy * policy,
           const struct edgekv_cells * cells,
         const struct edgekv_queries * queries,
                            uint32_t   budget,
                               float * scores,
                                char * err,
                              size_t   err_size);

struct edgekv_protection {
    uint32_t        n_bytes;
    uint32_t        n_sink;   // positions [0, n_sink) stay
    uint32_t        n_recent; // the newest n_recent cells stay
    const int32_t * pinned;   // pairs p0, p1: positions [p0, p1) stay
    size_t          n_pinned; // number of pairs
};

EDGEKV_DEFAULT(edgekv_protection) // no cell

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

// Score and choose in one go, as a compaction does; arguments and errors as of edgekv_score and edgekv_select.
//   n_keep : cells that this head keeps, which is `budget` unless heads share
EDGEKV_API enum edgekv_status edgekv_choose(
          const struct edgekv_policy * policy,
           const struct edgekv_cells * cells,
         const struct edgekv_queries * queries,
      const struct edgekv_protection * protection,
                            uint32_t   budget,
                            uint32_t   n_keep,
                            uint32_t * kept,
                              size_t * n_kept,
                                char * err,
                              size_t   err_size);

// The scores of one head's cells, to be compared with those of other heads.
struct edgekv_scored {
    uint32_t        n_bytes;
    const float *   scores;    // (n,)
    const int32_t * positions; // (n,)
    size_t          n;
};

EDGEKV_DEFAULT(edgekv_scored)

// Split a budget over heads that share their cells (policy.safeguard): budgets (n_heads,), whose sum is
// n_heads * budget, or less where the heads hold less. No head gets more than it holds, more than `largest`, or less
// than its protected cells.
//   EDGEKV_STATUS_INVALID_ARGUMENT  the protected cells of a head exceed `budget`, or `largest` is less than `budget`
//   EDGEKV_STATUS_NOT_FINITE        a score is NaN or infinite
EDGEKV_API enum edgekv_status edgekv_allot(
                         const struct edgekv_policy * policy,
                         const struct edgekv_scored * heads,
                                             size_t   n_heads,
                     const struct edgekv_protection * protection,
                                           uint32_t   budget,
                                           uint32_t   largest,
                                           uint32_t * budgets,
                                               char * err,
                                             size_t   err_size);

// Split a budget over layers (policy.pyramid): budgets (n_layer,), whose sum is n_layer * budget; none is less than
// n_protected or more than `largest`. Errors as of edgekv_allot.
EDGEKV_API enum edgekv_status edgekv_layer_budgets(
                         const struct edgekv_policy * policy,
                                           uint32_t   n_layer,
                                           uint32_t   budget,
                                           uint32_t   n_protected,
                                           uint32_t   largest,
                                           uint32_t * budgets,
                                               char * err,
                                             size_t   err_size);

// norm1(V W_O), averaged over the query heads of one KV head; norms (n,).
//   w_o : rows (n_embd, n_head * d_v) of any ggml type, the columns of this KV head's query heads at
//         [first, first + n_head) * d_v
EDGEKV_API enum edgekv_status edgekv_wo_norm(
            const struct edgekv_rows * values,
            const struct edgekv_rows * w_o,
                            uint32_t   first,
                            uint32_t   n_head,
                               float * norms,
                                char * err,
                              size_t   err_size);

// Turn keys, stored after RoPE, to other positions: row i by deltas[i] positions, which rounds it once more to its type.
//   rows   : rows->data is written; elements that share no block or rotated run with the n_rot from `first` on keep their
//            bytes, and all do if the delta is 0
//   angles : (n_rot / 2,) radians per position, with `first` and `neighbours` as edgekv_context_rope gives them
//   deltas : (n,)
EDGEKV_API enum edgekv_status edgekv_rope_turn(
            const struct edgekv_rows * rows,
                        const double * angles,
                            uint32_t   first,
                            uint32_t   n_rot,
                             int32_t   neighbours,
                       const int32_t * deltas,
                                char * err,
                              size_t   err_size);

// A scorer of one's own, called layer by layer during a compaction, on the calling thread. Cells come ascending by
// position; arrays that it does not read are NULL. All KV heads of a layer come in one call while they hold equally many
// cells; where they do not, there is a call for every run of adjacent heads that do. Heads without cells are left out.
enum edgekv_reads {
    EDGEKV_READS_KEYS      = 1,
    EDGEKV_READS_VALUES    = 2,
    EDGEKV_READS_QUERIES   = 4,
    EDGEKV_READS_POSITIONS = 8, // always given
};

struct edgekv_layer_view {
    uint32_t        layer;
    uint32_t        n_head_kv; // KV heads of this call
    uint32_t        n_head;    // their query heads, of all layers of the model that attend with these rows
    uint32_t        n;         // cells of each head
    uint32_t        n_rows;    // newest rows of queries
    uint32_t        head_dim_k;
    uint32_t        head_dim_v;
    uint32_t        first_head_kv; // the first KV head of this call, counted in its layer
    const float *   keys;            // (n_head_kv, n, head_dim_k)
    const float *   values;          // (n_head_kv, n, head_dim_v)
    const float *   queries;         // (n_head, n_rows, head_dim_k)
    const int32_t * positions;       // (n_head_kv, n)
    const int32_t * query_positions; // (n_rows,)
    const float *   sinks;           // (n_head,) logits of learnt sinks, which take attention and have no value; NULL = none
};

struct edgekv_scorer {
    uint32_t n_bytes;
    // Write scores (n_head_kv, n); anything but 0 fails the compaction, and so does a score that is not written.
    int32_t (*score)(void * user_data, const struct edgekv_layer_view * view, float * scores);
    void *   user_data;
    uint32_t reads;  // sum of enum edgekv_reads
    uint32_t n_rows; // newest rows of queries that it wants
};

EDGEKV_DEFAULT(edgekv_scorer)

#ifdef __cplusplus
}
#endif

#endif // EDGEKV_POLICY_H
