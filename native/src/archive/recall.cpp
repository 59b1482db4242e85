#include "archive/recall.h"

#include "hooks/aborts.h"
#include "hooks/status.h"

#include <algorithm>
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
    const edgekv_queries       queries = cache_.probe_queries(il, g, params_.n_rows, scan.queries(), scan.positions());
    const edgekv_rows          format  = { sizeof(format), layer.k->type, nullptr, 0, layer.k->nb[1], layer.head_dim_k, cache_.rotation() };
    const RopeUndo *           undo    = is_turned_ && cache_.workspace().undo[il].turns() ? &cache_.workspace().undo[il] : nullptr;
    if (undo != nullptr && cache_.rotation() > 0) { // as keys that are read with it
        rotate_hadamard(scan.queries(), queries.n_head * queries.n_rows * layer.head_dim_k, cache_.rotation());
    }
    best.begin(archive_.begin(), &has);
    scan.run(archive_, { layer.first_head + g, format, undo }, queries, best);
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

    // from here on only the file can fail, and nothing is allocated
    const uint32_t  n = found_.n;
    const Computing computing;
    cache.drop_recalled();
    if (n > 0) {
        each_head([&](uint32_t il, uint32_t g) { load_head(cache, il, g, room.data()); });
        cache.take_recalled(std::move(found_));
        found_.n = 0;
    }
    if (is_turned_ && n > 0) {
        turn_keys(cache, room.data(), positions);
    }
    return { n, uint64_t(archive_.end() - archive_.begin()) * cache.shape.n_head_total, scan_us_, ggml_time_us() - start_us };
}

// Read what a head gets to its next open rows, and the RoPE positions of these keys.
void Recall::load_head(const edgekv_cache & cache, uint32_t il, uint32_t g, char * room) {
    const edgekv_layer & layer = cache.layers()[il];
    const size_t         head  = layer.first_head + g;
    const size_t         first = head * found_.n;
    const uint32_t       n     = found_.n - found_.n_short[head];
    const size_t         row   = cache.first_row(il, g) + cache.cells(il, g).n;
    for (const bool values : { false, true }) {
        ggml_tensor * tensor = values ? layer.v : layer.k;
        const size_t  size   = values ? archive_.file().heads()[head].v : archive_.file().heads()[head].k;
        SegmentFile::Few rows(archive_.file(), head, values, found_.positions.data() + first, size > 0 ? n : 0, room);
        for (uint32_t i = 0; size > 0 && i < n; ++i) {
            int32_t      rope_position;
            const char * bytes = rows.next(rope_position);
            if (!values) {
                found_.rope_positions[first + i] = rope_position;
            }
            ggml_backend_tensor_set(tensor, bytes, (row + i) * size, size);
        }
    }
}

// Turn all keys of every head to adjacent RoPE positions, in order. A key is turned from its archived row, so that roundings do not add
// up. If there is none, or it cannot be read, the key is turned as the cell has it. This does not fail.
// room: for a key, and behind it for rows of a segment; positions: for those of a head
void Recall::turn_keys(edgekv_cache & cache, char * room, std::vector<int32_t> & positions) const {
    uint32_t end = 0;
    each_head([&](uint32_t il, uint32_t g) { end = std::max(end, cache.cells(il, g).n); });
    each_head([&](uint32_t il, uint32_t g) {
        const edgekv_layer & layer = cache.layers()[il];
        const HeadCells      cells = cache.cells(il, g);
        const uint32_t       n_hot = cells.n - cache.n_recalled(il, g);
        const size_t         size  = layer.k->nb[1];
        const auto           is_archived = [&](uint32_t cell) { // one that was recalled was read just now, and a mean has no archived row
            const int32_t p = cells.position[cell];
            return cell < n_hot && cells.log_count == nullptr && p >= archive_.begin() && p < archive_.end();
        };
        positions.clear();
        for (uint32_t i = 0; i < cells.n; ++i) {
            if (is_archived(cells.order[i])) {
                positions.push_back(cells.position[cells.order[i]]);
            }
        }
        SegmentFile::Few archived(archive_.file(), layer.first_head + g, false, positions.data(), positions.size(), room + size);
        turn_in_order(cells, cells.n, static_cast<int32_t>(end), [&](uint32_t cell, int32_t to) {
            const size_t at   = (cache.first_row(il, g) + cell) * size;
            int32_t      from = cells.rope_position[cell];
            char *       key  = is_archived(cell) ? next_key(archived, from) : nullptr;
            if (key == nullptr) {
                key = room;
                ggml_backend_tensor_get(layer.k, key, at, size);
            }
            cache.workspace().turns[il].turn(key, to - from);
            ggml_backend_tensor_set(layer.k, key, at, size);
        });
    });
    cache.go_on_at(static_cast<int32_t>(end));
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
    const uint64_t a_thread = Scan::bytes(size) + BestPositions::bytes(n_cells, 0, 0) + shape.n_cells_max * sizeof(int32_t);
    const uint64_t a_head   = (n_cells * 2 + 2) * sizeof(int32_t) + sizeof(heads_[0]) + sizeof(RowBytes) + sizeof(uint64_t);
    return n_workers(shape) * a_thread + shape.n_head_total * a_head + size.row_bytes + 2 * SegmentFile::room(size.row_bytes);
}

ScanSize Recall::scan_size(const edgekv_shape & shape, uint32_t n_probe) {
    const uint32_t dim = std::max(shape.head_dim_k, shape.head_dim_v);
    return { shape.head_dim_k, shape.n_group_max, n_probe, dim * static_cast<uint32_t>(sizeof(float)) };
}

} // namespace edgekv
