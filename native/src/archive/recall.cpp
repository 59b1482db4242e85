#include "archive/recall.h"

#include "archive/contest.h"
#include "archive/turn_recalled.h"
#include "hooks/aborts.h"
#include "hooks/status.h"

#include <algorithm>
#include <cmath>
#include <functional>
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
    note_cells();
    const size_t n_threads = n_workers(cache.shape);
    team_.emplace(n_threads);
    found_.counts.resize(n_held_.size());
    n_needed_.resize(n_held_.size());
    if (found_.n == 0) {
        return;
    }
    found_.most = most_of(std::min_element(n_held_.begin(), n_held_.end()) - n_held_.begin());
    found_.positions.resize(size_t(found_.most) * n_held_.size());
    found_.rope_positions.resize(found_.positions.size());
    scores_.resize(found_.positions.size());
    params_.n_needed = std::min(params_.n_needed, params_.n_cells);
    needed_.resize(n_held_.size() * size_t(params_.n_needed));
    needed_scores_.resize(needed_.size());
    make_rests();
    llama_synchronize(cache.ctx);
    copy_own_keys();
    each_head([&](uint32_t il, uint32_t g) { heads_.emplace_back(il, g); });
    for (size_t i = 0; i < n_threads; ++i) {
        scans_.emplace_back(scan_size(cache.shape, cache.n_probe()));
        bests_.emplace_back(found_.most, params_.n_needed, params.before, params.after, params.n_sink);
    }
}

void Recall::scan(uint32_t n) {
    const int64_t start_us = ggml_time_us();
    n                      = std::min(n, n_heads_left());
    if (n > 0) {
        team_->each(n, [&](size_t task, size_t thread) {
            const size_t head = n_scanned_ + task;
            scan_head(heads_[head].first, heads_[head].second, scans_[thread], bests_[thread]);
            bests_[thread].write(found_.positions.data() + head * found_.most, scores_.data() + head * found_.most);
            found_.counts[head] = bests_[thread].n();
            bests_[thread].write_needed(needed_.data() + head * params_.n_needed, needed_scores_.data() + head * params_.n_needed);
            n_needed_[head] = bests_[thread].n_needed();
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

// Count what every head holds and lacks, and with them what heads get on average: no more than is free, nor than they lack. Where heads
// cannot lie unlike, no more than the head does that lacks the fewest.
void Recall::note_cells() {
    std::vector<uint64_t> lacking(cache_.pools().size(), 0);
    found_.n = std::min(params_.n_cells, cache_.n_free() + cache_.n_recalled());
    each_head([&](uint32_t il, uint32_t g) {
        const std::vector<int32_t> has = held(il, g);
        const auto n_archived = std::count_if(has.begin(), has.end(), [&](int32_t p) { return p >= archive_.begin() && p < archive_.end(); });
        const auto n_lacking  = static_cast<uint32_t>(archive_.end() - archive_.begin() - n_archived);
        n_held_.push_back(static_cast<uint32_t>(has.size()));
        n_lacking_.push_back(n_lacking);
        held_rest_.push_back(std::min(n_held_.back(), cache_.cells(il, g).rest()));
        lacking[cache_.layers()[il].pool] += n_lacking;
        const uint32_t n_most = n_lacking - std::min(n_lacking, uint32_t(held_rest_.back() < n_held_.back())); // so that a rest stays one
        found_.n              = cache_.takes_unevenly() ? found_.n : std::min(found_.n, n_most);
    });
    uint64_t most = 0;
    for (size_t pool = 0; pool < lacking.size(); ++pool) {
        const uint64_t n_heads = cache_.pools()[pool].n_heads;
        most                   = std::max(most, (lacking[pool] + n_heads - 1) / n_heads);
    }
    found_.n = static_cast<uint32_t>(std::min<uint64_t>(found_.n, most));
}

// The most that a head may get: others get fewer then. What is left open is left so in every head.
uint32_t Recall::most_of(size_t head) const {
    if (!cache_.takes_unevenly()) {
        return found_.n;
    }
    const uint32_t n_left = cache_.n_free() + cache_.n_recalled() - found_.n;
    return std::min(EDGEKV_RECALL_LIMIT * found_.n, cache_.shape.n_cells_max - std::min(cache_.shape.n_cells_max, n_held_[head] + n_left));
}

// One of the cells that a head gets stands for all tokens that it lacks then. Turned keys have no mean, and the value of a latent is a
// part of its key. One cell alone is worth more as a token.
void Recall::make_rests() {
    const bool latent = std::any_of(cache_.layers().begin(), cache_.layers().end(), [](const auto & layer) { return layer.is_latent(); });
    if (params_.with_rest == 0 || is_turned_ || latent || found_.n < 2) {
        return;
    }
    each_head([&](uint32_t il, uint32_t) { rests_.emplace_back(cache_.layers()[il].head_dim_k, cache_.layers()[il].head_dim_v); });
    n_rests_.resize(rests_.size());
    rest_room_.resize(std::max(cache_.shape.head_dim_k, cache_.shape.head_dim_v));
}

// Heads that share a pool share its rows.
void Recall::choose() {
    for (size_t pool = 0; pool < cache_.pools().size(); ++pool) {
        std::vector<size_t> heads;
        each_head_of(cache_.layers(), pool, [&](uint32_t il, uint32_t g) { heads.push_back(cache_.layers()[il].first_head + g); });
        keep_best(found_, scores_, heads, found_.n * heads.size());
        choose_needed(heads);
        if (!rests_.empty()) {
            choose_rests(heads);
        }
    }
}

// Of the tokens that heads hold, those that would have been recalled had they lacked them.
void Recall::choose_needed(const std::vector<size_t> & heads) {
    float least = INFINITY;
    for (const size_t head : heads) {
        const auto first = scores_.begin() + head * found_.most;
        least            = std::accumulate(first, first + found_.counts[head], least, [](float a, float b) { return std::min(a, b); });
    }
    for (const size_t head : heads) {
        int32_t * const position = needed_.data() + head * params_.n_needed;
        const float *   score    = needed_scores_.data() + head * params_.n_needed;
        uint32_t        n_left   = 0;
        for (uint32_t i = 0; i < n_needed_[head]; ++i) {
            if (score[i] > least) {
                position[n_left++] = position[i];
            }
        }
        n_needed_[head] = n_left;
    }
}

size_t Recall::n_needed(uint32_t * counts) const {
    std::copy(n_needed_.begin(), n_needed_.end(), counts);
    return std::accumulate(n_needed_.begin(), n_needed_.end(), size_t(0));
}

void Recall::write_needed(int32_t * positions) const {
    for (size_t head = 0; head < n_needed_.size(); ++head) {
        positions = std::copy_n(needed_.begin() + head * params_.n_needed, n_needed_[head], positions);
    }
}

// Give each head that cannot get all that it lacks a rest, its first recalled cell: if it holds one of an earlier recall, in its place.
void Recall::choose_rests(const std::vector<size_t> & heads) {
    const auto n_left    = [&](size_t head) { return n_lacking_[head] - found_.counts[head]; };
    const auto has_rest  = [&](size_t head) { return held_rest_[head] < n_held_[head]; };
    const auto gets_one  = [&](size_t head) { return !has_rest(head) && most_of(head) > 0; };
    const auto most_left = [&](size_t head) { return has_rest(head) ? n_lacking_[head] - std::min(1u, n_lacking_[head]) : most_of(head) - 1; };
    std::vector<size_t> lacking;
    size_t              n = found_.n * heads.size(); // cells for those that lack some
    for (const size_t head : heads) {
        if (has_rest(head) || (gets_one(head) && n_left(head) > 0)) {
            keep_best(found_, scores_, { head }, most_left(head));
            lacking.push_back(head);
        } else {
            n -= found_.counts[head];
        }
    }
    size_t n_new = std::min<size_t>(n, std::count_if(lacking.begin(), lacking.end(), gets_one)); // heads that get all may leave few
    if (cache_.takes_unevenly()) {
        keep_best(found_, scores_, lacking, n - n_new);
    }
    for (const size_t head : lacking) {
        n_rests_[head] = has_rest(head) || n_new > 0 ? n_left(head) : 0;
        if (n_rests_[head] > 0 && gets_one(head)) {
            --n_new;
            int32_t * const position = found_.positions.data() + head * found_.most;
            std::copy_backward(position, position + found_.counts[head], position + found_.counts[head] + 1);
            position[0] = found_.rope_positions[head * found_.most] = rest_position;
            ++found_.counts[head];
        }
    }
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
    const RopeUndo *           undo    = is_turned_ && cache_.workspace().undo[il].turns() ? &cache_.workspace().undo[il] : nullptr;
    if (undo != nullptr && cache_.rotation() > 0) { // as keys that are read with it
        rotate_hadamard(scan.queries(), queries.n_head * queries.n_rows * layer.head_dim_k, cache_.rotation());
    }
    best.begin(archive_.begin(), &has, most_of(layer.first_head + g));
    Rest * const rest = rests_.empty() ? nullptr : &rests_[layer.first_head + g];
    if (rest != nullptr) {
        rest->begin(archive_.begin(), archive_.end(), has, most_of(layer.first_head + g));
    }
    scan.run(archive_, { layer.first_head + g, format(il, false), undo, own_keys(il, g), cache_.n_probe_keys(), format(il, true), rest }, queries,
             has, best);
}

// How the rows of a head are stored, without them.
edgekv_rows Recall::format(uint32_t il, bool values) const {
    const edgekv_layer & layer  = cache_.layers()[il];
    const ggml_tensor *  tensor = values ? layer.v : layer.k;
    const uint32_t       dim    = values ? layer.head_dim_v : layer.head_dim_k;
    return { sizeof(edgekv_rows), tensor->type, nullptr, 0, tensor->nb[1], dim, values ? cache_.value_rotation() : cache_.rotation() };
}

// The keys of the probe's tokens, which lie behind the cells of a head.
const char * Recall::own_keys(uint32_t il, uint32_t g) const {
    const edgekv_layer & layer = cache_.layers()[il];
    if (!own_.empty()) {
        return own_[layer.first_head + g];
    }
    return static_cast<const char *>(layer.k->data) + (cache_.first_row(il, g) + cache_.cells(il, g).n) * layer.k->nb[1];
}

// Keys on a device are read at once for all heads.
void Recall::copy_own_keys() {
    if (!cache_.is_copied() || cache_.n_probe_keys() == 0) {
        return;
    }
    RowReader reader(cache_, false);
    own_.resize(cache_.shape.n_head_total);
    for (size_t pool = 0; pool < cache_.pools().size(); ++pool) {
        std::vector<uint32_t> firsts;
        std::vector<size_t>   heads;
        each_head_of(cache_.layers(), pool, [&](uint32_t il, uint32_t g) {
            firsts.push_back(cache_.first_row(il, g) + cache_.cells(il, g).n);
            heads.push_back(cache_.layers()[il].first_head + g);
        });
        reader.read(pool, firsts, cache_.n_probe_keys(), own_room_, [&](size_t i, const char * keys, const char *) { own_[heads[i]] = keys; });
    }
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
    if (cache.layers().empty()) {
        return {};
    }
    const int64_t        start_us  = ggml_time_us();
    const uint32_t       row_bytes = scan_size(cache.shape, 0).row_bytes;
    std::vector<char>    room(row_bytes + SegmentFile::room(row_bytes));
    std::vector<int32_t> positions;
    positions.reserve(is_turned_ ? cache.shape.n_cells_max : 0);
    choose();
    std::vector<uint32_t> n_before_open = n_held_;
    std::transform(n_held_.begin(), n_held_.end(), found_.counts.begin(), n_before_open.begin(), std::plus<>());
    HeadMoves moves(cache, n_held_);
    RowWriter writer(cache);

    // from here on only the file and a device can fail, and nothing is allocated
    const Computing computing;
    make_room(cache, n_before_open, moves);
    try {
        load_rows(cache, room.data(), writer);
        write_rests(cache, room.data(), writer);
    } catch (...) {
        make_room(cache, n_held_, moves);
        throw;
    }
    const uint32_t n = found_.n;
    cache.take_recalled(std::move(found_));
    if (is_turned_ && n > 0) {
        turn_recalled(cache, archive_, room.data(), positions, writer);
    }
    return { n, uint64_t(archive_.end() - archive_.begin()) * cache.shape.n_head_total, scan_us_, ggml_time_us() - start_us };
}

// Lay the rows out anew. If a device fails meanwhile, they are lost, and the cache is emptied.
void Recall::make_room(edgekv_cache & cache, const std::vector<uint32_t> & n_before_open, HeadMoves & moves) {
    try {
        cache.make_room(n_before_open);
        moves.move(cache, *team_);
    } catch (...) {
        cache.clear();
        throw;
    }
}

// Read what every head gets to the rows behind those that it holds.
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
    const size_t   first = head * found_.most;
    const size_t   row   = cache.first_row(il, g) + n_held_[head];
    const size_t   size  = values ? archive_.file().heads()[head].v : archive_.file().heads()[head].k;
    const uint32_t n     = size > 0 ? found_.counts[head] : 0;
    const uint32_t begin = n > 0 && found_.positions[first] == rest_position ? 1 : 0;
    SegmentFile::Few rows(archive_.file(), head, values, found_.positions.data() + first + begin, n - begin, room);
    for (uint32_t i = begin; i < n; ++i) {
        int32_t      rope_position;
        const char * bytes = rows.next(rope_position);
        if (!values) {
            found_.rope_positions[first + i] = rope_position;
        }
        writer.write(values, row + i, bytes);
        if (!rests_.empty() && n_rests_[head] > 0 && rests_[head].takes(found_.positions[first + i])) {
            edgekv_rows one = format(il, values);
            one.data        = bytes;
            one.n           = 1;
            Rows(one).read(0, rest_room_.data());
            rests_[head].remove(values, rest_room_.data());
        }
    }
}

// Once all rows were read, so that a file that cannot be read changes no rest that a head holds.
void Recall::write_rests(const edgekv_cache & cache, char * room, RowWriter & writer) {
    for (size_t pool = 0; pool < cache.pools().size() && !rests_.empty(); ++pool) {
        writer.begin(pool);
        for (const bool values : { false, true }) {
            each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) {
                const size_t head = cache.layers()[il].first_head + g;
                if (n_rests_[head] > 0) {
                    write_rest(cache, il, g, values, room);
                    writer.write(values, rest_row(il, g), room);
                }
            });
        }
        writer.finish();
    }
}

// Write a rest's key or value to `room` as its type stores it. If it has no such key, as one of f16 that is too large, it is the mean alone.
void Recall::write_rest(const edgekv_cache & cache, uint32_t il, uint32_t g, bool values, char * room) {
    const size_t  head = cache.layers()[il].first_head + g;
    const Rest &  rest = rests_[head];
    edgekv_rows   one  = format(il, values);
    float * const row  = rest_room_.data();
    one.data           = room;
    one.n              = 1;
    const auto store   = [&] { row_from_float(one.type)(row, room, one.dim); };
    if (values) {
        rest.write_value(row);
        store();
        return;
    }
    rest.write_key(n_rests_[head], row);
    store();
    Rows(one).read(0, row);
    if (!std::all_of(row, row + one.dim, [](float x) { return std::isfinite(x); })) {
        rest.write_mean_key(row);
        store();
    }
}

size_t Recall::rest_row(uint32_t il, uint32_t g) const {
    const size_t head = cache_.layers()[il].first_head + g;
    return cache_.first_row(il, g) + held_rest_[head]; // behind the cells that it holds, if it holds none
}

size_t Recall::n_workers(const edgekv_shape & shape) { return std::max(1u, std::min(shape.n_threads, shape.n_head_total)); }

uint64_t Recall::estimate_bytes(const edgekv_shape & shape, uint32_t n_probe, uint32_t n_cells) {
    const ScanSize size     = scan_size(shape, n_probe);
    const uint64_t most     = std::min<uint64_t>(EDGEKV_RECALL_LIMIT * uint64_t(n_cells), shape.n_cells_max);
    const uint64_t a_thread = Scan::bytes(size) + BestPositions::bytes(most, n_cells, 0) + shape.n_cells_max * sizeof(int32_t);
    const uint64_t a_head   = most * (2 * sizeof(int32_t) + 2 * sizeof(float)) + n_cells * (sizeof(int32_t) + sizeof(float)) +
                            7 * sizeof(uint32_t) + sizeof(heads_[0]) + HeadMoves::bytes(1) + sizeof(RowBytes) + sizeof(uint64_t);
    const uint64_t a_rest  = Rest::bytes(shape.head_dim_k, shape.head_dim_v) + sizeof(uint32_t);
    return n_workers(shape) * a_thread + shape.n_head_total * (a_head + a_rest) + size.dim * sizeof(float) + size.row_bytes + SegmentFile::room(size.row_bytes) +
           RowTransfer::bytes(is_staged(shape, staging())) + (is_staged(shape, staging()) ? uint64_t(n_probe) * shape.cell_bytes : 0);
}

ScanSize Recall::scan_size(const edgekv_shape & shape, uint32_t n_probe) {
    const uint32_t dim = std::max(shape.head_dim_k, shape.head_dim_v);
    return { dim, shape.n_group_max, n_probe, dim * static_cast<uint32_t>(sizeof(float)), shape.latent_dim_v > 0 ? 0 : shape.head_dim_k };
}

} // namespace edgekv
