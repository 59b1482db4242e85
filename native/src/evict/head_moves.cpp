#include "evict/head_moves.h"

namespace edgekv {

HeadMoves::HeadMoves(const edgekv_cache & cache, const std::vector<uint32_t> & n) {
    moves_.reserve(n.size());
    for (uint32_t il = 0; il < cache.layers().size(); ++il) {
        for (uint32_t g = 0; g < cache.layers()[il].n_head_kv; ++g) {
            moves_.push_back({ &cache.layers()[il], cache.head_of(il, g), {}, n[moves_.size()] });
        }
    }
}

void HeadMoves::move(edgekv_cache & cache, Team & team) {
    for (size_t h = 0; h < moves_.size(); ++h) {
        moves_[h].to = cache.flat_.head(h);
    }
    move_on_devices(cache);
    team.each(3, [&](size_t task, size_t /*thread*/) {
        if (task < 2) {
            move_rows(cache, task == 1);
        } else {
            move_cells(cache);
        }
    });
    for (Move & move : moves_) {
        move.from = move.to;
    }
}

// Call f(move, from, to) for every head that begins elsewhere: at another row, or another cell. Heads stay in their order, so nothing is
// overwritten when those that move down go first, lowest first, and then those that move up, highest first.
template <typename F> void HeadMoves::each(uint32_t FlatCache::Head::* first, F f) const {
    for (auto move = moves_.begin(); move != moves_.end(); ++move) {
        if (move->to.*first < move->from.*first) {
            f(*move, move->from.*first, move->to.*first);
        }
    }
    for (auto move = moves_.rbegin(); move != moves_.rend(); ++move) {
        if (move->to.*first > move->from.*first) {
            f(*move, move->from.*first, move->to.*first);
        }
    }
}

void HeadMoves::move_on_devices(edgekv_cache & cache) const {
    each(&FlatCache::Head::first, [&](const Move & move, uint32_t from, uint32_t to) {
        RowGraphs * graphs = cache.workspace().moving(move.layer->pool);
        for (uint32_t i = 0; graphs != nullptr && i < move.n; ++i) {
            const uint32_t row = to < from ? i : move.n - 1 - i;
            graphs->move(from + row, to + row);
        }
    });
    cache.workspace().finish();
}

void HeadMoves::move_rows(edgekv_cache & cache, bool values) const {
    each(&FlatCache::Head::first, [&](const Move & move, uint32_t from, uint32_t to) {
        const edgekv_layer & layer = *move.layer;
        if (cache.workspace().moving(layer.pool) == nullptr && (!values || !layer.is_latent())) {
            cache.host_rows(layer, values, from, move.n).commit_to(to, move.n);
        }
    });
}

void HeadMoves::move_cells(edgekv_cache & cache) const {
    each(&FlatCache::Head::cell, [&](const Move & move, uint32_t from, uint32_t to) {
        const size_t offset = cache.pools()[move.layer->pool].offset;
        cache.cells_.move(offset + from, offset + to, move.n);
    });
}

} // namespace edgekv
