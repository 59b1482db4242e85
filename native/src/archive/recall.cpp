#include "archive/recall.h"

#include "hooks/aborts.h"
#include "hooks/status.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace edgekv {

Recall::Recall(const edgekv_cache & cache, const edgekv_archive & archive, const edgekv_recall_params & params) :
    cache_(cache),
    archive_(archive),
    params_(params),
    is_turned_(cache.is_turned() || archive.is_turned()),
    found_{},
    n_past_(cache.n_past),
    n_free_(cache.n_free()) {
    if (cache.layers().empty()) { // nothing is ever evicted
        return;
    }
    check();
    found_.n = n_wanted(params.n_cells);
    if (found_.n == 0) {
        return;
    }
    found_.n_short.resize(cache.shape.n_head_total);
    found_.positions.resize(size_t(found_.n) * cache.shape.n_head_total);
    found_.rope_positions.resize(found_.positions.size());
    llama_synchronize(cache.ctx);
    for (uint32_t il = 0; il < cache.layers().size(); ++il) {
        for (uint32_t g = 0; g < cache.layers()[il].n_head_kv; ++g) {
            heads_.emplace_back(il, g);
        }
    }
    const size_t n_threads = n_workers(cache.shape);
    for (size_t i = 0; i < n_threads; ++i) {
        scans_.emplace_back(scan_size(cache.shape, cache.n_probe()));
        bests_.emplace_back(found_.n, params.before, params.after);
    }
    team_.emplace(n_threads);
}

void Recall::scan(uint32_t n) {
    const int64_t start_us = ggml_time_us();
    n                      = std::min(n, n_heads_left());
    if (n > 0) {
        team_->each(n, [&](size_t task, size_t thread) {
            const size_t head = n_scanned_ + task;
            scan_head(heads_[head].first, heads_[head].second, scans_[thread], bests_[thread]);
            bests_[thread].write(found_.positions.data() + head * found_.n);
            found_.n_short[head] = found_.n - bests_[thread].n();
        });
    }
    n_scanned_ += n;
    scan_us_ += ggml_time_us() - start_us;
}

void Recall::check() const {
    archive_.require_same_rows(cache_);
    if (cache_.n_probe() == 0) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "there was no probe whose queries could recall");
    }
    if (archive_.end() > cache_.n_past || (archive_.end() < cache_.n_past && !archive_.is_full())) {
        fail(EDGEKV_STATUS_INVALID_STATE, "the archive ends at position %d, but %d tokens were fed; append to it, or cut it", archive_.end(),
             cache_.n_past);
    }
}

// As many as are free, and as the head that lacks most archived tokens does. A head that lacks fewer gets as many as it lacks, and keeps
// a row before its open ones.
uint32_t Recall::n_wanted(uint32_t n_cells) const {
    const uint32_t n_open = cache_.n_open_used() - cache_.n_recalled();
    uint32_t       most   = 0;
    n_cells               = std::min(n_cells, cache_.n_free() + cache_.n_recalled());
    each_head([&](uint32_t il, uint32_t g) {
        const std::vector<int32_t> has = held(il, g);
        const auto     n_archived = std::count_if(has.begin(), has.end(), [&](int32_t p) { return p >= archive_.begin() && p < archive_.end(); });
        const auto     n_lacking  = static_cast<uint32_t>(archive_.end() - archive_.begin() - n_archived);
        const uint32_t n_before   = static_cast<uint32_t>(has.size()) - n_open; // its open rows
        const uint32_t n_fewer    = cache_.takes_unevenly() && n_before > 0 ? n_before - 1 : 0;
        n_cells                   = std::min(n_cells, n_lacking + n_fewer);
        most                      = std::max(most, n_lacking);
    });
    return std::min(n_cells, most);
}

// Positions that a head holds beside those of an earlier recall, ascending.
std::vector<int32_t> Recall::held(uint32_t il, uint32_t g) const {
    const HeadView       head   = cache_.cells(il, g);
    const uint32_t       n_held = head.n - cache_.n_recalled(il, g);
    std::vector<int32_t> positions;
    for (uint32_t i = 0; i < head.n; ++i) {
        if (head.order[i] < n_held) {
            positions.push_back(head.position[head.order[i]]);
        }
    }
    return positions;
}

void Recall::scan_head(uint32_t il, uint32_t g, Scan & scan, BestPositions & best) {
    const edgekv_layer &       layer = cache_.layers()[il];
    const std::vector<int32_t> has   = held(il, g);
    const edgekv_queries       queries = queries_of(il, g, scan);
    const edgekv_rows          format  = { sizeof(format), layer.k->type, nullptr, 0, layer.k->nb[1], layer.head_dim_k, cache_.rotation() };
    const RopeUndo *           undo    = is_turned_ && cache_.workspace().undo[il].turns() ? &cache_.workspace().undo[il] : nullptr;
    if (undo != nullptr && cache_.rotation() > 0) { // as keys that are read with it
        rotate_hadamard(scan.queries(), queries.n_head * queries.n_rows * layer.head_dim_k, cache_.rotation());
    }
    best.begin(archive_.begin(), &has);
    scan.run(archive_, { layer.first_head + g, format, undo }, queries, best);
}

// Queries on a device are read once for all heads of a layer, by one thread.
edgekv_queries Recall::queries_of(uint32_t il, uint32_t g, Scan & scan) {
    if (!cache_.is_copied(cache_.pools()[cache_.layers()[il].pool])) {
        return cache_.probe_queries(il, g, params_.n_rows, scan.queries(), scan.positions());
    }
    const std::lock_guard<std::mutex> lock(copying_);
    if (!queries_ || queries_layer_ != il) {
        queries_.emplace(cache_.copied_probe(il, params_.n_rows));
        queries_layer_ = il;
    }
    return cache_.probe_queries(il, g, params_.n_rows, scan.queries(), scan.positions(), &*queries_);
}

edgekv_recall Recall::commit(edgekv_cache & cache) {
    if (n_heads_left() > 0 || &cache != &cache_ || cache.n_past != n_past_ || cache.n_free() != n_free_) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "a recall ends after all heads were scanned, with the cells that it began with; scan on, or "
                                                 "begin another one");
    }
    const int64_t        start_us  = ggml_time_us();
    const uint32_t       row_bytes = scan_size(cache.shape, 0).row_bytes;
    std::vector<char>    room(row_bytes + SegmentFile::room(row_bytes));
    std::vector<int32_t> positions;
    positions.reserve(is_turned_ ? cache.shape.n_cells_max : 0);
    RowWriter writer(cache);

    // from here on only the file and a device can fail, and nothing is allocated
    const uint32_t  n = found_.n;
    const Computing computing;
    cache.drop_recalled();
    if (n > 0) {
        load_rows(cache, room.data(), writer);
        cache.take_recalled(std::move(found_));
        found_.n = 0;
    }
    if (is_turned_ && n > 0) {
        turn_keys(cache, room.data(), positions, writer);
    }
    return { n, uint64_t(archive_.end() - archive_.begin()) * cache.shape.n_head_total, scan_us_, ggml_time_us() - start_us };
}

// Read what every head gets to its next open rows.
void Recall::load_rows(const edgekv_cache & cache, char * room, RowWriter & writer) {
    for (size_t pool = 0; pool < cache.pools().size(); ++pool) {
        writer.begin(pool);
        for (const bool values : { false, true }) {
            each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) { load_head(cache, il, g, values, room, writer); });
        }
        writer.finish();
    }
}

// Keys come with the RoPE positions that they were archived by.
void Recall::load_head(const edgekv_cache & cache, uint32_t il, uint32_t g, bool values, char * room, RowWriter & writer) {
    const size_t   head  = cache.layers()[il].first_head + g;
    const size_t   first = head * found_.n;
    const size_t   row   = cache.first_row(il, g) + cache.cells(il, g).n;
    const size_t   size  = values ? archive_.file().heads()[head].v : archive_.file().heads()[head].k;
    const uint32_t n     = size > 0 ? found_.n - found_.n_short[head] : 0;
    SegmentFile::Few rows(archive_.file(), head, values, found_.positions.data() + first, n, room);
    for (uint32_t i = 0; i < n; ++i) {
        int32_t      rope_position;
        const char * bytes = rows.next(rope_position);
        if (!values) {
            found_.rope_positions[first + i] = rope_position;
        }
        writer.write(values, row + i, bytes);
    }
}

// Turn all keys of every head to adjacent RoPE positions, in order. A key is turned from its archived row, so that roundings do not add
// up. If there is none, or it cannot be read, the key is turned as the cell has it.
void Recall::turn_keys(edgekv_cache & cache, char * room, std::vector<int32_t> & positions, RowWriter & writer) const {
    uint32_t end = 0;
    each_head([&](uint32_t il, uint32_t g) { end = std::max(end, cache.cells(il, g).n); });
    try {
        for (size_t pool = 0; pool < cache.pools().size(); ++pool) {
            writer.begin(pool);
            each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) {
                turn_head(cache, il, g, static_cast<int32_t>(end), room, positions, writer);
            });
            writer.finish();
        }
    } catch (...) {
        cache.clear();
        throw;
    }
    cache.go_on_at(static_cast<int32_t>(end));
}

// room: for a key, and behind it for rows of a segment; positions: for those of a head
void Recall::turn_head(edgekv_cache & cache, uint32_t il, uint32_t g, int32_t end, char * room, std::vector<int32_t> & positions,
                       RowWriter & writer) const {
    const edgekv_layer & layer = cache.layers()[il];
    const HeadCells      cells = cache.cells(il, g);
    const size_t         size  = layer.k->nb[1];
    RowCopy * const      copy  = cache.is_copied(cache.pools()[layer.pool]) ? &cache.workspace().copy_k : nullptr;
    const auto is_archived = [&](uint32_t cell) {
        const int32_t p = cells.position[cell];
        return p >= archive_.begin() && p < archive_.end();
    };
    positions.clear();
    for (uint32_t i = 0; i < cells.n; ++i) {
        if (is_archived(cells.order[i])) {
            positions.push_back(cells.position[cells.order[i]]);
        }
    }
    std::optional<HostRows> held; // the keys as the cells have them, once one is missed
    SegmentFile::Few archived(archive_.file(), layer.first_head + g, false, positions.data(), positions.size(), room + size);
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

// The next key, and the RoPE position that it was archived by; NULL = it cannot be read.
char * Recall::next_key(SegmentFile::Few & archived, int32_t & rope_position) {
    try {
        int32_t archived_at;
        char *  key   = archived.next(archived_at);
        rope_position = archived_at;
        return key;
    } catch (const Error &) {
        return nullptr;
    }
}

size_t Recall::n_workers(const edgekv_shape & shape) { return std::max(1u, std::min(shape.n_threads, shape.n_head_total)); }

uint64_t Recall::estimate_bytes(const edgekv_shape & shape, uint32_t n_probe, uint32_t n_cells) {
    const ScanSize size     = scan_size(shape, n_probe);
    const uint64_t a_thread = Scan::bytes(size) + BestPositions::bytes(n_cells, 0) + shape.n_cells_max * sizeof(int32_t);
    const uint64_t a_head   = (n_cells * 2 + 2) * sizeof(int32_t) + sizeof(heads_[0]) + sizeof(RowBytes) + sizeof(uint64_t);
    return n_workers(shape) * a_thread + shape.n_head_total * a_head + size.row_bytes + SegmentFile::room(size.row_bytes) +
           RowTransfer::bytes(is_staged(shape, staging()));
}

ScanSize Recall::scan_size(const edgekv_shape & shape, uint32_t n_probe) {
    const uint32_t dim = std::max(shape.head_dim_k, shape.head_dim_v);
    return { shape.head_dim_k, shape.n_group_max, n_probe, dim * static_cast<uint32_t>(sizeof(float)) };
}

} // namespace edgekv
