#include "archive/turn_recalled.h"

#include "hooks/status.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace edgekv {

namespace {

// The next key, and the RoPE position that it was archived by; NULL = it cannot be read.
char * next_key(SegmentFile::Few & archived, int32_t & rope_position) {
    try {
        int32_t archived_at;
        char *  key   = archived.next(archived_at);
        rope_position = archived_at;
        return key;
    } catch (const Error &) {
        return nullptr;
    }
}

// Of one head; its last key comes before `end`.
void turn_head(edgekv_cache & cache, const edgekv_archive & archive, uint32_t il, uint32_t g, int32_t end, char * room,
               std::vector<int32_t> & positions, RowWriter & writer) {
    const edgekv_layer & layer = cache.layers()[il];
    const HeadCells      cells = cache.cells(il, g);
    const size_t         size  = layer.k->nb[1];
    RowCopy * const      copy  = cache.is_copied(cache.pools()[layer.pool]) ? &cache.workspace().copy_k : nullptr;
    const auto is_archived = [&](uint32_t cell) {
        const int32_t p = cells.position[cell];
        return p >= archive.begin() && p < archive.end();
    };
    positions.clear();
    for (uint32_t i = 0; i < cells.n; ++i) {
        if (is_archived(cells.order[i])) {
            positions.push_back(cells.position[cells.order[i]]);
        }
    }
    std::optional<HostRows> held; // the keys as the cells have them, once one is missed
    SegmentFile::Few archived(archive.file(), layer.first_head + g, false, positions.data(), positions.size(), room + size);
    turn_in_order(cells, cells.n, end, [&](uint32_t cell, int32_t to) {
        int32_t from = cells.rope_position[cell];
        char *  key  = is_archived(cell) ? next_key(archived, from) : nullptr;
        if (key == nullptr) {
            if (!held) {
                held.emplace(layer.k, cache.first_row(il, g), cells.n, copy);
            }
            key = room;
            std::memcpy(key, held->row(cell), size);
        }
        cache.workspace().turns[il].turn(key, to - from);
        writer.write(false, cache.first_row(il, g) + cell, key);
    });
}

} // namespace

void turn_recalled(edgekv_cache & cache, const edgekv_archive & archive, char * room, std::vector<int32_t> & positions, RowWriter & writer) {
    uint32_t end = 0;
    for (size_t pool = 0; pool < cache.pools().size(); ++pool) {
        each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) { end = std::max(end, cache.cells(il, g).n); });
    }
    try {
        for (size_t pool = 0; pool < cache.pools().size(); ++pool) {
            writer.begin(pool);
            each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) {
                turn_head(cache, archive, il, g, static_cast<int32_t>(end), room, positions, writer);
            });
            writer.finish();
        }
    } catch (...) {
        cache.clear();
        throw;
    }
    cache.go_on_at(static_cast<int32_t>(end));
}

} // namespace edgekv
