// The newest queries of every layer, as llama.cpp's graph leaves them: a ring over positions, and another for probes.
#pragma once

#include "rope/rope_turn.h"
#include "rows/beside.h"
#include "rows/flat_cache.h"
#include "rows/host_rows.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// The newest n rows of a text or a probe, but for the n_after newest.
struct QueryRows {
    uint32_t n;
    uint32_t n_after;
};

// Rows of the text's ring: those that are kept, and those that drafts take.
inline uint64_t n_text_rows(uint32_t n_rows, uint32_t n_draft) { return n_rows > 0 ? uint64_t(n_rows) + n_draft : 0; }

class QueryWindow {
  public:
    // Rings of n_rows for the text and n_probe_rows for probes, beside the keys of every layer. The text's has n_draft rows
    // more, so that tokens that come to nothing overwrite none of the newest n_rows. Throws std::bad_alloc.
    QueryWindow(FlatCache & flat, uint32_t n_rows, uint32_t n_draft, uint32_t n_probe_rows);
    ~QueryWindow();
    QueryWindow(const QueryWindow &)             = delete;
    QueryWindow & operator=(const QueryWindow &) = delete;

    void clear();

    // What is decoded next is of the text, or of a probe. `lag` is by how much RoPE's positions fall short of true ones.
    void begin_text(int32_t lag);
    void begin_probe(int32_t lag);

    // A batch of it was decoded, or failed after it wrote rows: n tokens from position p0. Their rows are no older token's any
    // more, and until a probe ends there is none.
    void note_written(int32_t p0, uint32_t n);

    // All of a probe was decoded: tokens from position p0, of parts that end before so many of them each, ascending.
    void end_probe(int32_t p0, std::vector<uint32_t> && part_ends);

    // The newest n rows of the text: by how much each lags, and f(tensor, first byte, bytes) of each in every layer.
    std::vector<int32_t> text_lags(int32_t n_past, uint32_t n) const;
    template <typename F> void each_text_row(int32_t n_past, uint32_t n, F f) const {
        for (int32_t p = n_past - static_cast<int32_t>(n); p < n_past; ++p) {
            for (ggml_tensor * ring : flat_.queries().rings()) {
                f(ring, static_cast<uint32_t>(p) % n_ring_ * ring->nb[1], ring->nb[1]);
            }
        }
    }

    // Say that those rows, and no others, are there.
    void restore_text(int32_t n_past, const std::vector<int32_t> & lags);

    uint32_t n_text(int32_t n_past) const; // newest rows of the text that are whole

    // Newest tokens without which as many rows are whole as a text of the others would have. Rows in a draft's room do not
    // count: no snapshot has them, and a draft overwrites them, so it would depend on who else was at work.
    uint32_t n_droppable(int32_t n_past) const;
    void     forget_probe();
    void     lose_probe_keys() { has_probe_keys_ = false; } // rows of the text lie elsewhere now
    bool     has_probe_keys() const { return has_probe_keys_; } // whether the last probe's rows still lie behind the text's
    uint32_t n_probe() const { return n_probe_; }
    uint32_t n_parts() const { return static_cast<uint32_t>(part_ends_.size()); } // of the last probe

    // All rows of the i-th part of the last probe.
    QueryRows part(uint32_t i) const { return { part_ends_[i] - (i > 0 ? part_ends_[i - 1] : 0), n_probe_ - part_ends_[i] }; }

    uint64_t bytes(bool host) const { return memory_.bytes(host); } // in the host's memory, or on devices

    // Call f(i, row of the rings, position, by how many positions to turn it) for some rows, as `read` has them.
    template <typename F> void each_row(bool probed, int32_t n_past, const QueryRows & rows, int32_t lag, F f) const {
        const int32_t  end    = (probed ? probe_first_ + static_cast<int32_t>(n_probe_) : n_past) - static_cast<int32_t>(rows.n_after);
        const uint32_t first  = probed ? n_ring_ : 0;
        const uint32_t n_ring = probed ? n_probe_rows_ : n_ring_;
        const int32_t  moved  = probed ? n_past - probe_first_ : 0; // tokens that came after the probe
        for (uint32_t w = 0; w < rows.n; ++w) {
            const int32_t  position = end - static_cast<int32_t>(rows.n - w);
            const uint32_t row      = first + static_cast<uint32_t>(position) % n_ring;
            f(w, row, position + moved, lags_[row] - lag + moved);
        }
    }

    // The rows of layer `index` between the first and the last of some in its ring, which one read copies.
    HostRows copied(uint32_t index, bool probed, int32_t n_past, const QueryRows & rows, RowCopy & copy) const;

    // Copy n rows of some query heads of layer `index`, to (n_head, n, head_dim) with by_head, else
    // (n, n_head, head_dim); and their positions. Those that were computed under another lag are turned to this one; those of
    // a probe are those of the same tokens after all that came since. They come from `copied`, or if it is NULL from where they lie.
    // Returns the layer's scale of Q K^T.
    float read(uint32_t index, uint32_t first_head, uint32_t n_head, bool probed, int32_t n_past, const QueryRows & rows,
               bool by_head, int32_t lag, RopeTurn * turn, float * queries, int32_t * positions, HostRows * copied = nullptr) const;

  private:
    FlatCache &           flat_;
    Beside                memory_;
    uint32_t              n_rows_;
    uint32_t              n_ring_; // rows of the text's ring
    uint32_t              n_probe_rows_;
    bool                  probing_     = false;
    bool                  has_probe_keys_ = false;
    int32_t               oldest_      = 0; // rows of earlier positions were overwritten
    int32_t               probe_first_ = 0; // position of the last probe's first row
    uint32_t              n_probe_     = 0; // rows of the last probe
    std::vector<uint32_t> part_ends_;       // rows before the end of each of its parts
    std::vector<int32_t>  lags_;            // of every row
};

} // namespace edgekv
