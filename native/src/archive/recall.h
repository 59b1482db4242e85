// A recall: which archived tokens each head lacks most, and their rows in free cells.
#pragma once

#include "archive/archive.h"
#include "archive/rest.h"
#include "archive/row_transfer.h"
#include "archive/scan.h"
#include "edgekv_archive.h"
#include "evict/head_moves.h"
#include "evict/team.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace edgekv {

// Made over a constant cache, which `commit` alone changes. Cache and archive stay as they are until then.
class Recall {
  public:
    // Throws Error.
    Recall(const edgekv_cache & cache, const edgekv_archive & archive, const edgekv_recall_params & params);

    uint32_t n_heads_left() const { return static_cast<uint32_t>(heads_.size() - n_scanned_); }

    // Scan the next heads, at most n. Throws Error.
    void scan(uint32_t n);

    // Once, after all heads were scanned. Throws Error where rows cannot be read; then the cells are as before, without those of an earlier
    // recall. If a device fails while rows move or keys turn, they are lost, and the cache is emptied.
    edgekv_recall commit(edgekv_cache & cache);

    // After that: tokens that each head holds, and that score higher than one that heads which share its rows got. Ascending of each.
    size_t n_needed(uint32_t * counts) const;
    void   write_needed(int32_t * positions) const;

    // Bytes that an archive holds, and a recall takes.
    static uint64_t estimate_bytes(const edgekv_shape & shape, uint32_t n_probe, uint32_t n_cells);

  private:
    static ScanSize scan_size(const edgekv_shape & shape, uint32_t n_probe);
    static size_t   n_workers(const edgekv_shape & shape);

    void     check() const;
    void     note_cells();
    uint32_t most_of(size_t head) const;
    void     make_rests();
    void     choose();
    void     choose_needed(const std::vector<size_t> & heads);
    void     choose_rests(const std::vector<size_t> & heads);
    void     make_room(edgekv_cache & cache, const std::vector<uint32_t> & n_before_open, HeadMoves & moves);
    void     scan_head(uint32_t il, uint32_t g, Scan & scan, BestPositions & best);
    void     load_rows(const edgekv_cache & cache, char * room, RowWriter & writer);
    void     load_head(const edgekv_cache & cache, uint32_t il, uint32_t g, bool values, char * room, RowWriter & writer);
    void     write_rests(const edgekv_cache & cache, char * room, RowWriter & writer);
    void     write_rest(const edgekv_cache & cache, uint32_t il, uint32_t g, bool values, char * room);
    size_t   rest_row(uint32_t il, uint32_t g) const; // of its pool

    std::vector<int32_t> held(uint32_t il, uint32_t g) const;
    edgekv_rows          format(uint32_t il, bool values) const;
    edgekv_queries       queries_of(uint32_t il, uint32_t g, Scan & scan);
    const char *         own_keys(uint32_t il, uint32_t g) const;
    void                 copy_own_keys();

    template <typename F> void each_head(F f) const { // f(layer, head)
        for (uint32_t il = 0; il < cache_.layers().size(); ++il) {
            for (uint32_t g = 0; g < cache_.layers()[il].n_head_kv; ++g) {
                f(il, g);
            }
        }
    }

    const edgekv_cache &   cache_;
    const edgekv_archive & archive_;
    edgekv_recall_params   params_;
    bool                   is_turned_;  // keys have other RoPE positions than their own: they are scored at one, and go to adjacent ones
    std::vector<uint32_t>  n_held_;     // (n_heads,) cells of every head beside those of an earlier recall
    std::vector<uint32_t>  n_lacking_;  // (n_heads,) archived tokens that are in none of these
    std::vector<uint32_t>  held_rest_;  // (n_heads,) the one of them that is a rest, if any; else n_held
    edgekv_recalled        found_;      // so far: the best of every head, as many as it may get
    std::vector<float>     scores_;     // (n_heads, most) of these
    std::vector<uint32_t>  n_needed_;   // (n_heads,) tokens of each that it holds and needs
    std::vector<int32_t>   needed_;     // (n_heads, params.n_needed) of each, ascending
    std::vector<float>     needed_scores_;
    int64_t                scan_us_ = 0;

    std::vector<std::pair<uint32_t, uint32_t>> heads_; // layer and KV head of each
    size_t                                     n_scanned_ = 0;
    int32_t                                    n_past_;
    uint32_t                                   n_free_;
    std::vector<Rest>                          rests_;   // (n_heads,); empty = none is wanted
    std::vector<uint32_t>                      n_rests_; // (n_heads,) tokens that each stands for; 0 = there is none
    std::vector<float>                         rest_room_; // for a key or a value
    std::vector<Scan>                          scans_; // one a thread, and likewise
    std::vector<BestPositions>                 bests_;
    std::optional<Team>                        team_;
    std::vector<const char *>                  own_;      // (n_heads,) keys of the probe's tokens, if they lie on a device
    RowReader::Room                            own_room_; // where they were copied to
    std::mutex                                 copying_; // held by the thread that reads a copy of queries
    std::optional<HostRows>                    queries_; // of a layer, where they lie on a device
    uint32_t                                   queries_layer_ = 0;
};

} // namespace edgekv
