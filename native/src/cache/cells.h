// What edgekv knows of every cell: arrays over all rows of a flat cache.
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
    bool repositions; // RoPE positions
};

// One head's cells, n of them. All but `order` are indexed by cell.
struct HeadCells {
    uint32_t   n;
    int32_t *  position;
    int32_t *  rope_position; // that the key is turned by; NULL where it is the position for ever
    uint32_t * order;       // cells ascending by position
    uint8_t *  keep;        // the last selection
    float *    score;       // base scores of the running compaction
    float *    softmax;     // of them, comparable with other heads'; NULL where scores are or nothing is compared
    float *    of_value;    // what a device made of values for the running compaction; NULL where none does
    float *    accumulated; // what scorings left with the cells; NULL where nothing is carried
    float *    next;        // the same after the running compaction
    float *    wo_norm;     // norm1(V W_O); NULL where no policy reads it
};

class CellArrays {
  public:
    CellArrays(size_t n_rows, const CellParts & parts);

    HeadCells at(size_t row, uint32_t n) const; // of what it points to, a const cache's callers write nothing
    void      move(size_t from, size_t to, size_t n); // what n cells hold and carry, to other rows
    void      carry_on() { accumulated_.swap(next_); }

    size_t        bytes() const { return bytes(position_.size(), parts_); }
    static size_t bytes(size_t n_rows, const CellParts & parts);

  private:
    CellParts             parts_;
    std::vector<int32_t>  position_;
    std::vector<int32_t>  rope_position_;
    std::vector<uint32_t> order_;
    std::vector<uint8_t>  keep_;
    std::vector<float>    score_;
    std::vector<float>    softmax_;
    std::vector<float>    of_value_;
    std::vector<float>    accumulated_;
    std::vector<float>    next_;
    std::vector<float>    wo_norm_;
};

} // namespace edgekv
