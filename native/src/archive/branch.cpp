// Files of rows that have their first segments in common: each goes on in a file of its own.
#include "archive/segment_file.h"

#include <algorithm>

namespace edgekv {

void SegmentFile::branch(int32_t begin, int32_t end, int fd) {
    const auto    segment = static_cast<uint32_t>(end) / n_tokens;
    const int32_t first   = std::max(begin, end - static_cast<int32_t>(static_cast<uint32_t>(end) % n_tokens));
    const auto    n       = static_cast<uint32_t>(end - first); // that are copied
    SegmentFile   branched(*this);
    branched.parts_.push_back({ fd, 0, segment });

    std::vector<int32_t> rope_positions(n);
    for (size_t head = 0; n > 0 && head < heads_.size(); ++head) {
        std::vector<char> bytes(room(std::max(heads_[head].k, heads_[head].v)));
        for (const bool values : { false, true }) {
            if ((values ? heads_[head].v : heads_[head].k) > 0) {
                const char * rows = read(head, values, first, n, bytes.data(), rope_positions.data());
                branched.write(head, values, first, n, rows, rope_positions.data());
            }
        }
    }
    branched.drop_before_last();
    *this = std::move(branched);
}

void SegmentFile::resume(int fd, uint64_t offset, int32_t first) {
    parts_.push_back({ fd, offset, static_cast<uint32_t>(first) / n_tokens });
    drop_before_last();
}

// Drop the parts that begin with the segment of the last one, or later.
void SegmentFile::drop_before_last() {
    const auto last = parts_.end() - 1;
    parts_.erase(std::find_if(parts_.begin(), last, [&](const Part & part) { return part.first_segment >= last->first_segment; }), last);
}

} // namespace edgekv
