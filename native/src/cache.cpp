#include "cache.h"

#include "ggml-backend.h"
#include "llama-batch.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "parallel.h"
#include "select.h"
#include "status.h"

#include <algorithm>
#include <cstring>

using namespace edgekv;

namespace {

// The first n rows of a cache tensor in host memory: in place where they lie there, else a copy. Only committed
// copies are written back.
class HostRows {
  public:
    HostRows(ggml_tensor * tensor, size_t n, bool staged) : tensor_(tensor) {
        if (!staged) {
            data_ = static_cast<char *>(tensor->data);
            return;
        }
        copy_.resize(n * stride());
        data_ = copy_.data();
        ggml_backend_tensor_get(tensor, copy_.data(), 0, copy_.size());
    }

    size_t stride() const { return tensor_->nb[1]; }
    char * row(size_t i) { return data_ + i * stride(); }

    void commit(size_t n) {
        if (!copy_.empty()) {
            ggml_backend_tensor_set(tensor_, copy_.data(), 0, n * stride());
        }
    }

  private:
    ggml_tensor *     tensor_;
    char *            data_;
    std::vector<char> copy_;
};

// llama.cpp rotates stored keys in the largest runs of 64 * 2^k elements that divide the head.
uint32_t rotation_run(const llama_kv_cache & kv, uint32_t head_dim) {
    if (!kv.get_k_rotated()) {
        return 0;
    }
    uint32_t run = 64;
    while (head_dim % (2 * run) == 0) {
        run *= 2;
    }
    return run;
}

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

// A layer is one task, and a device is read by one thread.
size_t n_workers(const edgekv_shape & shape) { return shape.staged ? 1 : std::min(shape.n_threads, shape.n_layer); }

} // namespace

edgekv_cache::edgekv_cache(llama_context * ctx, const edgekv_cache_params & params) :
    ctx(ctx), kv(plain_cache(ctx)), shape(shape_of(ctx)), rotation_(rotation_run(kv, shape.head_dim_k)) {
    shape.staged |= params.staged != 0;
    const llama_hparams & hparams = ctx->get_model().hparams;
    for (const uint32_t il : kv.get_layer_ids()) {
        edgekv_layer layer = { kv.get_k_storage(il), kv.get_v_storage(il), hparams.n_embd_head_k(il), hparams.n_embd_head_v(il), {} };
        layer.heads.resize(hparams.n_head_kv(il));
        for (auto & head : layer.heads) {
            head.position.resize(shape.n_cells);
            head.order.reserve(shape.n_cells);
            head.keep.resize(shape.n_cells);
        }
        layers_.push_back(std::move(layer));
    }
    scratch_.resize(n_workers(shape));
    for (auto & scratch : scratch_) {
        scratch.reserve(shape.n_cells, shape.head_dim_k);
    }
    clear();
}

void edgekv_cache::clear() {
    kv.clear(false);
    n_used = 0;
    n_past = 0;
    for (auto & layer : layers_) {
        for (auto & head : layer.heads) {
            head.order.clear();
        }
    }
}

void edgekv_cache::feed(const llama_token * tokens, size_t n, bool want_logits) {
    require(tokens != nullptr && n > 0, "no tokens to feed");
    const llama_model & model   = ctx->get_model();
    const int32_t       n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(&model));
    for (size_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT, "token %d is not in [0, %d)", tokens[i], n_vocab);
        }
    }
    if (n > ctx->get_cparams().n_ubatch) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%zu tokens exceed the context's n_ubatch of %u; feed fewer at once", n,
             ctx->get_cparams().n_ubatch);
    }
    if (n_used + n > shape.n_cells) {
        fail(EDGEKV_STATUS_INVALID_STATE, "%zu tokens need more than the %u free cells; compact first", n, shape.n_cells - n_used);
    }

    // llama.cpp's cells are ours alone: [0, n_used), and the newest stands for the last position
    const auto & cells = kv.get_cells(0);
    if (cells.get_used() != n_used || cells.used_max_p1() != n_used || cells.seq_pos_max(0) != n_past - 1) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "something else fed or changed this context's cache; clear it and start again");
    }

    std::vector<llama_pos>      positions(n);
    std::vector<int32_t>        n_seq_id(n, 1);
    llama_seq_id                seq = 0;
    std::vector<llama_seq_id *> seq_id(n, &seq);
    std::vector<int8_t>         logits(n, 0);
    for (size_t i = 0; i < n; ++i) {
        positions[i] = n_past + static_cast<int32_t>(i);
    }
    logits[n - 1] = want_logits ? 1 : 0;

    llama_batch batch = {};
    batch.n_tokens    = static_cast<int32_t>(n);
    batch.token       = const_cast<llama_token *>(tokens);
    batch.pos         = positions.data();
    batch.n_seq_id    = n_seq_id.data();
    batch.seq_id      = seq_id.data();
    batch.logits      = logits.data();

    const int32_t failure = llama_decode(ctx, batch);
    if (failure != 0) {
        kv.keep_first(n_used, n_past - 1);
        fail(EDGEKV_STATUS_INTERNAL, "llama_decode returned %d for %zu tokens at position %d", failure, n, n_past);
    }
    if (want_logits) {
        const float * values = llama_get_logits_ith(ctx, -1);
        if (values == nullptr || !all_finite(values, n_vocab)) {
            kv.keep_first(n_used, n_past - 1);
            fail(EDGEKV_STATUS_NOT_FINITE, "the logits of position %d are not finite; the model's weights are damaged",
                 positions[n - 1]);
        }
    }
    for (size_t i = 0; i < n; ++i) {
        if (cells.is_empty(n_used + i) || cells.pos_get(n_used + i) != positions[i]) {
            kv.keep_first(n_used, n_past - 1);
            fail(EDGEKV_STATUS_INTERNAL, "llama.cpp did not put the tokens into the cells from %u on", n_used);
        }
    }
    for (auto & layer : layers_) {
        for (auto & head : layer.heads) {
            for (size_t i = 0; i < n; ++i) {
                head.position[n_used + i] = positions[i];
                head.order.push_back(n_used + static_cast<uint32_t>(i));
            }
        }
    }
    n_used += static_cast<uint32_t>(n);
    n_past += static_cast<int32_t>(n);
}

void edgekv_cache::choose(edgekv_layer & layer, uint32_t il, const edgekv_policy & policy, const edgekv_protection & protection,
                          uint32_t budget, Scratch & scratch) {
    HostRows     k(layer.k, n_used, shape.staged);
    const size_t head_bytes = ggml_row_size(layer.k->type, layer.head_dim_k);
    for (uint32_t g = 0; g < layer.heads.size(); ++g) {
        edgekv_head & head = layer.heads[g];
        const Rows    rows({ k.row(0) + g * head_bytes, layer.k->type, layer.head_dim_k, n_used, k.stride(), rotation_, 0 });

        score(policy, { rows, head.position.data(), head.order.data(), il, g }, scratch, scratch.scores.data());
        select(scratch.scores.data(), head.position.data(), head.order.data(), n_used, budget, protection, scratch.line.data(),
               head.keep.data());
    }
}

// Fill the holes below the budget with the survivors above it: no other row moves. On the way a filled hole is
// marked 2 and the position of the cell it took over leads to it, so that `order` can be renamed in one pass.
void edgekv_cache::move(edgekv_layer & layer, uint32_t budget) {
    HostRows     k(layer.k, n_used, shape.staged);
    HostRows     v(layer.v, n_used, shape.staged);
    const size_t k_bytes = ggml_row_size(layer.k->type, layer.head_dim_k);
    const size_t v_bytes = ggml_row_size(layer.v->type, layer.head_dim_v);
    for (uint32_t g = 0; g < layer.heads.size(); ++g) {
        edgekv_head & head = layer.heads[g];

        uint32_t hole = 0;
        for (uint32_t cell = budget; cell < n_used; ++cell) {
            if (!head.keep[cell]) {
                continue;
            }
            while (head.keep[hole]) {
                ++hole;
            }
            std::memcpy(k.row(hole) + g * k_bytes, k.row(cell) + g * k_bytes, k_bytes);
            std::memcpy(v.row(hole) + g * v_bytes, v.row(cell) + g * v_bytes, v_bytes);
            head.position[hole] = head.position[cell];
            head.keep[hole]     = 2;
            head.position[cell] = static_cast<int32_t>(hole);
        }

        size_t n_kept = 0;
        for (const uint32_t cell : head.order) {
            if (cell >= budget ? head.keep[cell] != 0 : head.keep[cell] == 1) {
                head.order[n_kept++] = cell >= budget ? static_cast<uint32_t>(head.position[cell]) : cell;
            }
        }
        head.order.resize(n_kept);
    }
    k.commit(budget);
    v.commit(budget);
}

void edgekv_cache::compact(const edgekv_policy & policy, const edgekv_protection & protection, uint32_t budget,
                           edgekv_compaction & result) {
    check(policy);
    check(protection);
    require(budget > 0, "a budget of 0 cells keeps nothing; give at least 1");
    result = {};
    if (n_used <= budget) {
        return;
    }
    llama_synchronize(ctx);
    const int64_t start_us = ggml_time_us();
    parallel_for(layers_.size(), scratch_.size(), [&](size_t il, size_t thread) {
        choose(layers_[il], static_cast<uint32_t>(il), policy, protection, budget, scratch_[thread]);
    });
    const int64_t chosen_us = ggml_time_us();
    parallel_for(layers_.size(), scratch_.size(), [&](size_t il, size_t /*thread*/) { move(layers_[il], budget); });
    kv.keep_first(budget, n_past - 1);

    result.n_evicted = uint64_t(n_used - budget) * shape.n_head_total;
    result.score_us  = chosen_us - start_us;
    result.move_us   = ggml_time_us() - chosen_us;
    n_used           = budget;
}

const edgekv_head & edgekv_cache::head(uint32_t layer, uint32_t head) const {
    if (layer >= layers_.size() || head >= layers_[layer].heads.size()) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "there is no layer %u with a head %u", layer, head);
    }
    return layers_[layer].heads[head];
}

uint64_t edgekv_cache::bytes() const {
    uint64_t sum = shape.staged ? shape.layer_bytes : 0;
    for (const auto & layer : layers_) {
        for (const auto & head : layer.heads) {
            sum += sizeof(int32_t) * head.position.capacity() + sizeof(uint32_t) * head.order.capacity() + head.keep.capacity();
        }
    }
    for (const auto & scratch : scratch_) {
        sum += scratch.held();
    }
    return sum;
}

void edgekv_cache::read(uint32_t il, uint32_t g, bool values, void * dst, size_t dst_size, edgekv_rows & rows) const {
    const edgekv_head &  cells  = head(il, g);
    const edgekv_layer & layer  = layers_[il];
    ggml_tensor *        tensor = values ? layer.v : layer.k;
    const uint32_t       dim    = values ? layer.head_dim_v : layer.head_dim_k;
    const size_t         bytes  = ggml_row_size(tensor->type, dim);
    if (dst_size < n_used * bytes) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "dst holds %zu bytes, but %zu are needed", dst_size, n_used * bytes);
    }
    llama_synchronize(ctx);
    for (size_t i = 0; i < n_used; ++i) {
        ggml_backend_tensor_get(tensor, static_cast<char *>(dst) + i * bytes, cells.order[i] * tensor->nb[1] + g * bytes, bytes);
    }
    // values are rotated in runs of 64 whenever keys of this shape are
    rows = { dst, tensor->type, dim, n_used, bytes, values ? (rotation_ > 0 && dim % 64 == 0 ? 64 : 0) : rotation_, 0 };
}

// ---- C ABI ----

enum edgekv_status edgekv_cache_open(struct llama_context * ctx, const struct edgekv_cache_params * params,
                                     struct edgekv_cache ** cache, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && params && cache, "ctx, params or cache is NULL");
        *cache = new edgekv_cache(ctx, *params);
    });
}

void edgekv_cache_free(struct edgekv_cache * cache) { delete cache; }

uint64_t edgekv_cache_estimate_bytes(const struct edgekv_shape * shape) {
    if (shape == nullptr) {
        return 0;
    }
    const uint64_t cell = sizeof(int32_t) + sizeof(uint32_t) + sizeof(uint8_t);
    return uint64_t(shape->n_head_total) * shape->n_cells * cell +
           n_workers(*shape) * Scratch::bytes(shape->n_cells, shape->head_dim_k) + (shape->staged ? shape->layer_bytes : 0);
}

uint64_t edgekv_cache_bytes(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->bytes(); }

enum edgekv_status edgekv_cache_clear(struct edgekv_cache * cache, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache, "cache is NULL");
        cache->clear();
    });
}

enum edgekv_status edgekv_cache_feed(struct edgekv_cache * cache, const llama_token * tokens, size_t n, int32_t want_logits,
                                     char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache, "cache is NULL");
        cache->feed(tokens, n, want_logits != 0);
    });
}

enum edgekv_status edgekv_cache_compact(struct edgekv_cache * cache, const struct edgekv_policy * policy,
                                        const struct edgekv_protection * protection, uint32_t budget,
                                        struct edgekv_compaction * result, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && policy && protection && result, "cache, policy, protection or result is NULL");
        cache->compact(*policy, *protection, budget, *result);
    });
}

uint32_t edgekv_cache_n_cells(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->n_used; }
int32_t  edgekv_cache_n_past(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->n_past; }

enum edgekv_status edgekv_cache_positions(const struct edgekv_cache * cache, uint32_t layer, uint32_t head, int32_t * positions,
                                          char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && positions, "cache or positions is NULL");
        const edgekv_head & cells = cache->head(layer, head);
        std::transform(cells.order.begin(), cells.order.end(), positions, [&](uint32_t cell) { return cells.position[cell]; });
    });
}

enum edgekv_status edgekv_cache_read(const struct edgekv_cache * cache, uint32_t layer, uint32_t head, int32_t values, void * dst,
                                     size_t dst_size, struct edgekv_rows * rows, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && dst && rows, "cache, dst or rows is NULL");
        cache->read(layer, head, values != 0, dst, dst_size, *rows);
    });
}
