// The rows of a segment's tokens on their way from a cache to the file.
#pragma once

#include "archive/row_transfer.h"
#include "archive/segment_file.h"
#include "evict/team.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace edgekv {

class TakenSegment {
  public:
    // Take n rows of every head from position p on, all of one segment and the newest that the cache was fed. If the cache lies on a
    // device they are copies; else they stay where they are, and have to be written before a cell changes. Throws Error, if a device
    // fails, and std::bad_alloc.
    TakenSegment(const edgekv_cache & cache, RowReader & reader, int32_t p, uint32_t n);

    int32_t begin() const { return begin_; }
    int32_t end() const { return end_; }
    bool    is_turned() const { return is_turned_; } // whether a key is, by another position than its own

    void cut(int32_t end) { end_ = std::min(end_, end); } // after its begin

    // Write it, heads by several threads; returns how many bytes that are. Throws Error.
    uint64_t write(SegmentFile & file, Team & team) const;

  private:
    struct Run {
        size_t       head;
        const char * keys;
        const char * values;
    };

    int32_t              begin_;
    int32_t              end_;
    bool                 is_turned_ = false;
    std::vector<Run>     runs_;
    std::vector<int32_t> rope_positions_; // (runs, n_tokens of a segment)
    RowReader::Room      room_;           // of the copies
};

} // namespace edgekv
