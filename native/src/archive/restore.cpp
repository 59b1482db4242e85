#include "archive/restore.h"

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

    void load(const FiledRows & filed, bool values) const {
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
            ggml_backend_tensor_set(values ? layer.v : layer.k, row, (cache.first_row(il, g) + cell) * size, size);
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
    std::vector<std::pair<uint32_t, uint32_t>> heads; // layer and KV head of each
    for (uint32_t il = 0; il < cache.layers().size(); ++il) {
        for (uint32_t g = 0; g < cache.layers()[il].n_head_kv; ++g) {
            heads.emplace_back(il, g);
        }
    }
    const size_t n_threads = std::max<size_t>(1, std::min<size_t>(cache.shape.n_threads, heads.size()));
    std::vector<std::vector<char>> rooms(n_threads, std::vector<char>(SegmentFile::room(widest)));
    Team                           team(n_threads);
    llama_synchronize(cache.ctx);
    const Computing computing;
    team.each(heads.size(), [&](size_t i, size_t thread) {
        const Head head = { cache, archive, heads[i].first, heads[i].second, rooms[thread] };
        head.load(filed, false);
        head.load(filed, true);
    });
}

} // namespace edgekv
