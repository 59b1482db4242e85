#include "archive/archive.h"

#include "archive/file_access.h"
#include "hooks/status.h"

#include <algorithm>

using namespace edgekv;

namespace {

std::vector<RowBytes> row_bytes_of(const edgekv_cache & cache) {
    std::vector<RowBytes> heads;
    for (const edgekv_layer & layer : cache.layers()) {
        const RowBytes row = { static_cast<uint32_t>(layer.k->nb[1]), layer.is_latent() ? 0 : static_cast<uint32_t>(layer.v->nb[1]) };
        heads.insert(heads.end(), layer.n_head_kv, row);
    }
    return heads;
}

// Whether the newest rows of every head are those of the tokens from position p on.
bool has_all_from(const edgekv_cache & cache, int32_t p) {
    const auto n = static_cast<uint32_t>(cache.n_past - p);
    for (uint32_t il = 0; il < cache.layers().size(); ++il) {
        for (uint32_t g = 0; g < cache.layers()[il].n_head_kv; ++g) {
            const HeadView head = cache.cells(il, g);
            for (uint32_t i = 0; i < n; ++i) {
                if (n > head.n || head.position[head.n - n + i] != p + static_cast<int32_t>(i)) {
                    return false;
                }
            }
        }
    }
    return true;
}

} // namespace

edgekv_archive::edgekv_archive(const edgekv_cache & cache, int fd, int32_t begin, uint64_t limit_bytes) :
    file_(fd, row_bytes_of(cache), begin), begin_(begin), end_(begin) {
    require(fd >= 0, "fd is no file");
    require(begin >= 0 && begin <= cache.n_past, "an archive begins at a position that was fed, or at the next one");
    room_ = limit_ = room_of(limit_bytes);
}

edgekv_archive::edgekv_archive(const edgekv_cache & cache, int fd, uint64_t offset, int32_t begin, int32_t end) :
    file_(fd, row_bytes_of(cache), begin, offset), begin_(begin), end_(end), room_(end), limit_(end) {
    require(fd >= 0, "fd is no file");
    require(begin >= 0 && begin <= end && end <= cache.n_past, "archived are positions that were fed");
    find_first_turned(begin);
}

edgekv_archive::edgekv_archive(const edgekv_archive & other) :
    file_(other.file_), begin_(other.begin_), end_(other.end_), room_(other.end_), limit_(other.end_), first_turned_(other.first_turned_) {}

void edgekv_archive::branch(const edgekv_cache & cache, int32_t end, int fd, uint64_t limit_bytes) {
    require_same_rows(cache);
    require(fd >= 0, "fd is no file");
    require(taken_.empty(), "an archive branches after what it took was written");
    require(end >= begin_ && end <= end_ && end <= cache.n_past, "an archive branches at a position that it has, and that was fed");
    const int32_t room = room_of(limit_bytes);
    end                = std::max(begin_, std::min(end, room));
    file_.branch(begin_, end, fd);
    end_   = end;
    room_  = room;
    limit_ = has_all_from(cache, end) ? room : end; // else a gap would follow
}

void edgekv_archive::resume(int fd, uint64_t offset, int32_t first, int32_t end, uint64_t limit_bytes) {
    require(fd >= 0, "fd is no file");
    require(first >= begin_ && first <= end_ && first <= end, "an archive goes on where it ends, or before");
    require(first == begin_ || static_cast<uint32_t>(first) % SegmentFile::n_tokens == 0, "a file of rows begins with a segment");
    file_.resume(fd, offset, first);
    end_  = end;
    room_ = limit_ = room_of(limit_bytes);
    first_turned_  = first_turned_ < first ? first_turned_ : INT32_MAX;
    try {
        find_first_turned(first);
    } catch (const Error &) { // rows that cannot be read end a refill, and are cut then
    }
}

int32_t edgekv_archive::room_of(uint64_t limit_bytes) const {
    const uint64_t n_before   = static_cast<uint32_t>(begin_) / SegmentFile::n_tokens; // segments that the file leaves out
    const uint64_t n_segments = n_before + limit_bytes / std::max<uint64_t>(1, file_.segment_bytes());
    return static_cast<int32_t>(std::min<uint64_t>(n_segments * SegmentFile::n_tokens, INT32_MAX));
}

// A token has one RoPE position in all heads, so the first one tells.
void edgekv_archive::find_first_turned(int32_t from) {
    if (file_.heads().empty()) {
        return;
    }
    std::vector<char>    room(SegmentFile::room(file_.heads().front().k));
    std::vector<int32_t> rope_positions(SegmentFile::n_tokens);
    for (int32_t p = from; p < end_ && first_turned_ == INT32_MAX;) {
        const auto n = std::min<int32_t>(end_ - p, SegmentFile::n_from(p));
        file_.read(0, false, p, static_cast<uint32_t>(n), room.data(), rope_positions.data());
        for (int32_t i = 0; i < n && first_turned_ == INT32_MAX; ++i) {
            first_turned_ = rope_positions[i] == p + i ? first_turned_ : p + i;
        }
        p += n;
    }
}

void edgekv_archive::require_same_rows(const edgekv_cache & cache) const {
    require(row_bytes_of(cache) == file_.heads(), "the archive is of a cache with other rows; begin one with this cache");
}

void edgekv_archive::cut(int32_t end) {
    while (!taken_.empty() && taken_.back().begin() >= end) {
        taken_.pop_back();
    }
    if (!taken_.empty()) {
        taken_.back().cut(end);
    }
    if (end <= end_) {
        end_          = std::max(begin_, end);
        limit_        = room_; // the next rows follow without a gap
        first_turned_ = is_turned() ? first_turned_ : INT32_MAX;
    }
}

void edgekv_archive::take(const edgekv_cache & cache, uint32_t n_kept) {
    write();
    require_same_rows(cache);
    const int32_t to = std::min(cache.n_past, limit_);
    if (to <= end_ || file_.heads().empty()) {
        return;
    }
    if (cache.n_past - end_ > static_cast<int32_t>(cache.n_open_used())) {
        fail(EDGEKV_STATUS_INVALID_STATE, "tokens from position %d on are to be archived, but only the newest %u of %d have all their cells; "
             "append before cells are evicted", end_, cache.n_open_used(), cache.n_past);
    }
    if (!file_.writes(end_)) {
        fail(EDGEKV_STATUS_INVALID_STATE, "position %d lies in a file that is only read; branch before appending", end_);
    }
    llama_synchronize(cache.ctx);
    RowReader rows(cache, true);
    n_threads_ = cache.is_copied() ? cache.shape.n_threads : 1;
    try {
        for (int32_t p = end_; p < to;) {
            const uint32_t n = std::min<uint32_t>(to - p, SegmentFile::n_from(p));
            taken_.emplace_back(cache, rows, p, n);
            if (!cache.is_copied() || static_cast<uint32_t>(to - p) > n_kept) {
                write();
            }
            p += static_cast<int32_t>(n);
        }
    } catch (const Error &) {
        forget_taken();
        throw;
    } catch (...) { // there was no memory; all rows are still in the cache
        taken_.clear();
        throw;
    }
}

void edgekv_archive::write() {
    if (taken_.empty()) {
        return;
    }
    const int32_t from = end_;
    Team          team(n_threads_);
    try {
        for (const TakenSegment & segment : taken_) {
            written_bytes_ += segment.write(file_, team);
            first_turned_ = segment.is_turned() ? std::min(first_turned_, segment.begin()) : first_turned_;
            end_          = segment.end();
        }
    } catch (...) {
        forget_taken();
        throw;
    }
    taken_.clear();
    const uint64_t first = file_.segment_begin(from);
    begin_writing_out(file_.fd(), first, file_.segment_begin(end_ - 1) + file_.segment_bytes() - first);
}

// What comes later would leave a gap.
void edgekv_archive::forget_taken() {
    taken_.clear();
    limit_ = end_;
}

uint64_t edgekv_archive::taken_bytes(const edgekv_shape & shape, uint32_t n_kept) {
    const uint64_t n_tokens = std::max(n_kept, SegmentFile::n_tokens);
    return is_staged(shape, staging()) ? n_tokens * (shape.cell_bytes + shape.n_head_total * sizeof(int32_t)) : 0;
}
