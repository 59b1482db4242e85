#include "archive/taken_segment.h"

namespace edgekv {

// Newest tokens lie in the newest open rows of every head.
TakenSegment::TakenSegment(const edgekv_cache & cache, RowReader & reader, int32_t p, uint32_t n) : begin_(p), end_(p + static_cast<int32_t>(n)) {
    runs_.reserve(cache.shape.n_head_total);
    rope_positions_.resize(size_t(cache.shape.n_head_total) * SegmentFile::n_tokens);
    std::vector<uint32_t> firsts; // rows
    for (size_t pool = 0; pool < cache.pools().size(); ++pool) {
        const size_t n_before = runs_.size();
        firsts.clear();
        each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) {
            const HeadView  cells = cache.cells(il, g);
            const uint32_t  cell  = cells.n - static_cast<uint32_t>(cache.n_past - p);
            const int32_t * at    = cells.rope_positions() + cell;
            is_turned_ |= !std::equal(at, at + n, cells.position + cell);
            std::copy_n(at, n, &rope_positions_[runs_.size() * SegmentFile::n_tokens]);
            runs_.push_back({ cache.layers()[il].first_head + size_t(g), nullptr, nullptr });
            firsts.push_back(static_cast<uint32_t>(cache.first_row(il, g)) + cell);
        });
        reader.read(pool, firsts, n, room_, [&](size_t i, const char * keys, const char * values) {
            runs_[n_before + i].keys   = keys;
            runs_[n_before + i].values = values;
        });
    }
}

uint64_t TakenSegment::write(SegmentFile & file, Team & team) const {
    const auto n = static_cast<uint32_t>(end_ - begin_);
    team.each(runs_.size(), [&](size_t i, size_t) {
        const Run & run = runs_[i];
        file.write(run.head, false, begin_, n, run.keys, &rope_positions_[i * SegmentFile::n_tokens]);
        if (file.heads()[run.head].v > 0) {
            file.write(run.head, true, begin_, n, run.values, nullptr);
        }
    });
    uint64_t n_bytes = 0;
    for (const Run & run : runs_) {
        const RowBytes & size = file.heads()[run.head];
        n_bytes += n * (size.k + SegmentFile::mark_bytes(false) + (size.v > 0 ? size.v + SegmentFile::mark_bytes(true) : 0));
    }
    return n_bytes;
}

} // namespace edgekv
