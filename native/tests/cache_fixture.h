// What tests of a cache share: a model, a context, and what a head holds.
#pragma once

#include "cache/cache.h"
#include "check.h"
#include "edgekv.h"
#include "ggml-backend.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

constexpr uint32_t n_ubatch = 32;

struct Model {
    // device: where the last n_layers of the model lie, its output counted in; NULL = all is in the host's memory
    explicit Model(const char * path, bool repacked = true, ggml_backend_dev_t device = nullptr, int32_t n_layers = 0) {
        ggml_backend_dev_t devices[] = { device, nullptr };
        llama_model_params params    = llama_model_default_params();
        char               err[512];
        if (device != nullptr) {
            params.devices      = devices;
            params.n_gpu_layers = n_layers;
        }
        params.use_extra_bufts = repacked;
        if (!CHECK(edgekv_model_load(path, &params, 0, &model, err, sizeof(err)) == EDGEKV_STATUS_OK)) {
            std::fprintf(stderr, "%s: %s\n", path, err);
            std::exit(1);
        }
    }
    ~Model() { llama_model_free(model); }

    llama_model * model = nullptr;
};

// kv_type: of keys and values, or "f16/q8_0" where they differ.
struct Context {
    Context(const Model & model, const char * kv_type, int32_t n_threads = 1, const edgekv_layout & layout = { sizeof(edgekv_layout), 256, 256, 0 },
            uint32_t n_at_once = n_ubatch, ggml_backend_sched_eval_callback observer = nullptr, void * observed = nullptr) {
        const std::map<std::string, ggml_type> types = { { "f16", GGML_TYPE_F16 }, { "q8_0", GGML_TYPE_Q8_0 }, { "q4_0", GGML_TYPE_Q4_0 } };

        llama_context_params params = llama_context_default_params();
        params.n_batch              = n_at_once;
        params.n_ubatch             = n_at_once;
        params.cb_eval              = observer;
        params.cb_eval_user_data    = observed;
        params.n_seq_max            = 1;
        params.n_threads            = n_threads;
        params.n_threads_batch      = n_threads;
        params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        const std::string type      = kv_type;
        const size_t      slash     = type.find('/');
        params.type_k               = types.at(type.substr(0, slash));
        params.type_v               = types.at(slash == std::string::npos ? type : type.substr(slash + 1));
        char err[512];
        if (!CHECK(edgekv_context_new(model.model, &params, &layout, &ctx, err, sizeof(err)) == EDGEKV_STATUS_OK)) {
            std::fprintf(stderr, "%s\n", err);
            std::exit(1);
        }
    }
    ~Context() { llama_free(ctx); }

    llama_context * ctx = nullptr;
};

inline edgekv_layout layout_for(uint32_t budget, uint32_t block, uint32_t n_probe, uint32_t ragged, uint32_t n_ctx_train) {
    edgekv_layout layout = edgekv_layout_default();
    CHECK(edgekv_layout_for(budget, block, n_probe, ragged, n_ctx_train, &layout, nullptr, 0) == EDGEKV_STATUS_OK);
    return layout;
}

struct FreeCache {
    void operator()(edgekv_cache * cache) const { edgekv_cache_free(cache); }
};
using Cache = std::unique_ptr<edgekv_cache, FreeCache>;

// Has caches score, move and turn rows in the way that EDGEKV_STAGING names, while it lives.
class Staged {
  public:
    explicit Staged(const char * how) { name(how); }
    ~Staged() { name(""); }
    Staged(const Staged &)             = delete;
    Staged & operator=(const Staged &) = delete;

  private:
    static void name(const char * how) {
#ifdef _WIN32
        _putenv_s("EDGEKV_STAGING", how);
#else
        setenv("EDGEKV_STAGING", how, 1);
#endif
    }
};

inline Cache open_cache(const Context & context, const edgekv_cache_params & needs = edgekv_cache_params_default()) {
    edgekv_cache * cache = nullptr;
    CHECK(edgekv_cache_open(context.ctx, &needs, &cache, nullptr, 0) == EDGEKV_STATUS_OK);
    return Cache(cache);
}

// All that a cache holds, and back.
using Bytes = std::vector<char>;

inline Bytes save(const Cache & cache) {
    Bytes bytes(edgekv_cache_snapshot_bytes(cache.get(), nullptr));
    CHECK(edgekv_cache_save(cache.get(), nullptr, 0, bytes.data(), bytes.size(), nullptr, 0) == EDGEKV_STATUS_OK);
    return bytes;
}

inline edgekv_status restore(const Cache & cache, const Bytes & bytes) {
    return edgekv_cache_restore(cache.get(), bytes.data(), bytes.size(), nullptr, 0);
}

inline edgekv_status feed(const Cache & cache, size_t n, std::string * message = nullptr) {
    std::vector<llama_token> tokens(n);
    for (size_t i = 0; i < n; ++i) {
        tokens[i] = static_cast<llama_token>((7 * (edgekv_cache_n_past(cache.get()) + i) + 3) % 100);
    }
    char                err[512] = "";
    const edgekv_status status   = edgekv_cache_feed(cache.get(), tokens.data(), n, 1, err, sizeof(err));
    if (message != nullptr) {
        *message = err;
    }
    return status;
}

inline edgekv_policy policy_of(int32_t base, int32_t anchor = EDGEKV_ANCHOR_UNIT_MEAN) {
    edgekv_policy policy = edgekv_policy_default();
    policy.base          = base;
    policy.anchor        = anchor;
    policy.kernel        = 1;
    policy.rows          = 8;
    policy.seed          = 11;
    return policy;
}

inline edgekv_status compact(const Cache & cache, const edgekv_policy & policy, uint32_t budget,
                      const edgekv_protection & protection = edgekv_protection_default(), edgekv_compaction * result = nullptr, const uint32_t * budgets = nullptr, bool reposition = false) {
    edgekv_compaction              own;
    const edgekv_compaction_params params = { sizeof(params), &policy, &protection, budget, 0, 0, reposition, budgets };
    return edgekv_cache_compact(cache.get(), &params, result ? result : &own, nullptr, 0);
}

// What one head holds, in position order.
struct Head {
    std::vector<int32_t> positions;
    std::vector<char>    k, v;
    edgekv_rows          k_rows = edgekv_rows_default(), v_rows = edgekv_rows_default();

    std::vector<char> row(bool values, size_t i) const {
        const auto & data  = values ? v : k;
        const size_t bytes = data.size() / positions.size();
        return { data.begin() + i * bytes, data.begin() + (i + 1) * bytes };
    }
    bool operator==(const Head & other) const { return positions == other.positions && k == other.k && v == other.v; }
};

inline Head read_head(const Cache & cache, uint32_t layer, uint32_t g) {
    static thread_local std::vector<char> room(1 << 20); // for the largest head; zeros, whatever was read before

    const edgekv_cache * c = cache.get();
    Head                 head;
    uint32_t             n_cells, n_kept;
    CHECK(edgekv_cache_head_cells(c, layer, g, &n_cells, &n_kept, nullptr, 0) == EDGEKV_STATUS_OK);
    head.positions.reserve(n_cells + 1); // of an empty head too there is an address to write to
    head.positions.resize(n_cells);
    CHECK(edgekv_cache_positions(c, layer, g, head.positions.data(), nullptr, 0) == EDGEKV_STATUS_OK);
    for (const bool values : { false, true }) {
        auto & data = values ? head.v : head.k;
        auto & rows = values ? head.v_rows : head.k_rows;
        CHECK(edgekv_cache_read(c, layer, g, values, room.data(), room.size(), &rows, nullptr, 0) == EDGEKV_STATUS_OK);
        CHECK(rows.n == head.positions.size() && rows.data == room.data());
        const auto end = room.begin() + rows.n * rows.stride_bytes;
        data.assign(room.begin(), end);
        std::fill(room.begin(), end, '\0');
        rows.data = data.data();
    }
    return head;
}

inline std::vector<Head> read_all(const Cache & cache) {
    std::vector<Head> heads;
    for (uint32_t layer = 0; layer < cache->shape.n_layer; ++layer) {
        for (uint32_t g = 0; g < cache->shape.n_head_total / cache->shape.n_layer; ++g) {
            heads.push_back(read_head(cache, layer, g));
        }
    }
    return heads;
}

// Survivors are among the cells from before, and their keys and values are the same bytes.
inline void check_survivors(const Head & before, const Head & after) {
    for (size_t i = 0; i < after.positions.size(); ++i) {
        const auto found = std::lower_bound(before.positions.begin(), before.positions.end(), after.positions[i]);
        if (CHECK(found != before.positions.end() && *found == after.positions[i])) {
            const size_t j = found - before.positions.begin();
            CHECK(after.row(false, i) == before.row(false, j));
            CHECK(after.row(true, i) == before.row(true, j));
        }
    }
}
