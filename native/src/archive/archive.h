// The rows of a cache's tokens in a file: a run of positions that grows with the text and may be cut.
#pragma once

#include "archive/segment_file.h"
#include "archive/taken_segment.h"
#include "cache/cache.h"

#include <cstdint>
#include <vector>

struct edgekv_archive {
    edgekv_archive(const edgekv_cache & cache, int fd, int32_t begin, uint64_t limit_bytes);

    // Of a file that has the positions [begin, end) from byte `offset` on. Nothing can be appended before a branch.
    edgekv_archive(const edgekv_cache & cache, int fd, uint64_t offset, int32_t begin, int32_t end);

    // Nothing can be appended to the copy before a branch, which must come before the other archive is cut and written on.
    edgekv_archive(const edgekv_archive & other);

    // Keep the positions before `end`, as far as the limit has room for them, and write those of the cache that follow to another file.
    // Throws Error; then nothing has changed.
    void branch(const edgekv_cache & cache, int32_t end, int fd, uint64_t limit_bytes);

    // Go on with the positions [first, end) of a file, from byte `offset` on, and write there. What lies before `first` stays.
    void resume(int fd, uint64_t offset, int32_t first, int32_t end, uint64_t limit_bytes);

    // Have the rows of the tokens that the cache was fed since: copies of the newest n_kept tokens' on a device, and all others written.
    // So their cells may be evicted. Throws Error; after one of the file nothing is written until a cut.
    void take(const edgekv_cache & cache, uint32_t n_kept);

    void write(); // what was taken; throws Error likewise

    // Bytes that rows take which were taken and are not written.
    static uint64_t taken_bytes(const edgekv_shape & shape, uint32_t n_kept);

    void cut(int32_t end);

    // The rows that this archive has as the cells of a cache have them, which was fed its tokens.
    edgekv::FiledRows filed(const edgekv_cache & cache) const {
        return { begin_, end_, !cache.is_turned() && !is_turned() };
    }

    // Throws Error for a cache whose rows are of other sizes.
    void require_same_rows(const edgekv_cache & cache) const;

    const edgekv::SegmentFile & file() const { return file_; }
    int32_t                     begin() const { return begin_; }
    int32_t                     end() const { return end_; }
    uint32_t                    n_taken() const { return taken_.empty() ? 0 : static_cast<uint32_t>(taken_.back().end() - end_); }
    uint64_t                    written_bytes() const { return written_bytes_; }
    bool                        is_full() const { return end_ >= limit_; }
    bool                        is_turned() const { return first_turned_ < end_; } // whether a key is, by another position than its own

  private:
    int32_t room_of(uint64_t limit_bytes) const;
    void    find_first_turned(int32_t from);
    void    forget_taken();

    edgekv::SegmentFile file_;
    int32_t             begin_;
    int32_t             end_;
    int32_t             room_;  // first position that there is no room for
    int32_t             limit_; // first position that is not written: the same, or where writing failed
    int32_t             first_turned_ = INT32_MAX;
    uint64_t            written_bytes_ = 0;

    std::vector<edgekv::TakenSegment> taken_; // the positions from end_ on, which are not written yet
    uint32_t                          n_threads_ = 1; // that write them
};
