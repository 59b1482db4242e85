#include "archive/segment_file.h"

#include "archive/file_access.h"
#include "hooks/status.h"

#include <cstring>

namespace edgekv {

namespace {

constexpr uint64_t odd = 0x9E3779B97F4A7C15; // 2^64 over the golden ratio: its multiples differ in all bits

// A checksum of a row at its place, so that no other row passes for it.
uint32_t sum_of(const char * row, size_t n, size_t head, bool values, int32_t p) {
    uint64_t sum = ((head << 1 | size_t(values)) << 32 | static_cast<uint32_t>(p)) * odd;
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, row + i, i + sizeof(word) <= n ? sizeof(word) : n - i);
        sum = (sum ^ word) * odd;
        sum ^= sum >> 32;
    }
    return static_cast<uint32_t>(sum);
}

} // namespace

SegmentFile::SegmentFile(int fd, std::vector<RowBytes> heads, int32_t begin) :
    fd_(fd), heads_(std::move(heads)), begins_(1, 0), first_segment_(static_cast<uint32_t>(begin) / n_tokens) {
    for (const RowBytes & head : heads_) {
        begins_.push_back(begins_.back() + bytes_of(head));
    }
}

uint64_t SegmentFile::place(size_t head, bool values, int32_t p) const {
    return segment_begin(p) + begins_[head] + (values ? room(heads_[head].k) : 0);
}

void SegmentFile::write(size_t head, bool values, int32_t p, uint32_t n, const char * rows) {
    const uint32_t first = static_cast<uint32_t>(p) % n_tokens;
    const size_t   size  = values ? heads_[head].v : heads_[head].k;
    const uint64_t at    = place(head, values, p);
    uint32_t       sums[n_tokens];
    for (uint32_t i = 0; i < n; ++i) {
        sums[i] = sum_of(rows + i * size, size, head, values, p + static_cast<int32_t>(i));
    }
    write_at(fd_, at + first * sizeof(sums[0]), sums, n * sizeof(sums[0]));
    write_at(fd_, at + sizeof(sums) + first * size, rows, n * size);
}

const char * SegmentFile::read(size_t head, bool values, int32_t p, uint32_t n, char * room, bool first) const {
    const uint32_t skipped = static_cast<uint32_t>(p) % n_tokens;
    const size_t   size    = values ? heads_[head].v : heads_[head].k;
    const uint64_t at      = place(head, values, p);
    uint32_t       sums[n_tokens];
    char *         rows = room + sizeof(sums);
    if (skipped == 0) { // as one run
        read_at(fd_, at, room, sizeof(sums) + n * size);
    } else {
        read_at(fd_, at + skipped * sizeof(sums[0]), room, n * sizeof(sums[0]));
        read_at(fd_, at + sizeof(sums) + skipped * size, rows, n * size);
    }
    std::memcpy(sums, room, sizeof(sums));
    for (uint32_t i = 0; first && i < n; ++i) {
        const int32_t position = p + static_cast<int32_t>(i);
        if (sums[i] != sum_of(rows + i * size, size, head, values, position)) {
            fail(EDGEKV_STATUS_ARCHIVE, "the archive is not what was written: a row of position %d has another checksum", position);
        }
    }
    return rows;
}

} // namespace edgekv
