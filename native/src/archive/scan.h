// What the archived keys of a head get from a few queries, and the cells that are worth most.
#pragma once

#include "archive/archive.h"
#include "archive/rest.h"
#include "rope/rope_undo.h"
#include "rows/rows.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// The positions whose neighbourhood gets most, of those that a head does not hold, and of those that it does.
class BestPositions {
  public:
    // The score of a position is the sum of all weights, each of which counts half as much for every `before` positions that it lies
    // before it, or `after` after it. Those further after it than n_halvings * after count nothing, nor do those of positions before n_sink.
    // n_needed: of those that a head holds
    BestPositions(uint32_t n, uint32_t n_needed, uint32_t before, uint32_t after, uint32_t n_sink);

    // held: ascending; most: of the best, at most those of the constructor
    void begin(int32_t first, const std::vector<int32_t> * held, uint32_t most);
    void add(float weight); // of the next position
    void finish();          // no position follows

    // Of equal scores later positions are the better ones. Ascending.
    void write(int32_t * positions, float * scores) const;
    uint32_t n() const { return static_cast<uint32_t>(best_.size()); }

    // Likewise of those that the head holds.
    void     write_needed(int32_t * positions, float * scores) const;
    uint32_t n_needed() const { return static_cast<uint32_t>(needed_.size()); }

    static size_t bytes(uint32_t n, uint32_t n_needed, uint32_t after) { return (n + n_needed) * sizeof(Scored) + n_newest(after) * (2 * sizeof(float) + 2 * sizeof(double)); }

  private:
    struct Scored {
        float   score;
        int32_t position;

        bool operator>(const Scored & other) const { return score > other.score || (score == other.score && position > other.position); }
    };

    static constexpr uint32_t n_halvings = 6;

    static uint32_t n_newest(uint32_t after) { return n_halvings * after + 1; }

    void        consider(int32_t position);
    static void keep(const Scored & found, uint32_t most, std::vector<Scored> & heap);
    static void write(const std::vector<Scored> & some, int32_t * positions, float * scores);
    uint32_t    place(int32_t position) const { return static_cast<uint32_t>(position) % n_newest_; }

    uint32_t                     most_;
    uint32_t                     most_needed_;
    int32_t                      n_sink_;
    uint32_t                     n_newest_; // positions whose weights are at hand
    double                       fading_;   // what a weight counts one position after it
    std::vector<double>          earlier_;  // (n_newest_,) what a weight counts so many positions before it
    int32_t                      first_ = 0;
    int32_t                      next_  = 0; // position of the next weight
    const std::vector<int32_t> * held_  = nullptr;
    size_t                       n_passed_ = 0; // of those held
    std::vector<float>           weights_;      // (2, n_newest_): a ring, twice, so that all runs of it lie together
    std::vector<double>          up_to_;        // (n_newest_,) a ring: the sum of all weights up to each position, as they count there
    std::vector<Scored>          best_;         // a heap, the least on top
    std::vector<Scored>          needed_;       // likewise, of those held
};

// How many numbers a scan works in.
struct ScanSize {
    uint32_t dim;       // of a key or a value, at most
    uint32_t n_group;   // query heads of a KV head, at most
    uint32_t n_probe;   // rows of a probe
    uint32_t row_bytes; // of a key or a value, at most
    uint32_t dim_rest;  // of the key of a rest, at most; 0 = there is none
};

// A head whose archived keys are scored.
struct ArchivedHead {
    size_t           index;
    edgekv_rows      format; // of its keys, without the rows
    const RopeUndo * undo;   // with it keys are read as they are at position 0, and not rotated; NULL = as they are stored
    const char *     own;    // (n_own,) keys of the probe, as they are stored, of which each query sees those up to its own
    uint32_t         n_own;
    edgekv_rows      values; // of its values, likewise
    Rest *           rest;   // gets the sums of the tokens that it lacks, and what the queries make of it; NULL = none is wanted
};

// Scores the archived keys of one head after another. One thread has one.
class Scan {
  public:
    explicit Scan(const ScanSize & size);

    // Queries of n rows of all heads of a group, (n_head, n, dim), go here, and their positions; their softmax has the sinks
    // (n_head,) in its sum, unless NULL.
    float *   queries() { return queries_.data(); }
    int32_t * positions() { return positions_.data(); }

    // Give `best` what every archived key gets: the largest weight over all queries, of a softmax over archived keys and the probe's own. Throws Error where the file is not what was
    // written, or a logit is not finite.
    // held: positions that the head holds, ascending
    void run(const edgekv_archive & archive, const ArchivedHead & head, const edgekv_queries & queries, const std::vector<int32_t> & held,
             BestPositions & best);

    char * room() { return room_.data(); } // for the rows of a head in a segment

    static size_t bytes(const ScanSize & size);

  private:
    template <typename F> static void each(Scan * scan, const ScanSize & size, F f);
    void                              add_own(const ArchivedHead & head, const edgekv_queries & queries);
    template <typename F> void        each_tile(const edgekv_archive & archive, const ArchivedHead & head, bool values, bool first, F f);
    void                              add_lacking(const std::vector<int32_t> & held, int32_t p, uint32_t n, bool values, uint32_t dim, Rest & rest);
    void                              fill_panels(const edgekv_queries & queries);

    size_t               n_panels_ = 0;
    std::vector<char>    room_;
    std::vector<float>   keys_;      // (n_tokens, dim) of a segment; or its values
    std::vector<float>   queries_;   // (n_group, n_probe, dim)
    std::vector<int32_t> positions_; // (n_probe,)
    std::vector<int32_t> rope_;      // (n_tokens,) RoPE positions of these keys
    std::vector<float>   panels_;    // (panels, dim, n_lanes)
    std::vector<float>   most_;      // (panels, n_lanes)
    std::vector<float>   sums_;      // likewise
    std::vector<float>   log_sums_;  // likewise, of exp(logit) over all keys
    std::vector<float>   scratch_;   // (n_tokens, 2, n_lanes)
    std::vector<float>   weights_;   // (n_tokens,)
    std::vector<double>  gram_;      // Rest::gram_size(dim_rest)
};

} // namespace edgekv
