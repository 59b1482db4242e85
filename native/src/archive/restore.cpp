#include "archive/restore.h"

#include "archive/row_transfer.h"
#include "evict/team.h"
#include "hooks/aborts.h"
#include "hooks/status.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace edgekv {

namespace {

// The cells of one head, and what a thread reads their rows with.
struct Head {
    const edgekv_cache &   cache;
    const edgekv_archive & archive;
    uint32_t               il;
    uint32_t               g;
    std::vector<char> &    room; // for rows of a segment

    void load(const FiledRows & filed, bool values, RowWriter & writer) const {
        const edgekv_layer & layer = cache.layers()[il];
        const HeadView       cells = cache.cells(il, g);
        const size_t         head  = layer.first_head + g;
        const size_t         size  = values ? archive.file().heads()[head].v : archive.file().heads()[head].k;

        std::vector<int32_t>  positions;
        std::vector<uint32_t> at;
        for (uint32_t i = 0; size > 0 && i < cells.n; ++i) {
            if (filed.has(cells, cells.order[i], values)) {
                at.push_back(cells.order[i]);
                positions.push_back(cells.position[at.back()]);
            }
        }
        SegmentFile::Few rows(archive.file(), head, values, positions.data(), positions.size(), room.data());
        for (const uint32_t cell : at) {
            int32_t      rope_position;
            const char * row = rows.next(rope_position);
            if (!values && rope_position != cells.rope_positions()[cell]) {
                fail(EDGEKV_STATUS_ARCHIVE, "the archive is not of this snapshot: the key of position %d was turned", cells.position[cell]);
            }
            writer.write(values, cache.first_row(il, g) + cell, row);
        }
    }
};

} // namespace

void restore_archived(edgekv_cache & cache, const edgekv_archive & archive) {
    archive.require_same_rows(cache);
    const FiledRows filed  = archive.filed(cache);
    uint32_t        widest = 0;
    for (const RowBytes & head : archive.file().heads()) {
        widest = std::max({ widest, head.k, head.v });
    }
    const size_t n_threads = cache.is_copied() ? 1 : std::max(1u, std::min(cache.shape.n_threads, cache.shape.n_head_total));
    std::vector<std::vector<char>> rooms(n_threads, std::vector<char>(SegmentFile::room(widest)));
    Team                           team(n_threads);
    RowWriter                      writer(cache);
    llama_synchronize(cache.ctx);
    const Computing computing;
    for (size_t pool = 0; pool < cache.pools().size(); ++pool) {
        std::vector<std::pair<uint32_t, uint32_t>> heads; // layer and KV head of each
        each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) { heads.emplace_back(il, g); });
        writer.begin(pool);
        for (const bool values : { false, true }) {
            team.each(heads.size(), [&](size_t i, size_t thread) {
                const Head head = { cache, archive, heads[i].first, heads[i].second, rooms[thread] };
                head.load(filed, values, writer);
            });
        }
        writer.finish();
    }
}

} // namespace edgekv
