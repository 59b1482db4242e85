// The moves of a compaction: survivors of a head close its gaps, then heads close up with one another.
#include "evict/compaction.h"
#include "hooks/status.h"
#include "llama-kv-cache.h"

#include <algorithm>
#include <cstring>

using namespace edgekv;

// Fill the holes below the budget with the survivors above it: no other row moves.
void Compaction::close_gaps(edgekv_cache & cache, uint32_t il, Scratch & scratch) {
    const edgekv_layer & layer    = layers_[il];
    const size_t         k_bytes  = layer.k->nb[1];
    const size_t         v_bytes  = layer.is_latent() ? 0 : layer.v->nb[1]; // the value of a latent goes with its key
    uint32_t *           moved_to = scratch.moved_to.data(); // by cell, of survivors above the budget
    RowGraphs *          graphs   = devices_.moving(layer);
    for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
        const HeadCells head   = cache.cells(il, g);
        const uint8_t * keep   = cache_.work(il, g).keep;
        const uint32_t  budget = budgets_[layer.first_head + g];
        const uint32_t  first  = cache_.head_of(il, g).first;
        HostRows        k      = devices_.rows(il, g, false, graphs != nullptr ? 0 : head.n);
        HostRows        v      = devices_.rows(il, g, true, graphs != nullptr || layer.is_latent() ? 0 : head.n);

        uint32_t hole = 0;
        for (uint32_t cell = budget; cell < head.n; ++cell) {
            if (!keep[cell]) {
                continue;
            }
            while (keep[hole]) {
                ++hole;
            }
            if (graphs != nullptr) {
                graphs->move(first + cell, first + hole);
            } else {
                std::memcpy(k.row(hole), k.row(cell), k_bytes);
                std::memcpy(v.row(hole), v.row(cell), v_bytes);
            }
            for (float * carried : { head.accumulated, head.wo_norm }) {
                if (carried != nullptr) {
                    carried[hole] = carried[cell];
                }
            }
            head.position[hole] = head.position[cell];
            if (head.rope_position != nullptr) {
                head.rope_position[hole] = head.rope_position[cell];
            }
            moved_to[cell] = hole++;
        }

        size_t n_kept = 0;
        for (uint32_t i = 0; i < head.n; ++i) {
            const uint32_t cell = head.order[i];
            if (keep[cell]) {
                head.order[n_kept++] = cell < budget ? cell : moved_to[cell];
            }
        }
        k.commit(graphs != nullptr ? 0 : budget);
        v.commit(graphs != nullptr || layer.is_latent() ? 0 : budget);
    }
}

// Turn the keys that each head of a layer keeps to adjacent RoPE positions, the last before `end`. New tokens have one position
// for all heads, so those that keep less begin later.
void Compaction::reposition(edgekv_cache & cache, uint32_t il, int32_t end) {
    RowGraphs * graphs = devices_.of(layers_[il]);
    if (graphs != nullptr) {
        graphs->finish(); // rows are where they turn
    }
    graphs = graphs != nullptr && graphs->turns(il) ? graphs : nullptr;
    for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
        const HeadCells head   = cache.cells(il, g);
        const uint32_t  n_kept = budgets_[layers_[il].first_head + g];
        const uint32_t  first  = cache_.head_of(il, g).first;
        HostRows        k      = devices_.rows(il, g, false, graphs != nullptr ? 0 : n_kept);
        turn_in_order(head, n_kept, end, [&](uint32_t cell, int32_t to) {
            const int32_t delta = to - head.rope_position[cell];
            if (graphs != nullptr && delta != 0) {
                graphs->turn(il, first + cell, delta);
            } else if (graphs == nullptr) {
                work_.turns[il].turn(k.row(cell), delta);
            }
        });
        k.commit(graphs != nullptr ? 0 : n_kept);
    }
    if (graphs != nullptr) {
        graphs->finish();
    }
}

// Where every head lies, layer by layer; where it goes is known once the rows are laid out.
HeadMoves Compaction::heads_to_move() const {
    if (!flat_.fits(budgets_, 0)) {
        throw Error(EDGEKV_STATUS_INTERNAL, "heads were to keep more than their pools hold");
    }
    return HeadMoves(cache_, budgets_);
}

// Lay the rows out by the budgets, and move what each head keeps to its new rows.
void Compaction::move_heads(edgekv_cache & cache) {
    const bool outgrown = flat_.is_outgrown();
    cache.flat_.lay_out(budgets_);
    moves_->move(cache, *team_);
    if (outgrown) {
        cache.flat_.return_rows();
    }
    cache.n_filled_ = cache.n_recalled_ = 0;
    cache.lose_probe_keys();
    cache.go_on_at(cache.rope_past);
}
