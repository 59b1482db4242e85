// edgekv: a KV cache that stays inside a budget of cells.
//
// A model and a context are llama.cpp's own. An `edgekv_cache` is opened over a context and from then on
// feeds it: it knows which token every cell of every (layer, KV head) holds, scores the cells, and compacts
// each head to its budget. `edgekv_plan_make` says how many cells fit a memory ceiling, and `edgekv_plan_open` opens a
// planned model. A C program includes this header alone, beside llama.h; docs/c.md is about such programs. It brings two more of the same
// ABI: edgekv_policy.h, policies on plain arrays, and edgekv_snapshot.h, caches as bytes.
//
// Conventions
//   - Every call that can fail returns a status and takes `err`/`err_size`: optional, on failure it holds a
//     NUL-terminated message, cut at err_size. A failed call changes nothing unless it says otherwise.
//   - No exception leaves the library, and misuse never aborts the host. If memory runs out, in llama.cpp too, the call
//     fails with EDGEKV_STATUS_OUT_OF_MEMORY. Two things still end the process: an abort of llama.cpp while it computes a
//     graph, and a device that fails while rows move.
//   - The host's callbacks for llama.cpp's log and for ggml's aborts stay its own: the library puts others in their place during
//     its calls, which call the host's, and puts the host's back. If the host has set none, llama.cpp's log is silent after the
//     first model was loaded; EDGEKV_LOG=1 in the environment shows it.
//   - A cache belongs to one thread at a time. Scoring and moving use as many threads as the context's.
//   - Cells are physical slots, positions are true positions in the text; ranges are half-open [p0, p1).
//   - Scores are float32; higher is kept.
//   - A struct that a program fills in begins with n_bytes, its size; edgekv_policy.h says how such structs grow.
#ifndef EDGEKV_H
#define EDGEKV_H

#include "edgekv_policy.h"
#include "llama.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- models and contexts: llama.cpp's own calls, with its reasons as text and its aborts as a status ----

// Load a model as llama_model_load_from_file does; free it with llama_model_free. With use_extra_bufts its file stays open:
// `critical` reads the output projection there if llama.cpp keeps it in the processor's own order. With LLAMA_LOAD_MODE_NONE
// tables of embeddings that are only looked up stay in the file (on Linux, in a model of one file without layers on devices): the
// rows of a batch are read there. If they cannot be read, feeding fails with EDGEKV_STATUS_MODEL_INVALID and changes no cell.
//
// The matrices of streamed layers stay in the file, as well. Whenever such a layer's turn comes they are read to one of two slots of
// memory, by a thread that reads one layer ahead. Of the experts only a batch's own are read (on Linux). Results are the same
// to the bit as with all weights in memory and use_extra_bufts = false. The rest of the model is loaded as with
// LLAMA_LOAD_MODE_NONE.
//   params     : with streamed layers, llama.cpp's default of n_gpu_layers, or 0: all layers are computed by the processor
//   n_streamed : layers that are streamed, spread evenly over the model; 0 = none
//   EDGEKV_STATUS_MODEL_INVALID     llama.cpp refused the file; or it stays open, and was replaced while it was loaded
//   EDGEKV_STATUS_INVALID_ARGUMENT  the model has fewer layers; or layers are streamed, and params put layers on devices or override
//                                   types of buffers
//   EDGEKV_STATUS_UNSUPPORTED       layers are streamed of a model that is split into several files
EDGEKV_API enum edgekv_status edgekv_model_load(
                          const char * path,
     const struct llama_model_params * params,
                            uint32_t   n_streamed,
                 struct llama_model ** model,
                                char * err,
                              size_t   err_size);

// Streamed weights, and the bytes and time that reading them took so far. Of experts only a batch's own are read. Memory keeps as
// many as two layers use: n_experts_used of n_experts for each token. Tables of embeddings do not count.
struct edgekv_streaming {
    uint32_t n_layers;       // of the model; 0 = nothing is streamed
    uint32_t n_streamed;     // layers that are
    uint32_t n_experts;      // of each layer that has some; 0 = none
    uint32_t n_experts_used; // for each token
    uint64_t streamed_bytes; // of their matrices, without experts, which are read for each batch of tokens
    uint64_t expert_bytes;   // of all their experts
    uint64_t slot_bytes;     // memory that both are read to
    uint64_t read_bytes;     // so far
    uint64_t read_ns;        // that it took
    uint64_t wait_ns;        // for which computing waited
};

EDGEKV_API enum edgekv_status edgekv_model_streaming(
           const struct llama_model * model,
            struct edgekv_streaming * streaming,
                               char * err,
                             size_t   err_size);

// How many cells a context's cache has. All heads draw on one pool of n_cells times their number; a head may hold more
// than others, up to n_cells_max.
struct edgekv_layout {
    uint32_t n_bytes;
    uint32_t n_cells;     // cells per head on average, at least 2
    uint32_t n_cells_max; // cells of one head, at least n_cells
    uint32_t n_probe;     // longest probe in tokens, which sliding windows make room for; at most n_cells
    uint32_t n_slots;     // sequences that are fed together, each with so many cells of its own; 0 = 1
};

EDGEKV_DEFAULT(edgekv_layout)

// The most slots of a context.
#define EDGEKV_MOST_SLOTS 64

// If heads differ, a head may keep up to EDGEKV_HEAD_LIMIT times the budget as long as its cells, a block and a probe fill at
// most half of the trained context, and EDGEKV_HEAD_LEAST times the budget in any case.
#define EDGEKV_HEAD_LIMIT 8
#define EDGEKV_HEAD_LEAST 3

// The layout that holds a budget, a block and a probe. It has at most UINT32_MAX cells, which edgekv_context_new refuses.
//   ragged      : as in edgekv_cache_params; 0 = all heads keep the same number of cells
//   n_ctx_train : of the model
//   layout      : n_bytes is the program's; all else is written
EDGEKV_API enum edgekv_status edgekv_layout_for(
                            uint32_t   budget,
                            uint32_t   block,
                            uint32_t   n_probe,
                            uint32_t   ragged,
                            uint32_t   n_ctx_train,
                struct edgekv_layout * layout,
                                char * err,
                              size_t   err_size);

// Fill in llama.cpp's parameters of a context for edgekv_context_new: one sequence, flash attention, keys and values of one type.
//   kv_type   : enum ggml_type: F16, Q8_0 or Q4_0
//   n_cells   : of llama.cpp's own cache, if the context gets no layout
//   n_outputs : tokens of a batch that have logits: one, and those of a draft
//   EDGEKV_STATUS_INVALID_ARGUMENT  caches have no such type, or the model's heads do not fit its blocks
EDGEKV_API enum edgekv_status edgekv_context_params_for(
           const struct llama_model * model,
                            int32_t   kv_type,
                           uint32_t   n_cells,
                           uint32_t   n_ubatch,
                           uint32_t   n_outputs,
                           uint32_t   n_threads,
        struct llama_context_params * params,
                               char * err,
                             size_t   err_size);

// Make a context as llama_init_from_model does; free it with llama_free.
//   layout : NULL = llama.cpp's own cache, which edgekv_cache_open refuses; else params->n_ctx and n_batch follow from it
//   EDGEKV_STATUS_INVALID_ARGUMENT  the layout is impossible, or has more rows in all than 32 bits count
//   EDGEKV_STATUS_UNSUPPORTED       with a layout: ALiBi and encoder models, latents beside recurrent states, graphs that attend in a
//                                   way that edgekv does not know, and several slots of a model with sliding windows or recurrent
//                                   states, or on a device
EDGEKV_API enum edgekv_status edgekv_context_new(
                  struct llama_model * model,
   const struct llama_context_params * params,
          const struct edgekv_layout * layout,
               struct llama_context ** ctx,
                                char * err,
                              size_t   err_size);

// Of the layers with full attention, which is what is evicted, unless it says otherwise.
struct edgekv_shape {
    uint32_t n_layer;       // layers that have a cache; 0 = nothing is ever evicted
    uint32_t n_head_total;  // KV heads, summed over those layers
    uint32_t n_head_kv_max; // KV heads of the widest layer
    uint32_t n_head_max;    // query heads that read the rows of one layer, at most: later layers may share them
    uint32_t n_group_max;   // query heads of one KV head, at most
    uint32_t head_dim_k;    // elements of a key, at most
    uint32_t head_dim_v;    // elements of a value, at most; of a latent, if rows are latents
    uint32_t n_cells;       // cells per head on average
    uint32_t n_cells_max;   // cells of one head, at most
    uint32_t n_threads;     // threads that scoring and moving use
    uint32_t staged;        // 1 if rows lie on a device; a copy of one head serves what the device cannot score or move
    uint32_t w_o_row_bytes; // a row of W_O or W_V, at most, if it lies on a device or was repacked; else 0
    uint64_t cell_bytes;    // K and V of one cell, over all layers and heads
    uint64_t head_bytes;    // K and V of all cells of the largest head

    uint64_t query_row_bytes;        // queries of one token, of layers whose rows lie in the host's memory
    uint64_t device_query_row_bytes; // and of those whose rows lie on a device

    uint64_t state_bytes;        // recurrent states in the host's memory, which a cache copies before each batch
    uint64_t device_state_bytes; // and on devices

    uint32_t window_cells; // cells of the ring of each layer that sees a sliding window; 0 = there is none
    uint32_t latent_dim_v; // elements of the value that a query head makes of a latent, which is the first head_dim_v elements of
                           // a key; 0 = values are stored as they are

    uint64_t graph_bytes;        // of graphs that score and move rows in the host's memory, if rows lay there
    uint64_t device_graph_bytes; // and of those on devices

    uint64_t graph_description_bytes; // in the host's memory, of the graphs on devices

    uint64_t n_exact; // tokens of a batch, at most, of which each one's products with the weights are to the bit what they are alone on x86-64
};

// Fill in the shape of the context's cache.
//   EDGEKV_STATUS_UNSUPPORTED  the cache is of an unknown kind, or edgekv_context_new would refuse it
EDGEKV_API enum edgekv_status edgekv_context_shape(
          const struct llama_context * ctx,
                 struct edgekv_shape * shape,
                                char * err,
                              size_t   err_size);

// Say how far RoPE turns the keys of a layer from one position to the next, with whatever scaling the context uses.
//   layer      : of those that have a cache, as edgekv_cache_positions counts them
//   first      : out: first element of a key that turns; the last elements turn if rows are latents
//   n_rot      : in: room in elements, twice that of `angles`; out: elements that turn, in pairs; 0 = in this layer a key says
//                nothing of its position
//   angles     : (n_rot / 2,) radians per position
//   neighbours : out: 1 if pair i is elements 2i and 2i + 1 of those that turn, 0 if it is i and i + n_rot / 2
//   EDGEKV_STATUS_UNSUPPORTED       keys cannot be turned to other positions: the model has no RoPE, or one that is not the
//                                   last thing done to a key; or other layers have sliding windows
//   EDGEKV_STATUS_INVALID_ARGUMENT  there is no such layer, or too little room
EDGEKV_API enum edgekv_status edgekv_context_rope(
          const struct llama_context * ctx,
                            uint32_t   layer,
                              double * angles,
                            uint32_t * first,
                            uint32_t * n_rot,
                             int32_t * neighbours,
                                char * err,
                              size_t   err_size);

struct edgekv_memory {
    uint64_t weight_bytes;  // weights in the host's memory (mapped ones count: they are resident), and slots of streamed ones
    uint64_t repack_bytes;  // weights in the processor's own order
    uint64_t kv_bytes;      // rows of keys and values in the host's memory
    uint64_t state_bytes;   // recurrent states and the rings of sliding windows there
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

// ---- the cache of a context ----

struct edgekv_cache;

// How heads may come to keep different numbers of cells.
enum edgekv_ragged {
    EDGEKV_RAGGED_HEADS   = 1, // within a layer, or by layer
    EDGEKV_RAGGED_SOFTMAX = 2, // by a softmax of scores that are no weights
    EDGEKV_RAGGED_LAYERS  = 4, // layer by layer, beside EDGEKV_RAGGED_HEADS
};

struct edgekv_cache_params {
    uint32_t n_bytes;
    uint32_t n_query_rows; // newest tokens whose queries are kept; 0 = none
    uint32_t n_probe_rows; // longest probe, in tokens; 0 = no probes
    int32_t  accumulates;  // nonzero: a score is carried with every cell
    int32_t  wo_norms;     // nonzero: norm1(V W_O) is carried with every cell
    uint32_t custom_reads; // sum of enum edgekv_reads that a scorer of one's own is given; 0 = there is none
    uint32_t ragged;       // sum of enum edgekv_ragged; 0 = all heads keep the same number of cells
    int32_t  repositions;  // nonzero: compactions may turn keys to other RoPE positions
    uint32_t n_draft;      // longest draft, in tokens; the context needs n_outputs_max of one more
    int32_t  values;       // nonzero: a policy compares the values of a head, which a cache of latents does not have
    int32_t  before_rope;  // nonzero: a policy looks at keys or queries as they were before RoPE
    uint32_t slot;         // of the context's layout; each has one cache
};

EDGEKV_DEFAULT(edgekv_cache_params)

// Raise what params lack for a policy. With `probed` its queries come from probes of n_probe_rows, not from the text.
EDGEKV_API enum edgekv_status edgekv_cache_params_for(
          const struct edgekv_policy * policy,
                            uint32_t   block,
                             int32_t   probed,
          struct edgekv_cache_params * params,
                                char * err,
                              size_t   err_size);

// Open the cache of a context's slot and empty it. The context must outlive it; nothing but its caches may feed the context
// meanwhile, one thread at a time.
//   EDGEKV_STATUS_INVALID_ARGUMENT  the context has no such slot; or more queries than there are positions
//   EDGEKV_STATUS_INVALID_STATE  the context was made without a layout, or the slot has an open cache already
//   EDGEKV_STATUS_UNSUPPORTED    `repositions` or `before_rope` of keys that cannot be turned, as edgekv_context_rope says, though
//                                layers without RoPE and sliding windows do not matter to `before_rope`; `values` where rows are
//                                latents; layers that would share cells (EDGEKV_RAGGED_LAYERS), but their heads differ in size, lie in
//                                different memories or are not equally many
//   EDGEKV_STATUS_MODEL_INVALID  `wo_norms` of repacked weights whose file has other ones
EDGEKV_API enum edgekv_status edgekv_cache_open(
                struct llama_context * ctx,
    const struct edgekv_cache_params * params,
                struct edgekv_cache ** cache,
                                char * err,
                              size_t   err_size);

// Refuse what edgekv_cache_open refuses a model for, whatever its weights are; its model may be loaded with no_alloc.
EDGEKV_API enum edgekv_status edgekv_cache_check(
          const struct llama_context * ctx,
    const struct edgekv_cache_params * params,
                                char * err,
                              size_t   err_size);

EDGEKV_API void edgekv_cache_free(struct edgekv_cache * cache);

// Bytes that an open cache of this shape holds for itself, beyond the context's own: in the host's memory, and on devices.
EDGEKV_API uint64_t edgekv_cache_estimate_bytes(
           const struct edgekv_shape * shape,
    const struct edgekv_cache_params * params);
EDGEKV_API uint64_t edgekv_cache_estimate_device_bytes(
           const struct edgekv_shape * shape,
    const struct edgekv_cache_params * params);
EDGEKV_API uint64_t edgekv_cache_bytes(const struct edgekv_cache * cache);
EDGEKV_API uint64_t edgekv_cache_device_bytes(const struct edgekv_cache * cache);

// Drop every cell; the next token is fed at position 0.
EDGEKV_API enum edgekv_status edgekv_cache_clear(struct edgekv_cache * cache, char * err, size_t err_size);

// Decode n tokens at the next positions, and compute logits for the last one if want_logits.
//   n : at most the context's n_ubatch, and at most the free cells
//   EDGEKV_STATUS_INVALID_STATE  too few free cells, compact first; or something else changed this context's cache
//   EDGEKV_STATUS_NOT_FINITE     a logit is NaN or infinite; the cache is as before
//   EDGEKV_STATUS_INTERNAL       llama_decode failed; the cache is as before
//   EDGEKV_STATUS_UNSUPPORTED    llama.cpp's graph attends in a way that edgekv does not know; the cache is as before
EDGEKV_API enum edgekv_status edgekv_cache_feed(
                 struct edgekv_cache * cache,
                 const llama_token   * tokens,
                              size_t   n,
                             int32_t   want_logits,
                                char * err,
                              size_t   err_size);

// Tokens that one cache of a context is fed in a step.
struct edgekv_part {
    uint32_t              n_bytes;
    struct edgekv_cache * cache;
    const llama_token *   tokens;
    size_t                n;           // at most the cache's free cells
    int32_t               want_logits; // nonzero: compute logits for the last token
    int32_t               logits_row;  // out: they are llama_get_logits_ith(ctx, logits_row) until the context is fed again
};

EDGEKV_DEFAULT(edgekv_part)

// Feed several caches of one context in one step: weights are multiplied once for all tokens, and each attends to its own cache.
// A cache gets the rows that it would get alone, but for the rounding of matrix products, which may differ with the number of
// tokens that are multiplied at once (docs/design/sessions.md).
//   parts : each of another cache; together at most n_ubatch tokens, and n_outputs_max with logits
//   Errors as of edgekv_cache_feed; every cache is then as before.
EDGEKV_API enum edgekv_status edgekv_cache_feed_together(
                   struct edgekv_part * parts,
                               size_t   n_parts,
                                 char * err,
                               size_t   err_size);

// Decode a token, and a draft of the tokens that may follow it, with logits for each: llama_get_logits_ith(ctx, 0) are the token's, and
// (ctx, i) those of the draft's i-th token. The draft is in no cell. The next call drops it, unless that is
// edgekv_cache_accept; then everything is as if the draft had never been decoded.
//   n : at most n_draft, and one less than edgekv_cache_feed takes
//   Errors as of edgekv_cache_feed.
EDGEKV_API enum edgekv_status edgekv_cache_feed_draft(
                 struct edgekv_cache * cache,
                         llama_token   token,
                 const llama_token   * draft,
                              size_t   n,
                                char * err,
                              size_t   err_size);

// Give the draft's first token a cell in every head, as if it had been fed now; the draft then begins with the next one.
//   EDGEKV_STATUS_INVALID_STATE  no draft is left, or another cache of the context was fed after it: its logits are gone
//   EDGEKV_STATUS_NOT_FINITE     a logit of the token is NaN or infinite; the cache is as before
EDGEKV_API enum edgekv_status edgekv_cache_accept(
                 struct edgekv_cache * cache,
                                char * err,
                              size_t   err_size);

// Newest tokens whose cells can be dropped: those that no compaction has kept. Scores that add up, and policies that read the
// newest queries, allow fewer; sliding windows and recurrent states none.
EDGEKV_API uint32_t edgekv_cache_n_droppable(const struct edgekv_cache * cache);

// Drop the cells of the newest n tokens. The cache is then as it was before they were fed.
//   EDGEKV_STATUS_INVALID_STATE  more than edgekv_cache_n_droppable; the cache is as before
EDGEKV_API enum edgekv_status edgekv_cache_drop(
                 struct edgekv_cache * cache,
                            uint32_t   n,
                                char * err,
                              size_t   err_size);

// Decode a probe on top of the cache, keep its queries for the next compaction, and remove its cells again. If it has several
// parts, each scores at that compaction by its own queries, and a cell has the largest score.
//   n         : at most n_probe_rows, and at most the free cells
//   part_ends : how many tokens come before the end of each part, (n_parts,) ascending; the last one is n. NULL = it is one part
//   Errors as of edgekv_cache_feed; the cache's cells are as before in any case.
EDGEKV_API enum edgekv_status edgekv_cache_probe(
                 struct edgekv_cache * cache,
                 const llama_token   * tokens,
                              size_t   n,
                      const uint32_t * part_ends,
                              size_t   n_parts,
                                char * err,
                              size_t   err_size);

struct edgekv_compaction_params {
    uint32_t                         n_bytes;
    const struct edgekv_policy *     policy;
    const struct edgekv_protection * protection;
    uint32_t                         budget;
    int32_t                          probed;     // nonzero: queries are the last probe's, as if it came after all that was fed
    int32_t                          generating; // nonzero: the rows since the last compaction were generated (AHAKV)
    int32_t                          reposition; // nonzero: where cells are evicted, turn the keys that stay to adjacent RoPE
                                                 // positions, which end at the largest number that a head keeps
    const uint32_t *                 budgets;    // cells of every head, layer by layer; NULL = as the policy shares them out
    const uint32_t *                 n_beside;   // positions of every head, layer by layer, whose cells stay beside what it keeps of
                                                 // the budget, as what a recall brought (edgekv_archive.h); NULL = none
    const int32_t *                  beside;     // these, head after head, ascending of each; a head may lack some
    const uint32_t *                 n_within;   // positions of every head whose cells stay within the budget, likewise, as the protected
    const int32_t *                  within;     // ones do: what a recall needs of those that a head held; NULL = none
};

EDGEKV_DEFAULT(edgekv_compaction_params)

struct edgekv_compaction {
    uint64_t n_evicted;     // cells evicted, summed over heads
    int64_t  score_us;      // time to score and select
    int64_t  move_us;       // time to move the survivors
    uint64_t crossed_bytes; // of rows, queries, scores and lists of moves, copied between the host and where the rows lie
    uint32_t n_staged;      // layers whose rows the host scored, moved or turned in a copy
};

// Score every head's cells and keep `budget` of them, or what the policy's `spread` and `pyramid` make of it; if nothing
// has to go, only what is carried with the cells is brought up to date. On failure the cache is unchanged.
//   EDGEKV_STATUS_INVALID_STATE     the cache was opened for a policy that needs less, or there was no probe; or the policy scores
//                                   by every token (H2O, AHAKV), and more were fed since the last compaction than n_query_rows
//   EDGEKV_STATUS_INVALID_ARGUMENT  protected cells exceed a budget; or budgets exceed `budget` on average, or one of them
//                                   what a head may keep, or together they keep no cell; or positions beside or within it do not ascend
//   EDGEKV_STATUS_MODEL_INVALID     `critical` with repacked weights: the model's file was changed after it was loaded
//   EDGEKV_STATUS_INTERNAL          a device failed; if rows moved there already, the cache is empty
EDGEKV_API enum edgekv_status edgekv_cache_compact(
                       struct edgekv_cache * cache,
    const struct edgekv_compaction_params  * params,
                  struct edgekv_compaction * result,
                                      char * err,
                                    size_t   err_size);

EDGEKV_API uint32_t edgekv_cache_n_cells(const struct edgekv_cache * cache); // cells used per head on average, rounded up
EDGEKV_API uint32_t edgekv_cache_n_free (const struct edgekv_cache * cache); // tokens that can be fed before a compaction
EDGEKV_API int32_t  edgekv_cache_n_past (const struct edgekv_cache * cache); // position of the next token

// The position that RoPE will give the next token: n_past, less what repositioning has saved.
EDGEKV_API int32_t edgekv_cache_rope_past(const struct edgekv_cache * cache);

EDGEKV_API uint32_t edgekv_cache_n_heads(const struct edgekv_cache * cache, uint32_t layer); // KV heads; 0 = no such layer
EDGEKV_API uint32_t edgekv_cache_n_query_heads(const struct edgekv_cache * cache, uint32_t layer); // likewise

// Say whether the rows can be divided into cells (n,) of every head, layer by layer: nonzero = yes. Heads whose rows have one
// shape and lie in one memory draw on the same. On a device, heads that share no cells have equally many.
//   EDGEKV_STATUS_INVALID_ARGUMENT  n is not the number of heads
EDGEKV_API enum edgekv_status edgekv_cache_holds(
           const struct edgekv_cache * cache,
                      const uint32_t * cells,
                              size_t   n,
                             int32_t * holds,
                                char * err,
                              size_t   err_size);

// Use n_cells of every head on average, of those that the context was made with, from the next compaction or clear on, which needs
// a budget below them. Memory of the host's that other rows took then goes back to the system; a larger number takes it again as cells
// are filled. A snapshot of more cells is refused meanwhile.
//   EDGEKV_STATUS_INVALID_ARGUMENT  n_cells is 0, or more than the context has
EDGEKV_API enum edgekv_status edgekv_cache_allow(
                 struct edgekv_cache * cache,
                            uint32_t   n_cells,
                                char * err,
                              size_t   err_size);

// Say how many cells one head holds, and how many of them the last eviction left.
EDGEKV_API enum edgekv_status edgekv_cache_head_cells(
           const struct edgekv_cache * cache,
                            uint32_t   layer,
                            uint32_t   head,
                            uint32_t * n_cells,
                            uint32_t * n_kept,
                                char * err,
                              size_t   err_size);

// Write the positions held by one head, ascending: room for all of its cells. Position -1 is that of a rest, which a recall may give it
// (edgekv_archive.h).
EDGEKV_API enum edgekv_status edgekv_cache_positions(
           const struct edgekv_cache * cache,
                            uint32_t   layer,
                            uint32_t   head,
                             int32_t * positions,
                                char * err,
                              size_t   err_size);

// Write the positions that RoPE has turned one head's keys by, in the order of edgekv_cache_positions.
EDGEKV_API enum edgekv_status edgekv_cache_rope_positions(
           const struct edgekv_cache * cache,
                            uint32_t   layer,
                            uint32_t   head,
                             int32_t * positions,
                                char * err,
                              size_t   err_size);

// Copy one head's stored keys or values (as stored: typed, and rotated where the context rotates them) in the
// order of edgekv_cache_positions. `rows` describes the copy; rows->data is owned by the caller: dst.
//   dst : NULL with a dst_size of 0 = copy nothing, and only describe the rows
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

// Copy the queries that would score one layer now: the newest n rows, or the last probe's. Written as
// (n_rows, n_query_heads, head_dim_k) float32, rotated as the stored keys are, ascending by position; positions (n_rows,), true ones.
//   n_rows : in: room in rows; out: rows written
EDGEKV_API enum edgekv_status edgekv_cache_queries(
                 struct edgekv_cache * cache,
                            uint32_t   layer,
                             int32_t   probed,
                               float * queries,
                             int32_t * positions,
                            uint32_t * n_rows,
                               float * scale,
                                char * err,
                              size_t   err_size);

// ---- planning: from a ceiling in bytes to a budget of cells, before any weight is loaded ----

// Bytes of everything that is resident at the peak; docs/plans.md says what each is.
struct edgekv_parts {
    uint64_t host_bytes;        // of the process before the model, and all code of this library
    uint64_t vocabulary_bytes;  // vocabulary and metadata
    uint64_t graph_bytes;       // descriptions of graphs
    uint64_t rounding_bytes;    // fills the first one up to whole steps of 2 MiB, and the two others to whole MiB
    uint64_t weight_bytes;      // from here on as in edgekv_memory
    uint64_t repack_bytes;
    uint64_t slot_bytes;        // memory that streamed weights are read to
    uint64_t kv_bytes;
    uint64_t state_bytes;
    uint64_t compute_bytes;
    uint64_t output_bytes;
    uint64_t workspace_bytes;   // of threads, activations, llama.cpp's own cells and drafts
    uint64_t bookkeeping_bytes; // of an open cache, and of archives
    uint64_t swap_bytes;        // sequences that are swapped out to memory, and the way of one back from the disk
    uint64_t reserved_bytes;    // of the program itself, later
    uint64_t margin_bytes;      // holes in the heap
};

// Fill in the bytes of a context and a cache of these params. The model may be loaded with no_alloc.
//   parts : in: host, vocabulary and reserved bytes, and graph_bytes of one graph; out: all others, and graph_bytes of all
//   EDGEKV_STATUS_UNSUPPORTED  edgekv_cache_open would refuse how `params` have layers share cells
EDGEKV_API enum edgekv_status edgekv_context_parts(
             const struct llama_context * ctx,
       const struct edgekv_cache_params * params,
                    struct edgekv_parts * parts,
                                   char * err,
                                 size_t   err_size);

// Subtract the weights that stay in the file of a model that is not mapped: matrices of streamed layers, and tables of embeddings that
// are only looked up. Add the memory that they are read to.
//   model    : with all weights, or loaded with no_alloc
//   n_ubatch : tokens that are fed at once, whose embeddings are looked up
//   parts    : as edgekv_context_parts left them
//   streaming: as edgekv_model_streaming fills it for the loaded model before anything was read
//   EDGEKV_STATUS_INVALID_ARGUMENT  the model has fewer layers
EDGEKV_API enum edgekv_status edgekv_parts_stream(
           const struct llama_model * model,
                           uint32_t   n_streamed,
                           uint32_t   n_ubatch,
                struct edgekv_parts * parts,
            struct edgekv_streaming * streaming,
                               char * err,
                             size_t   err_size);

// Bytes of this process that a plan counts: what is resident now, but small files of code and the code of this library in full,
// since which of their pages are resident differs from run to run.
//   EDGEKV_STATUS_UNSUPPORTED  the system does not say
EDGEKV_API enum edgekv_status edgekv_process_bytes(uint64_t * n_bytes, char * err, size_t err_size);

// The most bytes that were ever resident in this process; 0 if the system does not say.
EDGEKV_API uint64_t edgekv_process_peak_bytes(void);

// How a model may be run.
struct edgekv_setting {
    uint32_t budget;     // cells that each head keeps
    uint32_t block;      // tokens fed between two compactions, and the spare cells that take them
    int32_t  kv_type;    // enum ggml_type: F16, Q8_0 or Q4_0
    int32_t  repack;     // nonzero: weights in the processor's own order
    uint32_t n_streamed; // layers whose matrices are read whenever their turn comes; 0 = all weights stay in memory
};

// Limits and fixed values for the choice of a setting.
struct edgekv_choice {
    uint32_t n_bytes;
    uint32_t budget;       // cells; 0 = as many as fit
    uint32_t least_budget; // the fewest: protected cells and one more
    uint32_t block;        // 0 = chosen
    uint32_t least_block;  // the shortest block that is chosen
    int32_t  kv_type;      // 0 = chosen
    int32_t  repack;       // 0, 1, or -1 = chosen
    int32_t  n_streamed;   // layers, or -1 = chosen: the fewest
    uint32_t n_layers;     // of the model
    uint32_t n_probe;      // longest probe, in tokens; 0 = there are none
    uint32_t n_ctx_train;  // the model's trained context, in tokens
    int32_t  ragged;       // nonzero: heads may keep different numbers of cells
    int32_t  repositions;  // nonzero: keys may be turned to other RoPE positions
    uint32_t n_ubatch;     // tokens that are decoded at once, at most; above 128 longer blocks are chosen from
    int32_t  recalls;      // nonzero: evicted tokens may come back, so fewer cells are taken before blocks beside streamed layers are short
};

EDGEKV_DEFAULT(edgekv_choice)

// Bytes that a setting leaves under every limit; negative = it does not fit.
typedef int64_t (*edgekv_setting_spare)(void * user_data, const struct edgekv_setting * setting);

#define EDGEKV_SETTING_IMPOSSIBLE INT64_MIN       // the model cannot have the setting
#define EDGEKV_SETTING_GIVE_UP    (INT64_MIN + 1) // end the search

// Choose the setting that serves best, in the order that docs/memory.md gives. This is what edgekv_plan_make does; other
// planners call it with estimates of their own. Bytes grow with the budget, nearly along a straight line, so few settings are asked for.
//   EDGEKV_STATUS_OVER_CEILING      nothing fits
//   EDGEKV_STATUS_INVALID_ARGUMENT  the model cannot have the cache type that was named, or F16
//   EDGEKV_STATUS_INTERNAL          `spare` gave up
EDGEKV_API enum edgekv_status edgekv_plan_choose(
         const struct edgekv_choice * choice,
               edgekv_setting_spare   spare,
                               void * user_data,
              struct edgekv_setting * chosen,
                               char * err,
                             size_t   err_size);

// The setting with the largest budget among all that fit and that edgekv_plan_choose chooses from. A refused program may lower its
// budget to that. A choice as for edgekv_plan_choose, with the budget open. Results and statuses as there.
EDGEKV_API enum edgekv_status edgekv_plan_largest(
         const struct edgekv_choice * choice,
               edgekv_setting_spare   spare,
                               void * user_data,
              struct edgekv_setting * chosen,
                               char * err,
                             size_t   err_size);

// The largest budget that has positions in the trained context for a head's cells, a block and a probe.
EDGEKV_API uint32_t edgekv_plan_most_cells(const struct edgekv_choice * choice, uint32_t block);

// Name of the policy that scores by a probe's queries, unless the program has another: the largest weight of its last 64 tokens.
#define EDGEKV_PROBE_POLICY "snapkv(window=64, kernel=61, aggregate=max)"

// Bytes that scorers of the program's own take beside edgekv's workspace while they score cells of this shape; UINT64_MAX = give up.
typedef uint64_t (*edgekv_scratch)(void * user_data, const struct edgekv_shape * shape);

// The most bytes that may lie on a device.
struct edgekv_device_limit {
    uint32_t     n_bytes;
    const char * name;          // ggml's, such as "CUDA0" or "RPC0"
    uint64_t     allowed_bytes; // UINT64_MAX = any number
    uint64_t     serving_bytes; // of a server that lends the device: what it holds beside buffers and edgekv's workspace; 0 = there is none
    uint64_t     context_bytes; // what the device's driver takes there for this process, beside all buffers
};

EDGEKV_DEFAULT(edgekv_device_limit) // any number of bytes

// What to plan. The default is that of `edgekv ask`, without a ceiling and an archive.
struct edgekv_plan_request {
    uint32_t n_bytes;
    uint64_t ceiling_bytes;  // of the whole process
    uint64_t reserved_bytes; // what the program itself will take beside edgekv after it has planned

    uint64_t host_bytes;       // what the process holds before the model; 0 = measured
    uint64_t vocabulary_bytes; // 0 = measured
    uint64_t graph_bytes;      // of one graph; 0 = measured

    const struct edgekv_policy * policy;       // scores the cells; NULL = keydiff
    const struct edgekv_policy * probe_policy; // scores by a probe's queries; NULL = EDGEKV_PROBE_POLICY

    uint32_t n_probe;      // longest probe, in tokens: 64; 0 = no probes, and probe_policy is not read
    int32_t  probe_scores; // nonzero: probe_policy scores by probes; 0 = they only recall from an archive: 1
    uint32_t n_sink;       // first positions that are protected: 4
    uint32_t n_recent;     // newest cells that are protected if no probe scores: 32
    uint32_t budget;       // cells per head; 0 = as many as fit
    uint32_t block;        // in tokens; 0 = chosen
    uint32_t least_block;  // the shortest block that is chosen: 1
    uint32_t n_spare;      // cells that generation fills between two evictions; 0 = a block
    int32_t  kv_type;      // enum ggml_type: F16, Q8_0 or Q4_0; 0 = chosen
    int32_t  repack;       // 0, 1, or -1 = chosen
    int32_t  n_streamed;   // layers, or -1 = chosen: the fewest
    int32_t  maps;         // nonzero: all weights are mapped, tables of embeddings too
    uint32_t n_ubatch;     // tokens that are decoded at once, at most: 128. If they are more, blocks of as many or twice as many are tried first
    uint32_t n_draft;      // tokens that are decoded before they are accepted, at most: with small blocks they are fewer
    uint32_t n_slots;      // sequences that share steps: 1
    uint32_t n_threads;    // 0 = one for every processor
    int32_t  repositions;  // keys may be turned to other RoPE positions: 0 = no, 1 = where the model's can, 2 = they must: 1
    uint32_t n_recalled;   // cells of a head that a recall fills, at most, of half of the spare ones; 0 = there is no archive

    uint64_t swap_memory_bytes; // memory for sequences that are swapped out; if the disk has none, two must fit there
    uint64_t swap_disk_bytes;   // the most that one may take on the disk; 0 = none is swapped out there, UINT64_MAX = any number
    uint64_t swap_buffer_bytes; // what one passes through on its way back from the disk

    edgekv_scratch scratch; // NULL = scorers are edgekv's own
    void *         scratch_data;

    int32_t                            gpu_layers;   // layers on devices; one more than the model has is the output matrix
    const float *                      tensor_split; // in which proportions devices get layers, llama_max_devices() numbers; NULL = evenly
    const struct edgekv_device_limit * limits; // all of one n_bytes; NULL = none
    size_t                             n_limits;
};

EDGEKV_DEFAULT(edgekv_plan_request)

// Single changes of a plan that does not fit, of which each would make it fit; 0 = that change would not, or there is nothing to change.
struct edgekv_remedies {
    uint32_t budget;  // the most cells that fit in any setting that the request leaves open
    int32_t  kv_type; // Q8_0 in place of the type that was named
    uint32_t block;   // a shorter block in place of the one that was named
};

// What a process will hold that runs a model in a setting. Since other structs lie in it, its size must be that of this library.
struct edgekv_plan {
    uint32_t n_bytes;
    uint64_t ceiling_bytes;
    uint64_t peak_bytes; // planned peak of the whole process: the sum of the parts
    uint64_t cell_bytes; // K and V of one cell, over all layers and heads

    uint64_t sequence_bytes; // the most that one sequence takes as a snapshot
    uint64_t segment_bytes;  // of an archive's file; 0 = there is none
    uint64_t streamed_bytes; // read from the file for a batch of tokens that choose all experts
    uint64_t token_bytes;    // read from it for one token, which chooses a few

    struct edgekv_parts        parts;
    struct edgekv_policy       policy;       // those of the request, or its defaults
    struct edgekv_policy       probe_policy;
    struct edgekv_setting      setting;
    struct edgekv_layout       layout; // setting.budget + setting.block + layout.n_probe cells per head
    struct edgekv_cache_params cache;  // cache.repositions says whether keys can be turned
    struct edgekv_remedies     remedies; // of a plan that is over the ceiling

    uint32_t n_ubatch;     // tokens that can be fed at once
    uint32_t n_threads;
    uint32_t n_ctx_train;  // the model's trained context, in tokens
    uint32_t n_layers;     // of the model
    uint32_t n_tokens_max; // tokens that can be read and said without leaving it; UINT32_MAX = any number
};

EDGEKV_DEFAULT(edgekv_plan)

// Plan for a model. Nothing is loaded but its vocabulary, which is freed again. What the process holds
// is measured: a program plans when it has what it needs beside the model, and states the rest as reserved_bytes.
//   plan : n_bytes is the program's; with EDGEKV_STATUS_OVER_CEILING the one that is least over its limits, and what would fit
//   EDGEKV_STATUS_OVER_CEILING      nothing fits; the message says what is needed
//   EDGEKV_STATUS_INVALID_ARGUMENT  the request is impossible, for any model or for this one
//   EDGEKV_STATUS_MODEL_INVALID     there is no such file, or llama.cpp refused it
//   EDGEKV_STATUS_UNSUPPORTED       edgekv cannot run the model, or the system does not say what a process holds
EDGEKV_API enum edgekv_status edgekv_plan_make(
                          const char * path,
    const struct edgekv_plan_request * request,
                  struct edgekv_plan * plan,
                                char * err,
                              size_t   err_size);

// A planner answers several requests for one model. It measures what the process holds once, when it is made, and each context once.
// One thread uses it at a time.
struct edgekv_planner;

//   request : says what is measured, and how the model is loaded first
//   Errors as of edgekv_plan_make.
EDGEKV_API enum edgekv_status edgekv_planner_new(
                          const char * path,
    const struct edgekv_plan_request * request,
              struct edgekv_planner ** planner,
                                char * err,
                              size_t   err_size);

EDGEKV_API void edgekv_planner_free(struct edgekv_planner * planner);

// Refuse a model that cannot have a cache for the request, as edgekv_cache_check does.
//   shape : out: of the cells that are planned for, but with few of them; with EDGEKV_STATUS_UNSUPPORTED, too
EDGEKV_API enum edgekv_status edgekv_planner_check(
               struct edgekv_planner * planner,
    const struct edgekv_plan_request * request,
                 struct edgekv_shape * shape,
                                char * err,
                              size_t   err_size);

// As edgekv_plan_make.
EDGEKV_API enum edgekv_status edgekv_planner_choose(
               struct edgekv_planner * planner,
    const struct edgekv_plan_request * request,
                  struct edgekv_plan * plan,
                                char * err,
                              size_t   err_size);

// The plan of a request that names its budget, block and cache type, whether it fits or not. Weights are as in the file, and all layers'
// stay in memory, if that is left open.
EDGEKV_API enum edgekv_status edgekv_planner_estimate(
               struct edgekv_planner * planner,
    const struct edgekv_plan_request * request,
                  struct edgekv_plan * plan,
                                char * err,
                              size_t   err_size);

// What a request's choice is made within, for a model of so many layers and such a trained context.
//   choice : n_bytes is the program's; all else is written
EDGEKV_API enum edgekv_status edgekv_plan_choice(
    const struct edgekv_plan_request * request,
                            uint32_t   n_layers,
                            uint32_t   n_ctx_train,
                struct edgekv_choice * choice,
                                char * err,
                              size_t   err_size);

// Load the model into the host's memory, make the context and open the cache of a plan. Free them with edgekv_cache_free, llama_free and
// llama_model_free, in this order. On failure none is left.
//   Errors as of edgekv_model_load, edgekv_context_new and edgekv_cache_open.
EDGEKV_API enum edgekv_status edgekv_plan_open(
                          const char * path,
            const struct edgekv_plan * plan,
                 struct llama_model ** model,
               struct llama_context ** ctx,
                struct edgekv_cache ** cache,
                                char * err,
                              size_t   err_size);

#ifdef __cplusplus
}
#endif

#include "edgekv_snapshot.h"

#endif // EDGEKV_H
