// What a cache decodes: tokens that stay, and probes that leave nothing but their queries.
#include "cache/cache.h"
#include "ggml-backend.h"
#include "hooks/status.h"
#include "hooks/streamed_weights.h"
#include "llama-batch.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

using namespace edgekv;

namespace {

// NaN and infinity have all exponent bits set. In integers this vectorises: it runs for every generated token.
bool all_finite(const float * values, size_t n) {
    uint32_t found = 0;
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof(bits));
        found |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return found == 0;
}

} // namespace

void edgekv_cache::check_draft(size_t n) const {
    if (n > params_.n_draft) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "a draft of %zu tokens, but the cache was opened for %u", n, params_.n_draft);
    }
}

void edgekv_cache::check_tokens(const llama_token * tokens, size_t n) const {
    require(tokens != nullptr && n > 0, "no tokens to feed");
    if (n > n_free()) {
        fail(EDGEKV_STATUS_INVALID_STATE, "%zu tokens need more than the %u free cells; compact first", n, n_free());
    }
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(&ctx->get_model()));
    for (size_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT, "token %d is not in [0, %d)", tokens[i], n_vocab);
        }
    }
    // llama.cpp's cells are ours alone: one that stands for all that was fed, at the last position
    const auto foreign = [&] {
        const auto & cells = kv->get_cells(0);
        return cells.get_used() != n_stand_ins() || cells.used_max_p1() != n_stand_ins() || cells.seq_pos_max(0) != rope_past - 1;
    };
    if ((kv != nullptr && foreign()) || (state_ && state_->last() != rope_past - 1) || (windows_ && windows_->last() != rope_past - 1)) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "something else fed or changed this context's cache; clear it and start again");
    }
}

// Let llama.cpp know no more than one cell, which stands for all that was fed and for n tokens of a batch. This does not fail.
void edgekv_cache::stand_in(uint32_t n) {
    if (kv != nullptr) {
        kv->keep_first(n > 0 ? 1 : n_stand_ins(), rope_past - 1 + static_cast<int32_t>(n));
    }
}

// Note what undo_batch needs.
void edgekv_cache::begin_batch() {
    if (state_) {
        llama_synchronize(ctx); // a device may not have computed the batch before yet
        state_->keep();
    }
    if (windows_) {
        windows_->begin(rope_past);
    }
}

// Make the cache what it was before a batch: its cells, windows and states. This does not fail.
void edgekv_cache::undo_batch() {
    stand_in();
    if (state_) {
        llama_synchronize(ctx); // what it computes later would change the states again
        state_->put_back();
    }
    if (windows_) {
        windows_->undo();
    }
}

// token: of the last batch
void edgekv_cache::check_logits(size_t token, int32_t position) const {
    const float * values = llama_get_logits_ith(ctx, static_cast<int32_t>(token));
    if (values == nullptr || !all_finite(values, llama_vocab_n_tokens(llama_model_get_vocab(&ctx->get_model())))) {
        fail(EDGEKV_STATUS_NOT_FINITE, "the logits of position %d are not finite; the model's weights are damaged", position);
    }
}

// Decode one batch, n_before tokens after those that were fed, with logits of its last n_logits tokens, the first of which are
// checked. On failure llama.cpp's cells are left as they come out.
void edgekv_cache::decode(const llama_token * tokens, size_t n, uint32_t n_before, size_t n_logits) {
    std::vector<llama_pos>      positions(n);
    std::vector<int32_t>        n_seq_id(n, 1);
    llama_seq_id                seq = 0;
    std::vector<llama_seq_id *> seq_id(n, &seq);
    std::vector<int8_t>         logits(n, 0);
    for (size_t i = 0; i < n; ++i) {
        positions[i] = rope_past + static_cast<int32_t>(n_before + i);
    }
    std::fill_n(logits.end() - static_cast<ptrdiff_t>(n_logits), n_logits, int8_t(1));

    llama_batch batch = {};
    batch.n_tokens    = static_cast<int32_t>(n);
    batch.token       = const_cast<llama_token *>(tokens);
    batch.pos         = positions.data();
    batch.n_seq_id    = n_seq_id.data();
    batch.seq_id      = seq_id.data();
    batch.logits      = logits.data();

    flat_.begin_batch(n_filled_ + n_before);
    const auto note_queries = [&] {
        if (window_ && flat_.notes().written) {
            window_->note_written(n_past + static_cast<int32_t>(n_before), static_cast<uint32_t>(n));
        }
    };
    const StreamedWeights::Pass pass(ctx->get_model().streamed_weights.get());
    int32_t                     failure = 0;
    try {
        failure = llama_decode(ctx, batch);
    } catch (...) {
        note_queries();
        throw;
    }
    // its own word for memory that ran out: before it computed anything, if it computes in one piece
    const bool out_of_memory = failure == -2;
    if (!out_of_memory || ggml_backend_sched_get_n_splits(ctx->get_sched()) > 1) {
        note_queries();
    }
    if (out_of_memory) {
        throw std::bad_alloc();
    }
    if (failure != 0) {
        pass.require_read();
        fail(EDGEKV_STATUS_INTERNAL, "llama_decode returned %d for %zu tokens at position %u", failure, n, n_past + n_before);
    }
    if (n_logits > 0) {
        check_logits(n - n_logits, n_past + static_cast<int32_t>(n_before + n - n_logits));
    }
}

// n_draft more tokens follow the n.
void edgekv_cache::feed(const llama_token * tokens, size_t n, bool want_logits, size_t n_draft) {
    n_drafted_ = 0; // whatever comes after a draft that was not accepted comes in its place
    require(n > 0, "no tokens to feed");
    check_draft(n_draft);
    const size_t n_all = n + n_draft;
    check_tokens(tokens, n_all);
    if (n_all > ctx->get_cparams().n_ubatch) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%zu tokens exceed the context's n_ubatch of %u; feed fewer at once", n_all,
             ctx->get_cparams().n_ubatch);
    }
    if (window_) {
        window_->begin_text(n_past - rope_past);
    }
    begin_batch();
    try {
        decode(tokens, n_all, 0, want_logits ? 1 + n_draft : 0);
    } catch (...) {
        undo_batch();
        throw;
    }
    fill(n);
    n_drafted_ = static_cast<uint32_t>(n_draft);
    n_batch_   = static_cast<uint32_t>(n_all);
}

void edgekv_cache::accept() {
    if (n_drafted_ == 0) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "there is no drafted token to accept; feed a draft first");
    }
    check_logits(n_batch_ - n_drafted_, n_past);
    fill(1);
    --n_drafted_;
}

// The next n open rows, which were decoded, hold the next n tokens.
void edgekv_cache::fill(size_t n) {
    n_filled_ += static_cast<uint32_t>(n);
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const HeadCells head = cells(il, g);
            for (size_t i = 0; i < n; ++i) {
                const uint32_t cell = head.n - static_cast<uint32_t>(n - i);
                head.position[cell] = n_past + static_cast<int32_t>(i);
                head.order[cell]    = cell; // the newest come last
            }
            if (head.rope_position != nullptr) {
                std::iota(head.rope_position + head.n - n, head.rope_position + head.n, rope_past);
            }
            for (float * carried : { head.accumulated, head.wo_norm }) {
                if (carried != nullptr) {
                    std::fill_n(carried + head.n - n, n, 0.0f); // not what an earlier cell left
                }
            }
        }
    }
    n_past += static_cast<int32_t>(n);
    rope_past += static_cast<int32_t>(n);
    n_fresh_ += static_cast<uint32_t>(n);
    if (layers_.empty()) { // no head keeps anything, so no cell is ever in use
        n_filled_ = 0;
    }
    stand_in();
}

void edgekv_cache::probe(const llama_token * tokens, size_t n, const uint32_t * ends, size_t n_parts) {
    if (n > params_.n_probe_rows) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "a probe of %zu tokens, but the cache was opened for %u", n, params_.n_probe_rows);
    }
    n_drafted_ = 0;
    check_tokens(tokens, n);
    std::vector<uint32_t> part_ends(ends, ends + n_parts);
    const auto            empty = std::adjacent_find(part_ends.begin(), part_ends.end(), std::greater_equal<>());
    require(n_parts > 0 && part_ends.front() > 0 && empty == part_ends.end() && part_ends.back() == n,
            "the parts of a probe must end one after the other, and the last with it");
    window_->begin_probe(n_past - rope_past);
    const size_t n_batch = ctx->get_cparams().n_ubatch;
    begin_batch();
    try {
        for (size_t i = 0; i < n; i += n_batch) {
            const size_t n_piece = std::min(n_batch, n - i);
            decode(tokens + i, n_piece, static_cast<uint32_t>(i), 0);
            stand_in(static_cast<uint32_t>(i + n_piece));
        }
    } catch (...) {
        undo_batch();
        throw;
    }
    undo_batch();
    window_->end_probe(n_past, std::move(part_ends));
}
