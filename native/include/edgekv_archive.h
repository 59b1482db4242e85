// The archive: the rows of every token that was fed, in a file; and recall, which brings some of them back to free cells.
//
// Call edgekv_archive_append before each eviction. It writes the keys and values of all tokens that were fed since its last call,
// as the cache stores them. What is evicted afterwards is not forgotten: edgekv_cache_recall scores every archived key of every head
// by the queries of the last probe, and gives the best ones cells again, beside those that the head holds. edgekv_cache_refill brings a
// cache that went back to later tokens without decoding them.
//
// The file is one of the caller's, open for reading and writing. The caller closes it after the archive was freed. It holds segments
// of EDGEKV_SEGMENT_TOKENS adjacent positions; every row has a checksum, which is compared before the row is used. With a
// key lies the RoPE position that it is turned by.
#ifndef EDGEKV_ARCHIVE_H
#define EDGEKV_ARCHIVE_H

#include "edgekv.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EDGEKV_SEGMENT_TOKENS 128

struct edgekv_archive;
struct edgekv_recall_work;

// Begin an archive of a cache's rows.
//   fd          : file descriptor; what the file holds is written over
//   begin       : position of the first token that will be archived
//   limit_bytes : the file never grows beyond it
//   EDGEKV_STATUS_INVALID_ARGUMENT  begin is negative or after the next token, or fd is no file
EDGEKV_API enum edgekv_status edgekv_archive_open(
     const struct edgekv_cache * cache,
                       int32_t   fd,
                       int32_t   begin,
                      uint64_t   limit_bytes,
        struct edgekv_archive ** archive,
                          char * err,
                        size_t   err_size);

EDGEKV_API void edgekv_archive_free(struct edgekv_archive * archive);

// An archive of what another one has left in a file: the positions [begin, end), from byte `offset` on. The file is only read. Nothing is
// appended before edgekv_archive_branch.
//   EDGEKV_STATUS_INVALID_ARGUMENT  these are no positions that were fed
EDGEKV_API enum edgekv_status edgekv_archive_read(
     const struct edgekv_cache * cache,
                       int32_t   fd,
                      uint64_t   offset,
                       int32_t   begin,
                       int32_t   end,
        struct edgekv_archive ** archive,
                          char * err,
                        size_t   err_size);

// An archive with the positions that another one has now, in the same files. Nothing is appended to the copy before
// edgekv_archive_branch. The other one must branch before it is cut below `end` of the copy and written on.
EDGEKV_API enum edgekv_status edgekv_archive_copy(
      const struct edgekv_archive * archive,
           struct edgekv_archive ** copy,
                             char * err,
                           size_t   err_size);

// Keep the positions before `end`, as far as limit_bytes has room for them and what follows. What follows is written to another file, an
// empty one, which gets a part of one segment; the files of before are only read. If tokens after `end` have no cells any more, nothing
// is written until a cut.
//   EDGEKV_STATUS_INVALID_ARGUMENT  it does not have these positions, or they were not fed
//   EDGEKV_STATUS_ARCHIVE           that segment cannot be copied; nothing has changed
EDGEKV_API enum edgekv_status edgekv_archive_branch(
           struct edgekv_archive * archive,
       const struct edgekv_cache * cache,
                         int32_t   end,
                         int32_t   fd,
                        uint64_t   limit_bytes,
                            char * err,
                          size_t   err_size);

// Go on with rows that an archive has left in a file: those of the positions [first, end), from byte `offset` on. What follows is written
// there, and the file never grows beyond limit_bytes. The archive keeps what it has before `first`. So one that was just opened, or read,
// takes up all files of a conversation, one after another, before any of its tokens is fed. Refill the cache then.
//   EDGEKV_STATUS_INVALID_ARGUMENT  the archive does not end with `first` or later; or `first` is not where a segment or the archive begins
EDGEKV_API enum edgekv_status edgekv_archive_resume(
           struct edgekv_archive * archive,
                         int32_t   fd,
                        uint64_t   offset,
                         int32_t   first,
                         int32_t   end,
                        uint64_t   limit_bytes,
                            char * err,
                          size_t   err_size);

// Write the rows of all tokens that were fed since the last call. None of them may have been evicted.
// At the limit as many are written as fit, and later calls write nothing: archived are always the positions [begin, end).
//   EDGEKV_STATUS_ARCHIVE        the file cannot be written; the archive keeps what it had, and later calls write nothing
//                                until positions are forgotten
//   EDGEKV_STATUS_INVALID_STATE  tokens between `end` and the newest have no cells any more; or the archive was cut in a file that is only
//                                read, and did not branch
EDGEKV_API enum edgekv_status edgekv_archive_append(
           struct edgekv_archive * archive,
       const struct edgekv_cache * cache,
                            char * err,
                          size_t   err_size);

// The same in two steps, so that a device computes while the host writes: take the rows, evict and feed, and then write them.
// Rows in the host's memory are written when they are taken. Of those on a device the newest n_kept tokens' are copied to the host and kept;
// the rows before are written. Taken rows count as archived once they are written. They are written before others are taken.
//   statuses : those of edgekv_archive_append
EDGEKV_API enum edgekv_status edgekv_archive_take(
           struct edgekv_archive * archive,
       const struct edgekv_cache * cache,
                        uint32_t   n_kept,
                            char * err,
                          size_t   err_size);

EDGEKV_API enum edgekv_status edgekv_archive_write(
           struct edgekv_archive * archive,
                            char * err,
                          size_t   err_size);

EDGEKV_API uint32_t edgekv_archive_n_taken(const struct edgekv_archive * archive); // tokens whose rows were taken and are not written

// Forget the positions from `end` on. The cache goes back by other means.
EDGEKV_API void edgekv_archive_cut(struct edgekv_archive * archive, int32_t end);

EDGEKV_API int32_t  edgekv_archive_begin(const struct edgekv_archive * archive);
EDGEKV_API int32_t  edgekv_archive_end(const struct edgekv_archive * archive);
EDGEKV_API uint64_t edgekv_archive_written_bytes(const struct edgekv_archive * archive); // so far, cut or not

// Bytes of the file for a segment of tokens; of a cache with this shape a token takes cell_bytes, and 12 bytes a head.
EDGEKV_API uint64_t edgekv_archive_segment_bytes(const struct edgekv_shape * shape);

// The same of an archive's own segments.
EDGEKV_API uint64_t edgekv_archive_segment_size(const struct edgekv_archive * archive);

// Where the segment of a position lies, one of the archive's: the descriptor of its file, and its first byte there. A program that copies
// segments one after another to a file can read them there with edgekv_archive_read.
EDGEKV_API void edgekv_archive_place(
      const struct edgekv_archive * archive,
                          int32_t   position,
                          int32_t * fd,
                         uint64_t * offset);

// If heads may lie unlike, a recall gives one of them up to EDGEKV_RECALL_LIMIT times as many cells as it does on average.
#define EDGEKV_RECALL_LIMIT 4

struct edgekv_recall_params {
    uint32_t n_bytes;
    uint32_t n_cells; // cells of a head that are filled on average, at most
    uint32_t n_rows;  // newest tokens of the probe whose queries score; 0 = all
    uint32_t before;  // a cell's score is the sum of what all cells get, half as much for each `before` positions that one lies before it,
    uint32_t after;   // and for each `after` positions that it lies after it; beyond six times as many it counts nothing
    uint32_t n_sink;  // first positions: what they get counts nothing, because attention that finds nothing goes there
    uint32_t with_rest; // nonzero: one of these cells of each head stands for all archived tokens that the head lacks
    uint32_t n_needed;  // archived tokens that a head holds and that score as well as what is recalled: so many are noted, at most n_cells
};

EDGEKV_DEFAULT(edgekv_recall_params)

struct edgekv_recall {
    uint32_t n_cells;   // of a head that were filled, on average, rounded up: so many free ones fewer has every head
    uint64_t n_scanned; // keys that were scored, over all heads
    int64_t  scan_us;
    int64_t  load_us;
};

// Fill free cells with archived tokens that heads do not hold: those whose keys get most attention from the queries of the last probe.
// A key's weight is its largest softmax weight over the rows of the probe and the query heads of the group. The softmax runs over all
// archived keys and those of the probe's tokens up to the row's own; if anything was fed, refilled or evicted since the probe, over
// archived keys alone. Heads that share rows share the cells that are filled: their best tokens get them, whichever head lacks them. So
// a head may get up to EDGEKV_RECALL_LIMIT times as many as on average, as far as layout.n_cells_max leaves it room, and another none.
// The rows are laid out anew for that, and the next feed goes after them.
//
// A recalled cell has an accumulated score of 0, and its norm1(V W_O) is computed at the next eviction.
//
// with_rest: the first recalled cell of a head, at position -1, stands for the n archived tokens that the head lacks then. Its value is
// the mean of their values. Its key is the mean of their keys, with the smallest change that gives each query of the probe log(n) more
// (by ridge regression). Of many segments the means are those of 8 to 15, spread evenly, whose values a scan then reads, too. A head
// that lacks none has no such cell, and none has one if n_cells comes to 1, if keys were turned, or if the cache holds latents. Scorers of
// the host's own do not see it, and another recall that finds it writes it anew. Every eviction takes it, and policies choose among the
// other recalled cells as among all: to keep them while a reply goes on, give edgekv_cache_compact their positions (`beside`).
//
// Cells that the last recall filled are given up, if nothing was fed or restored since. A probe between two recalls sees those of the first.
//
// If keys of the cache were turned to other RoPE positions, all archived keys are scored as if they were at RoPE position 0. Then the
// keys of each head, with the recalled ones, are turned to adjacent RoPE positions in order, and all heads end at the same one. Each key
// is turned from its archived row if there is one, so that roundings do not add up.
//   n_cells of the result : as asked for, or fewer: the free cells, or what heads lack on average. In a cache whose heads share no cells and
//                           are too long for edgekv's own attention, or lie on a device, all heads get as many: what the head does that lacks
//                           the fewest archived tokens
//   EDGEKV_STATUS_INVALID_STATE  there was no probe; or tokens were fed that are not archived yet, though there is room for them
//   EDGEKV_STATUS_ARCHIVE        the file cannot be read or is not what was written; the cells are as before, or those of an earlier
//                                recall are given up
//   EDGEKV_STATUS_NOT_FINITE     a logit is NaN or infinite; the cells are as before
//   EDGEKV_STATUS_INTERNAL       a device failed; the cells are as with EDGEKV_STATUS_ARCHIVE, or if rows were moved or keys turned there are none
EDGEKV_API enum edgekv_status edgekv_cache_recall(
                struct edgekv_cache * cache,
        const struct edgekv_archive * archive,
  const struct edgekv_recall_params * params,
               struct edgekv_recall * result,
                               char * err,
                             size_t   err_size);

// The same recall in steps, so that a program shows its progress, and may stop it: begin, scan until no heads are left, finish, free.
// Until it is freed cache and archive must stay, and until it is finished they must not change. A recall that is freed before it is
// finished changes no cell. Params, result and statuses are those of edgekv_cache_recall.
//   n_left : heads that are still to be scanned; 0 also where there is nothing to recall
EDGEKV_API enum edgekv_status edgekv_recall_begin(
                struct edgekv_cache * cache,
        const struct edgekv_archive * archive,
  const struct edgekv_recall_params * params,
         struct edgekv_recall_work ** work,
                           uint32_t * n_left,
                               char * err,
                             size_t   err_size);

// Scan at most so many heads.
EDGEKV_API enum edgekv_status edgekv_recall_scan(
          struct edgekv_recall_work * work,
                           uint32_t   n_heads,
                           uint32_t * n_left,
                               char * err,
                             size_t   err_size);

//   EDGEKV_STATUS_INVALID_STATE  heads are left, or the cells changed since it began
EDGEKV_API enum edgekv_status edgekv_recall_finish(
          struct edgekv_recall_work * work,
                struct edgekv_cache * cache,
               struct edgekv_recall * result,
                               char * err,
                             size_t   err_size);

// After it is finished: how many tokens the heads hold, layer by layer, that score higher than one that was recalled to a head which shares
// rows with theirs, the best n_needed of each. counts: room for all heads. An eviction that is to keep them gets them as `within`.
EDGEKV_API size_t edgekv_recall_needed(const struct edgekv_recall_work * work, uint32_t * counts);

// Their positions, head after head, ascending of each: room for as many.
EDGEKV_API void edgekv_recall_needed_positions(const struct edgekv_recall_work * work, int32_t * positions);

EDGEKV_API void edgekv_recall_free(struct edgekv_recall_work * work);

// Give the next n tokens of a cache their cells, with their archived rows, in place of feeding them. Rows, and what cells carry, are
// as a feed would leave them. Logits come with the next feed. A key that was fed at another RoPE position than the token gets now is
// turned, which rounds it once more. So a cache that went back to earlier tokens comes to later ones without decoding: refill a block,
// compact, and again.
//   EDGEKV_STATUS_UNSUPPORTED    decoding leaves more than rows: the cache has sliding windows, recurrent states or queries of the text
//   EDGEKV_STATUS_INVALID_STATE  some of these tokens are not archived, or there are fewer free cells
//   EDGEKV_STATUS_ARCHIVE        the file cannot be read or is not what was written; the cells are as before
EDGEKV_API enum edgekv_status edgekv_cache_refill(
                struct edgekv_cache * cache,
        const struct edgekv_archive * archive,
                           uint32_t   n,
                               char * err,
                             size_t   err_size);

// Bring the rows that a snapshot left out back to their cells, after edgekv_cache_restore_numbers. Threads of the cache share the heads.
//   archive : one with the positions of that with which the snapshot was saved
//   EDGEKV_STATUS_ARCHIVE  the file cannot be read or is not what was written; the cells are then of no use but for edgekv_cache_clear
EDGEKV_API enum edgekv_status edgekv_cache_restore_archived(
                struct edgekv_cache * cache,
        const struct edgekv_archive * archive,
                               char * err,
                             size_t   err_size);

// Bytes that an archive holds, and a recall takes while it runs.
//   n_probe : tokens of a probe, at most
//   n_kept  : of edgekv_archive_take; 0 = the program appends
EDGEKV_API uint64_t edgekv_archive_estimate_bytes(
                 const struct edgekv_shape * shape,
                                  uint32_t   n_probe,
                                  uint32_t   n_cells,
                                  uint32_t   n_kept);

#ifdef __cplusplus
}
#endif

#endif // EDGEKV_ARCHIVE_H
