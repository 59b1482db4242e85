// A file of rows by position: segments of adjacent positions, and in each the rows of one head after another's.
#pragma once

#include "edgekv_archive.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

// Bytes of a row of one head.
struct RowBytes {
    uint32_t k;
    uint32_t v; // 0 where the value is a part of the key

    bool operator==(const RowBytes & other) const { return k == other.k && v == other.v; }
};

// What a segment has of a head: marks of its keys, the keys, and the same of its values. The mark of a row is its checksum, and of a
// key also the RoPE position that it is turned by. Where all of it lies follows from the position and the head, so there is no index,
// and memory does not grow with the file. Several threads may read at once. The first segments may lie in other files, which are only read.
class SegmentFile {
  public:
    static constexpr uint32_t n_tokens = EDGEKV_SEGMENT_TOKENS; // of a segment
    static uint32_t           n_from(int32_t p) { return n_tokens - static_cast<uint32_t>(p) % n_tokens; } // of the segment of p, from p on

    // begin: the first position that it will hold; its segment is the first one of the file, and lies there from byte `offset` on
    SegmentFile(int fd, std::vector<RowBytes> heads, int32_t begin, uint64_t offset = 0);

    const std::vector<RowBytes> & heads() const { return heads_; }
    uint64_t                      segment_bytes() const { return begins_.back(); }
    uint64_t segment_begin(int32_t p) const { return begin_in(part_of(p), p); }
    int      fd() const { return parts_.back().fd; } // of the file that is written
    int      fd(int32_t p) const { return part_of(p).fd; }
    bool     writes(int32_t p) const { return static_cast<uint32_t>(p) / n_tokens >= parts_.back().first_segment; } // there

    // Go on with an empty file at position `end`, and with what its segment has before, from position `begin` on. Throws Error; then
    // nothing has changed.
    void branch(int32_t begin, int32_t end, int fd);

    // Go on with a file that holds the segments from that of position `first` on, from byte `offset` on.
    void resume(int fd, uint64_t offset, int32_t first);

    static uint64_t bytes_of(const RowBytes & head) { return n_tokens * (mark_bytes(false) + mark_bytes(true) + uint64_t(head.k) + head.v); }
    static constexpr uint32_t mark_bytes(bool values) { return values ? sizeof(uint32_t) : sizeof(uint32_t) + sizeof(int32_t); }

    // Room for the keys or the values of a head in a segment, with their marks.
    static size_t room(uint32_t row_bytes) { return n_tokens * (mark_bytes(false) + size_t(row_bytes)); }

    // Write n rows from position p on, all of one segment: keys, or values. `rows` are adjacent.
    // rope_positions: (n,) of keys; NULL of values
    void write(size_t head, bool values, int32_t p, uint32_t n, const char * rows, const int32_t * rope_positions);

    // Read n rows from position p on likewise, to `room`, and return where they begin there. Throw Error(EDGEKV_STATUS_ARCHIVE) where
    // they are not what was written. first: with false, checksums are not compared once more
    char * read(size_t head, bool values, int32_t p, uint32_t n, char * room, int32_t * rope_positions, bool first = true) const;

    // A few rows of a head, at ascending positions. Those of a segment that lie close to one another are read at once.
    class Few {
      public:
        // positions: (n,) of the rows, which outlive it, as `room` does
        Few(const SegmentFile & file, size_t head, bool values, const int32_t * positions, size_t n, char * room);

        // The row of the next position, in `room` until the one after it is asked for, and its RoPE position, of a key. Throws Error, as
        // `read` does; the one after it may be there all the same.
        char * next(int32_t & rope_position);

      private:
        const SegmentFile & file_;
        const size_t        head_;
        const bool          values_;
        const int32_t *     next_;
        const int32_t *     end_;
        const int32_t *     read_end_; // of the positions whose rows are in `room`
        int32_t             first_;    // position of the first row there
        char *              room_;
    };

  private:
    void load(size_t head, bool values, int32_t p, uint32_t n, char * room) const;

    // The i-th of the rows in `room`, which begin at position p, and its RoPE position. Throws Error where it is not what was written.
    char * row(size_t head, bool values, int32_t p, uint32_t i, char * room, int32_t & rope_position, bool compared) const;

    // Segments of one file, up to the next part's.
    struct Part {
        int      fd;
        uint64_t offset; // of the first one
        uint32_t first_segment;
    };

    const Part & part_of(int32_t p) const;
    void         drop_before_last();
    uint64_t     begin_in(const Part & part, int32_t p) const {
        return part.offset + (static_cast<uint32_t>(p) / n_tokens - part.first_segment) * segment_bytes();
    }
    uint64_t place(const Part & part, size_t head, bool values, int32_t p) const; // of the marks of the segment that p lies in

    std::vector<RowBytes> heads_;
    std::vector<uint64_t> begins_; // of every head in a segment, and the end of the last
    std::vector<Part>     parts_;  // ascending
};

} // namespace edgekv
