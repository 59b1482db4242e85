// Decoding into a cache: tokens that stay, and probes that leave nothing but their queries.
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
        return cells.get_used() != n_stand_ins() || cells.used_max_p1() != n_stand_ins() ||
               (!is_shared() && cells.seq_pos_max(0) != rope_past - 1);
    };
    if ((kv != nullptr && foreign()) || (state_ && state_->last() != rope_past - 1) || (windows_ && windows_->last() != rope_past - 1)) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "something else fed or changed this context's cache; clear it and start again");
    }
}

// Let llama.cpp know no more than one cell, which stands for all that was fed and for n tokens of a batch. This does not fail.
void edgekv_cache::stand_in(uint32_t n) {
    if (kv != nullptr) {
        kv->keep_first(n > 0 && !is_shared() ? 1 : n_stand_ins(), rope_past - 1 + static_cast<int32_t>(n));
    }
}

llama_kv_cells edgekv_cache::own_cells(int32_t fed, int32_t rope_end) const {
    llama_kv_cells cells;
    if (kv == nullptr) {
        return cells;
    }
    cells.resize(kv->get_cells(0).size());
    if (fed > 0) {
        cells.pos_set(0, rope_end - 1);
        cells.seq_add(0, 0);
    }
    return cells;
}

// llama.cpp's one cell and the states' are those of the newest token. This does not fail.
void edgekv_cache::go_on_at(int32_t rope_position) {
    rope_past = rope_position;
    stand_in();
    if (state_) {
        state_->reposition(rope_past - 1);
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

// Say what the rings of queries hold now, if a batch may have written to them.
void edgekv_cache::note_queries(const Batched & part) {
    if (window_ && flat_.notes().written) {
        window_->note_written(n_past + static_cast<int32_t>(part.n_before), static_cast<uint32_t>(part.n));
    }
}

// Decode one batch of caches of one context, and check the first logits of each. On failure llama.cpp's cells are left as they come
// out. If sequences share a context, llama.cpp takes the batch for the first tokens of one, and the hook before its graph puts
// the true positions in.
void edgekv_cache::decode(const std::vector<Batched> & parts) {
    edgekv_cache & first = *parts.front().cache;
    size_t         n_all = 0;
    for (const Batched & part : parts) {
        n_all += part.n;
    }
    const llama_pos             base = first.is_shared() ? 0 : first.rope_past + static_cast<llama_pos>(parts.front().n_before);
    std::vector<llama_token>    tokens;
    std::vector<llama_pos>      positions(n_all);
    std::vector<int32_t>        n_seq_id(n_all, 1);
    llama_seq_id                seq = 0;
    std::vector<llama_seq_id *> seq_id(n_all, &seq);
    std::vector<int8_t>         logits(n_all, 0);

    std::vector<BatchPart> flat_parts;
    tokens.reserve(n_all);
    flat_parts.reserve(parts.size());
    std::iota(positions.begin(), positions.end(), base);
    for (const Batched & part : parts) {
        tokens.insert(tokens.end(), part.tokens, part.tokens + part.n);
        std::fill_n(logits.begin() + static_cast<ptrdiff_t>(tokens.size() - part.n_logits), part.n_logits, int8_t(1));
        part.cache->flat_.begin_part(part.cache->n_filled_ + part.n_before);
        flat_parts.push_back({ &part.cache->flat_, static_cast<uint32_t>(part.n), part.cache->rope_past + static_cast<int32_t>(part.n_before) });
    }
    const Batch flat_batch(first.root_, std::move(flat_parts));

    llama_batch batch = {};
    batch.n_tokens    = static_cast<int32_t>(n_all);
    batch.token       = tokens.data();
    batch.pos         = positions.data();
    batch.n_seq_id    = n_seq_id.data();
    batch.seq_id      = seq_id.data();
    batch.logits      = logits.data();

    llama_context * ctx          = first.ctx;
    const auto      note_queries = [&] {
        for (const Batched & part : parts) {
            part.cache->note_queries(part);
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
    const int32_t p0 = first.n_past + static_cast<int32_t>(parts.front().n_before);
    if (failure != 0) {
        pass.require_read();
        fail(EDGEKV_STATUS_INTERNAL, "llama_decode returned %d for %zu tokens at position %d", failure, n_all, p0);
    }
    size_t end = 0;
    for (const Batched & part : parts) {
        end += part.n;
        if (part.n_logits > 0) {
            part.cache->check_logits(end - part.n_logits,
                                     part.cache->n_past + static_cast<int32_t>(part.n_before + part.n - part.n_logits));
        }
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
        decode({ { this, tokens, n_all, 0, want_logits ? 1 + n_draft : 0 } });
    } catch (...) {
        undo_batch();
        throw;
    }
    fill(n);
    n_drafted_ = static_cast<uint32_t>(n_draft);
    n_batch_   = static_cast<uint32_t>(n_all);
    draft_     = flat_.notes().n_batches;
}

void edgekv_cache::feed_together(edgekv_part * parts, size_t n_parts) {
    require(n_parts > 0, "no caches to feed");
    llama_context *      ctx = parts[0].cache != nullptr ? parts[0].cache->ctx : nullptr;
    std::vector<Batched> batched;
    size_t               n_all = 0, n_logits = 0;
    for (size_t i = 0; i < n_parts; ++i) {
        const edgekv_part & part = parts[i];
        require(part.cache != nullptr && part.cache->ctx == ctx, "a cache is NULL or of another context");
        require(std::none_of(parts, parts + i, [&](const edgekv_part & other) { return other.cache == part.cache; }),
                "a cache is fed twice at once");
        part.cache->n_drafted_ = 0;
        part.cache->check_tokens(part.tokens, part.n);
        batched.push_back({ part.cache, part.tokens, part.n, 0, part.want_logits != 0 ? size_t(1) : 0 });
        n_all += part.n;
        n_logits += batched.back().n_logits;
    }
    if (n_all > ctx->get_cparams().n_ubatch || n_logits > ctx->get_cparams().n_outputs_max) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%zu tokens and %zu rows of logits exceed the context's n_ubatch of %u or n_outputs_max of %u; "
             "feed fewer at once", n_all, n_logits, ctx->get_cparams().n_ubatch, ctx->get_cparams().n_outputs_max);
    }
    for (const Batched & part : batched) {
        if (part.cache->window_) {
            part.cache->window_->begin_text(part.cache->n_past - part.cache->rope_past);
        }
        part.cache->begin_batch();
    }
    try {
        decode(batched);
    } catch (...) {
        for (const Batched & part : batched) {
            part.cache->undo_batch();
        }
        throw;
    }
    size_t end = 0;
    for (size_t i = 0; i < n_parts; ++i) {
        end += parts[i].n;
        parts[i].logits_row = static_cast<int32_t>(end) - 1;
        parts[i].cache->fill(parts[i].n);
    }
}

void edgekv_cache::accept() {
    if (n_drafted_ == 0) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "there is no drafted token to accept; feed a draft first");
    }
    if (draft_ != flat_.notes().n_batches) {
        n_drafted_ = 0;
        throw Error(EDGEKV_STATUS_INVALID_STATE, "another cache of the context was fed after the draft, whose logits are gone; feed the "
                                                 "token itself");
    }
    check_logits(n_batch_ - n_drafted_, n_past);
    fill(1);
    --n_drafted_;
}

// The next n open rows, which were decoded, hold the next n tokens.
void edgekv_cache::fill(size_t n) {
    n_filled_ += static_cast<uint32_t>(n);
    n_recalled_ = 0;
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
            decode({ { this, tokens + i, n_piece, static_cast<uint32_t>(i), 0 } });
            stand_in(static_cast<uint32_t>(i + n_piece));
        }
    } catch (...) {
        undo_batch();
        throw;
    }
    undo_batch();
    window_->end_probe(n_past, std::move(part_ends));
}
