// The state of every cell: arrays over all rows of a flat cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

// What cells hold beyond what all do.
struct CellParts {
    bool accumulates; // a score
    bool wo_norms;
    bool softmax;     // of scores
    bool of_values;   // what a device makes of a value
    bool of_parts;    // what it makes of a cell by one part of a probe
    bool repositions; // RoPE positions
};

// One head's cells, n of them. All but `order` are indexed by cell.
struct HeadCells {
    uint32_t   n;
    int32_t *  position;
    int32_t *  rope_position; // that the key is turned by; NULL if it is the position for ever
    uint32_t * order;         // cells ascending by position
    float *    accumulated;   // what scorings left with the cells; NULL if nothing is carried
    float *    wo_norm;       // norm1(V W_O) of those that the cache counts as normed; NULL if no policy reads it
};

// The position of a cell that is no token's: the rest of a head, for all tokens that it lacks (archive/rest.h). A head has one at most.
constexpr int32_t rest_position = -1;

// The same of a cache that does not change.
struct HeadView {
    uint32_t         n;
    const int32_t *  position;
    const int32_t *  rope_position;
    const uint32_t * order;
    const float *    accumulated;
    const float *    wo_norm;

    uint32_t rest() const { return n_rests() > 0 ? order[0] : n; } // the cell that is one; n = there is none
    uint32_t n_tokens() const { return n - n_rests(); }
    uint32_t n_rests() const { return n > 0 && position[order[0]] == rest_position ? 1 : 0; }

    const int32_t * rope_positions() const { return rope_position != nullptr ? rope_position : position; }
};

// Rows that a file has as the cells have them: those of cells at positions [begin, end).
struct FiledRows {
    int32_t begin = 0;
    int32_t end   = 0;
    bool    keys  = false; // no = their values alone, because keys were turned

    bool has(const HeadView & head, uint32_t cell, bool values) const {
        const int32_t p = head.position[cell];
        return (values || keys) && p >= begin && p < end;
    }
};

// Turn the keys of a head's n cells, in order, to adjacent RoPE positions, the last before `end`: turn(cell, position).
template <typename F> void turn_in_order(const HeadCells & head, uint32_t n, int32_t end, F turn) {
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t cell = head.order[i];
        const int32_t  to   = end - static_cast<int32_t>(n - i);
        turn(cell, to);
        head.rope_position[cell] = to;
    }
}

// What a compaction finds out about a head's cells, by cell.
struct HeadWork {
    uint8_t * keep;     // whether it stays
    float *   score;    // base scores
    float *   of_part;  // what a device made of cells by a later part of a probe; NULL if none does
    float *   softmax;  // of them, comparable with other heads'; NULL if scores are or nothing is compared
    float *   of_value; // what a device made of values; NULL if none does
    float *   next;     // what is carried from now on; NULL if nothing is
    float *   new_norm; // wo_norm, where those that the cache does not count as normed get theirs; NULL likewise
};

// The state of all cells.
class CellArrays {
  public:
    CellArrays(size_t n_rows, const CellParts & parts);

    HeadCells at(size_t row, uint32_t n);
    HeadView  at(size_t row, uint32_t n) const;
    void      move(size_t from, size_t to, size_t n); // what n cells hold and carry, to other rows
    void      carry_on(std::vector<float> & next) noexcept { accumulated_.swap(next); }

    static size_t bytes(size_t n_rows, const CellParts & parts);

  private:
    std::vector<int32_t>  position_;
    std::vector<int32_t>  rope_position_;
    std::vector<uint32_t> order_;
    std::vector<float>    accumulated_;
    std::vector<float>    wo_norm_;
};

// What a compaction works in, for all cells.
class WorkArrays {
  public:
    // new_norms: where the cells of row 0 have their norms, or NULL
    WorkArrays(size_t n_rows, const CellParts & parts, float * new_norms);

    HeadWork at(size_t row);

    static size_t bytes(size_t n_rows, const CellParts & parts);

    std::vector<float> next;

  private:
    std::vector<uint8_t> keep_;
    std::vector<float>   score_;
    std::vector<float>   of_part_;
    std::vector<float>   softmax_;
    std::vector<float>   of_value_;
    std::vector<uint32_t> group_;
    float *              new_norms_;
};

} // namespace edgekv
