// Snapshots: a text is read once, and many sessions go on from it, in this process or in a later one.
//
// All that later feeds, probes and compactions read: which token every cell holds and what it carries, its key and value, the
// newest queries of the text, recurrent states, and sliding windows. Its bytes grow with the cells used. Logits and the last
// probe are not in it. A cache takes it where the kind is its own, its rows hold the cells, and its windows for queries and
// sliding windows are as large. That the model is the same one is for the caller to know.
//
// It is one run of bytes, in the processor's order and without padding. Cells come head by head, the heads layer by layer;
// head h has kept[h] + added[h] + n_filled of them, and n_cells is their sum.
//
//   struct edgekv_snapshot
//   uint32 kept          (n_heads,)    cells that the last compaction left in a head
//   uint32 added         (n_heads,)    cells that recalls have given a head since, and those that were fed before a recall
//   int32  lags          (n_queries,)  true position - RoPE position of the newest tokens, whose queries are there
//   int32  ring          (n_ring,)     position in every cell of the sliding windows; -1 = none, -2 - p = p, unseen and without rows.
//                                      The newest position, and all that the next token sees, are there once each, with rows
//   int32  position      (n_cells,)    true positions; -1 = the rest of a head (edgekv_archive.h)
//   int32  rope_position (n_cells,)    that keys are turned by, if kind.repositions
//   uint32 order         (n_cells,)    of every head, its cells ascending by position
//   float  accumulated   (n_cells,)    what scorings left with a cell, if kind.accumulates
//   float  wo_norm       (n_cells,)    as edgekv_wo_norm writes it, if kind.wo_norms
//   rows, of which any bytes are possible, from byte rows_begin on:
//       of every head, the keys and then the values of its cells
//       of every row of queries, those of every layer (F32)
//       the recurrent states of every layer, if n_past > 0
//       of every layer with a sliding window, the keys and then the values of the cells that hold a position
//
// edgekv.h includes this header.
#ifndef EDGEKV_SNAPSHOT_H
#define EDGEKV_SNAPSHOT_H

#include "edgekv.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EDGEKV_SNAPSHOT_VERSION 6

// A cache takes another one's snapshot only if these values are equal.
struct edgekv_snapshot_kind {
    uint64_t cell_bytes;      // as in edgekv_shape
    uint64_t query_row_bytes; // wherever the rows lie
    uint64_t state_bytes;     // wherever the states lie
    uint32_t n_layer;
    uint32_t n_heads;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    int32_t  type_k;          // enum ggml_type; -1 = no layer evicts
    int32_t  type_v;
    uint32_t rotation_k;      // as edgekv_rows says
    uint32_t rotation_v;
    uint32_t repositions;     // 0 or 1, as the next two
    uint32_t accumulates;
    uint32_t wo_norms;
    uint32_t n_ring;          // cells of the sliding windows
};

struct edgekv_snapshot {
    char                        magic[8];   // "edgekvs"
    uint64_t                    n_bytes;    // of the whole
    uint64_t                    rows_begin;
    struct edgekv_snapshot_kind kind;
    uint32_t                    version;    // EDGEKV_SNAPSHOT_VERSION
    uint32_t                    n_queries;
    uint32_t                    n_filled;   // cells of a head since the last compaction or recall
    uint32_t                    n_fresh;    // tokens fed since then
    int32_t                     n_past;     // position of the next token
    int32_t                     rope_past;  // the position that RoPE will turn it by
    int32_t                     normed;     // tokens before it have their wo_norm
    uint32_t                    ring_head;  // cell where llama.cpp looks for a free one
};

struct edgekv_archive;

// Bytes of a snapshot taken now.
//   archive : one of the cache's tokens (edgekv_archive.h). The rows that it has as the cells have them are left out: those of archived
//             positions, but for keys if some were turned to other RoPE positions. NULL = nothing is left out
EDGEKV_API uint64_t edgekv_cache_snapshot_bytes(
     const struct edgekv_cache * cache,
   const struct edgekv_archive * archive);

// The most bytes of a snapshot of a cache with n_cells cells per head, without its states and the rows of sliding windows.
//   numbers_bytes : out: of these, the most that come before the rows
EDGEKV_API uint64_t edgekv_snapshot_estimate_bytes(
           const struct edgekv_shape * shape,
    const struct edgekv_cache_params * params,
                            uint32_t   n_cells,
                            uint64_t * numbers_bytes);

// Write the bytes [first, first + n) of a snapshot to dst, without the rows that an archive has (NULL = a whole one). The numbers before
// the rows are those of a whole snapshot.
//   EDGEKV_STATUS_INVALID_ARGUMENT  it has fewer
EDGEKV_API enum edgekv_status edgekv_cache_save(
           const struct edgekv_cache * cache,
         const struct edgekv_archive * archive,
                            uint64_t   first,
                                void * dst,
                              size_t   n,
                                char * err,
                              size_t   err_size);

// Replace all state of the cache by that of a snapshot of `size` bytes. Logits come with the next feed.
//   EDGEKV_STATUS_INVALID_ARGUMENT  it is cut or damaged, of another kind or version, or the rows do not hold its cells
EDGEKV_API enum edgekv_status edgekv_cache_restore(
                 struct edgekv_cache * cache,
                          const void * src,
                              size_t   size,
                                char * err,
                              size_t   err_size);

// The same with the first rows_begin bytes of a snapshot. Nothing but edgekv_cache_restore_rows and edgekv_cache_restore_archived may
// follow until they have brought all rows, or edgekv_cache_clear: the cache holds those of before.
EDGEKV_API enum edgekv_status edgekv_cache_restore_numbers(
                 struct edgekv_cache * cache,
                          const void * src,
                              size_t   size,
                                char * err,
                              size_t   err_size);

// Write n bytes over those that a snapshot taken now would have from byte `first` on, which must all be of rows.
//   archive : NULL, or one with the positions of that with which the snapshot was saved
//   EDGEKV_STATUS_INVALID_ARGUMENT  they are not
EDGEKV_API enum edgekv_status edgekv_cache_restore_rows(
                 struct edgekv_cache * cache,
         const struct edgekv_archive * archive,
                            uint64_t   first,
                          const void * src,
                              size_t   n,
                                char * err,
                              size_t   err_size);

// Bytes of a row of dim elements; 0 if no cache stores such rows.
//   type : enum ggml_type: F32, F16, Q8_0 or Q4_0
EDGEKV_API uint64_t edgekv_row_bytes(int32_t type, uint32_t dim);

// Write rows as another type stores them, and rotated in other runs.
//   type     : enum ggml_type: F32, F16, Q8_0 or Q4_0
//   rotation : as in edgekv_rows
//   dst      : n adjacent rows
EDGEKV_API enum edgekv_status edgekv_rows_convert(
            const struct edgekv_rows * rows,
                             int32_t   type,
                            uint32_t   rotation,
                                void * dst,
                              size_t   dst_size,
                                char * err,
                              size_t   err_size);

#ifdef __cplusplus
}
#endif

#endif // EDGEKV_SNAPSHOT_H
