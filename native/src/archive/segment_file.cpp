#include "archive/segment_file.h"

#include "archive/file_access.h"
#include "hooks/status.h"

#include <algorithm>
#include <cstring>

namespace edgekv {

namespace {

constexpr uint64_t odd = 0x9E3779B97F4A7C15; // 2^64 over the golden ratio: its multiples differ in all bits

uint64_t mix(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * odd;
    return sum ^ sum >> 32;
}

// A checksum of a row at its place, so that no other row passes for it, and of the RoPE position of a key.
uint32_t sum_of(const char * row, size_t n, size_t head, bool values, int32_t p, int32_t rope_position) {
    uint64_t sum = mix(((head << 1 | size_t(values)) << 32 | static_cast<uint32_t>(p)) * odd, static_cast<uint32_t>(rope_position));
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, row + i, i + sizeof(word) <= n ? sizeof(word) : n - i);
        sum = mix(sum, word);
    }
    return static_cast<uint32_t>(sum);
}

// Reading so much that nobody wants is as quick as reading twice.
constexpr int64_t page_bytes = 4096;

} // namespace

SegmentFile::SegmentFile(int fd, std::vector<RowBytes> heads, int32_t begin, uint64_t offset) :
    heads_(std::move(heads)), begins_(1, 0), parts_{ { fd, offset, static_cast<uint32_t>(begin) / n_tokens } } {
    for (const RowBytes & head : heads_) {
        begins_.push_back(begins_.back() + bytes_of(head));
    }
}

const SegmentFile::Part & SegmentFile::part_of(int32_t p) const {
    const uint32_t segment = static_cast<uint32_t>(p) / n_tokens;
    return *std::find_if(parts_.rbegin(), parts_.rend() - 1, [&](const Part & part) { return part.first_segment <= segment; });
}

uint64_t SegmentFile::place(const Part & part, size_t head, bool values, int32_t p) const {
    return begin_in(part, p) + begins_[head] + (values ? room(heads_[head].k) : 0);
}

void SegmentFile::write(size_t head, bool values, int32_t p, uint32_t n, const char * rows, const int32_t * rope_positions) {
    const uint32_t first  = static_cast<uint32_t>(p) % n_tokens;
    const size_t   size   = values ? heads_[head].v : heads_[head].k;
    const size_t   marked = mark_bytes(values);
    const Part &   part   = parts_.back();
    const uint64_t at     = place(part, head, values, p);
    char           marks[n_tokens * mark_bytes(false)];
    for (uint32_t i = 0; i < n; ++i) {
        const int32_t  rope_position = values ? 0 : rope_positions[i];
        const uint32_t sum           = sum_of(rows + i * size, size, head, values, p + static_cast<int32_t>(i), rope_position);
        std::memcpy(marks + i * marked, &sum, sizeof(sum));
        std::memcpy(marks + i * marked + sizeof(sum), &rope_position, marked - sizeof(sum));
    }
    write_at(part.fd, at + first * marked, marks, n * marked);
    write_at(part.fd, at + n_tokens * marked + first * size, rows, n * size);
}

void SegmentFile::load(size_t head, bool values, int32_t p, uint32_t n, char * room) const {
    const uint32_t skipped = static_cast<uint32_t>(p) % n_tokens;
    const size_t   size    = values ? heads_[head].v : heads_[head].k;
    const size_t   marked  = mark_bytes(values);
    const Part &   part    = part_of(p);
    const uint64_t at      = place(part, head, values, p);
    if (skipped == 0) { // as one run
        read_at(part.fd, at, room, n_tokens * marked + n * size);
    } else {
        read_at(part.fd, at + skipped * marked, room, n * marked);
        read_at(part.fd, at + n_tokens * marked + skipped * size, room + n_tokens * marked, n * size);
    }
}

char * SegmentFile::row(size_t head, bool values, int32_t p, uint32_t i, char * room, int32_t & rope_position, bool compared) const {
    const size_t  size     = values ? heads_[head].v : heads_[head].k;
    const size_t  marked   = mark_bytes(values);
    char *        row      = room + n_tokens * marked + i * size;
    const int32_t position = p + static_cast<int32_t>(i);
    uint32_t      sum      = 0;
    rope_position          = 0;
    std::memcpy(&sum, room + i * marked, sizeof(sum));
    std::memcpy(&rope_position, room + i * marked + sizeof(sum), marked - sizeof(sum));
    const bool is_sound = !compared || sum == sum_of(row, size, head, values, position, rope_position);
    if (!is_sound || rope_position < 0 || rope_position > position) {
        fail(EDGEKV_STATUS_ARCHIVE, "the archive is not what was written: a row of position %d has another checksum", position);
    }
    return row;
}

char * SegmentFile::read(size_t head, bool values, int32_t p, uint32_t n, char * room, int32_t * rope_positions, bool first) const {
    load(head, values, p, n, room);
    for (uint32_t i = 0; i < n; ++i) {
        int32_t rope_position;
        row(head, values, p, i, room, rope_position, first);
        if (!values) {
            rope_positions[i] = rope_position;
        }
    }
    return room + n_tokens * mark_bytes(values);
}

SegmentFile::Few::Few(const SegmentFile & file, size_t head, bool values, const int32_t * positions, size_t n, char * room) :
    file_(file), head_(head), values_(values), next_(positions), end_(positions + n), read_end_(positions), first_(0), room_(room) {}

char * SegmentFile::Few::next(int32_t & rope_position) {
    const int32_t position = *next_++;
    if (next_ > read_end_) {
        const auto size  = std::max<int64_t>(1, values_ ? file_.heads_[head_].v : file_.heads_[head_].k);
        const auto joins = [&](int32_t p, int32_t after) {
            return uint32_t(p) / n_tokens == uint32_t(after) / n_tokens && (after - p) * size <= page_bytes;
        };
        const int32_t * last = next_ - 1;
        while (last + 1 < end_ && joins(*last, last[1])) {
            ++last;
        }
        file_.load(head_, values_, position, static_cast<uint32_t>(*last - position) + 1, room_);
        first_    = position;
        read_end_ = last + 1;
    }
    return file_.row(head_, values_, first_, static_cast<uint32_t>(position - first_), room_, rope_position, true);
}

} // namespace edgekv
