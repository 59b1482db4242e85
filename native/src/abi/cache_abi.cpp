// The entry points that work on the cache of a context.
#include "archive/archive.h"
#include "cache/cache.h"
#include "evict/compaction.h"
#include "hooks/given.h"
#include "hooks/status.h"

#include <algorithm>

using namespace edgekv;

namespace {

FiledRows filed_rows(const edgekv_cache & cache, const edgekv_archive * archive) {
    return archive == nullptr ? FiledRows{} : archive->filed(cache);
}

// Rows of queries that a cache keeps, of the text and of a probe.
uint64_t n_query_rows(const edgekv_cache_params & params) { return n_text_rows(params.n_query_rows, params.n_draft) + params.n_probe_rows; }

} // namespace

enum edgekv_status edgekv_cache_params_for(const struct edgekv_policy * policy, uint32_t block, int32_t probed,
                                           struct edgekv_cache_params * params, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(policy && params, "policy or params is NULL");
        const GivenPolicy   scoring(*policy);
        edgekv_cache_params needs = given(*params);
        check(*scoring);
        const Traits traits = traits_of(*scoring);
        const bool   custom = scoring->base == EDGEKV_BASE_CUSTOM;
        if (!probed) {
            needs.n_query_rows = std::max(needs.n_query_rows, traits.rows_read(block));
        }
        needs.accumulates |= traits.accumulates;
        needs.wo_norms |= scoring->critical;
        needs.values |= traits.values || (custom && scoring->scorer->reads & EDGEKV_READS_VALUES);
        needs.ragged |= traits.ragged;
        needs.before_rope |= traits.before_rope;
        if (custom) {
            needs.custom_reads |= scoring->scorer->reads | EDGEKV_READS_POSITIONS;
        }
        give_back(needs, *params);
    });
}

enum edgekv_status edgekv_cache_open(struct llama_context * ctx, const struct edgekv_cache_params * params,
                                     struct edgekv_cache ** cache, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && params && cache, "ctx, params or cache is NULL");
        *cache = new edgekv_cache(ctx, given(*params));
    });
}

enum edgekv_status edgekv_cache_check(const struct llama_context * ctx, const struct edgekv_cache_params * params, char * err,
                                      size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && params, "ctx or params is NULL");
        require_openable(*ctx, given(*params));
    });
}

void edgekv_cache_free(struct edgekv_cache * cache) { delete cache; }

uint64_t edgekv_cache_estimate_bytes(const struct edgekv_shape * shape, const struct edgekv_cache_params * params) {
    uint64_t n_bytes = 0;
    guard(nullptr, 0, [&] {
        require(shape && params, "shape or params is NULL");
        const edgekv_cache_params needs  = given(*params);
        const Staging             how    = staging();
        const uint64_t            n_rows = uint64_t(shape->n_head_total) * shape->n_cells;

        n_bytes = CellArrays::bytes(n_rows, cell_parts(*shape, needs, how)) + Workspace::estimate_bytes(*shape, needs, how) +
                  shape->state_bytes + shape->query_row_bytes * n_query_rows(needs) + (how == Staging::graphs ? shape->graph_bytes : 0) +
                  (how == Staging::copies ? 0 : shape->graph_description_bytes);
    });
    return n_bytes;
}

uint64_t edgekv_cache_estimate_device_bytes(const struct edgekv_shape * shape, const struct edgekv_cache_params * params) {
    uint64_t n_bytes = 0;
    guard(nullptr, 0, [&] {
        require(shape && params, "shape or params is NULL");
        n_bytes = shape->device_query_row_bytes * n_query_rows(given(*params)) + shape->device_state_bytes +
                  (staging() == Staging::copies ? 0 : shape->device_graph_bytes);
    });
    return n_bytes;
}

uint64_t edgekv_cache_bytes(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->bytes(); }
uint64_t edgekv_cache_device_bytes(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->device_bytes(); }

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

enum edgekv_status edgekv_cache_feed_together(struct edgekv_part * parts, size_t n_parts, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(parts, "parts is NULL");
        std::vector<edgekv_part> together;
        for (size_t i = 0; i < n_parts; ++i) {
            together.push_back(given(element(parts, i)));
        }
        edgekv_cache::feed_together(together.data(), n_parts);
        for (size_t i = 0; i < n_parts; ++i) {
            element(parts, i).logits_row = together[i].logits_row;
        }
    });
}

enum edgekv_status edgekv_cache_feed_draft(struct edgekv_cache * cache, llama_token token, const llama_token * draft, size_t n,
                                           char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && draft, "cache or draft is NULL");
        cache->check_draft(n);
        std::vector<llama_token> tokens(1 + n, token);
        std::copy_n(draft, n, tokens.begin() + 1);
        cache->feed(tokens.data(), 1, true, n);
    });
}

enum edgekv_status edgekv_cache_accept(struct edgekv_cache * cache, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache, "cache is NULL");
        cache->accept();
    });
}

uint32_t edgekv_cache_n_droppable(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->n_droppable(); }

enum edgekv_status edgekv_cache_drop(struct edgekv_cache * cache, uint32_t n, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache, "cache is NULL");
        cache->drop(n);
    });
}

enum edgekv_status edgekv_cache_probe(struct edgekv_cache * cache, const llama_token * tokens, size_t n, const uint32_t * part_ends,
                                      size_t n_parts, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache, "cache is NULL");
        const uint32_t end = static_cast<uint32_t>(std::min<size_t>(n, UINT32_MAX));
        cache->probe(tokens, n, part_ends != nullptr ? part_ends : &end, part_ends != nullptr ? n_parts : 1);
    });
}

enum edgekv_status edgekv_cache_compact(struct edgekv_cache * cache, const struct edgekv_compaction_params * params,
                                        struct edgekv_compaction * result, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && params && result, "cache, params or result is NULL");
        edgekv_compaction_params how = given(*params);
        require(how.policy && how.protection, "params.policy or params.protection is NULL");
        const GivenPolicy       policy(*how.policy);
        const edgekv_protection protection = given(*how.protection);
        how.policy                         = &*policy;
        how.protection                     = &protection;
        cache->drop_draft();
        Compaction compaction(*cache, how);
        *result = compaction.commit(*cache);
    });
}

uint32_t edgekv_cache_n_cells(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->n_cells(); }
uint32_t edgekv_cache_n_free(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->n_free(); }
uint32_t edgekv_cache_n_heads(const struct edgekv_cache * cache, uint32_t layer) {
    return cache == nullptr ? 0 : cache->n_heads(layer);
}
uint32_t edgekv_cache_n_query_heads(const struct edgekv_cache * cache, uint32_t layer) {
    return cache == nullptr ? 0 : cache->n_query_heads(layer);
}
int32_t edgekv_cache_n_past(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->n_past; }
int32_t edgekv_cache_rope_past(const struct edgekv_cache * cache) { return cache == nullptr ? 0 : cache->rope_past; }

enum edgekv_status edgekv_cache_holds(const struct edgekv_cache * cache, const uint32_t * cells, size_t n, int32_t * holds, char * err,
                                      size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && holds && (cells || n == 0), "cache, cells or holds is NULL");
        *holds = cache->holds({ cells, cells + n });
    });
}

enum edgekv_status edgekv_cache_allow(struct edgekv_cache * cache, uint32_t n_cells, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache, "cache is NULL");
        cache->allow(n_cells);
    });
}

enum edgekv_status edgekv_cache_head_cells(const struct edgekv_cache * cache, uint32_t layer, uint32_t head, uint32_t * n_cells,
                                           uint32_t * n_kept, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && n_cells && n_kept, "cache, n_cells or n_kept is NULL");
        *n_cells = cache->cells(layer, head).n;
        *n_kept  = cache->n_kept(layer, head);
    });
}

enum edgekv_status edgekv_cache_positions(const struct edgekv_cache * cache, uint32_t layer, uint32_t head, int32_t * positions,
                                          char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && positions, "cache or positions is NULL");
        const HeadView cells = cache->cells(layer, head);
        std::transform(cells.order, cells.order + cells.n, positions, [&](uint32_t cell) { return cells.position[cell]; });
    });
}

enum edgekv_status edgekv_cache_rope_positions(const struct edgekv_cache * cache, uint32_t layer, uint32_t head,
                                               int32_t * positions, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && positions, "cache or positions is NULL");
        const HeadView cells = cache->cells(layer, head);
        const int32_t * of    = cells.rope_position != nullptr ? cells.rope_position : cells.position;
        std::transform(cells.order, cells.order + cells.n, positions, [&](uint32_t cell) { return of[cell]; });
    });
}

enum edgekv_status edgekv_cache_read(const struct edgekv_cache * cache, uint32_t layer, uint32_t head, int32_t values, void * dst,
                                     size_t dst_size, struct edgekv_rows * rows, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && rows && (dst || dst_size == 0), "cache, dst or rows is NULL");
        edgekv_rows read = given(*rows); // refused before anything is copied
        cache->read(layer, head, values != 0, dst, dst_size, read);
        give_back(read, *rows);
    });
}

uint64_t edgekv_cache_snapshot_bytes(const struct edgekv_cache * cache, const struct edgekv_archive * archive) {
    uint64_t n_bytes = 0;
    guard(nullptr, 0, [&] { n_bytes = cache == nullptr ? 0 : cache->snapshot_bytes(filed_rows(*cache, archive)); });
    return n_bytes;
}

enum edgekv_status edgekv_cache_save(const struct edgekv_cache * cache, const struct edgekv_archive * archive, uint64_t first, void * dst,
                                     size_t n, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && dst, "cache or dst is NULL");
        cache->save(filed_rows(*cache, archive), first, dst, n);
    });
}

enum edgekv_status edgekv_cache_restore(struct edgekv_cache * cache, const void * src, size_t size, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && src, "cache or src is NULL");
        cache->restore(src, size, true);
    });
}

enum edgekv_status edgekv_cache_restore_numbers(struct edgekv_cache * cache, const void * src, size_t size, char * err,
                                                size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && src, "cache or src is NULL");
        cache->restore(src, size, false);
    });
}

enum edgekv_status edgekv_cache_restore_rows(struct edgekv_cache * cache, const struct edgekv_archive * archive, uint64_t first,
                                             const void * src, size_t n, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && src, "cache or src is NULL");
        cache->restore_rows(filed_rows(*cache, archive), first, src, n);
    });
}

enum edgekv_status edgekv_cache_queries(struct edgekv_cache * cache, uint32_t layer, int32_t probed, float * queries,
                                        int32_t * positions, uint32_t * n_rows, float * scale, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && queries && positions && n_rows && scale, "an argument is NULL");
        cache->read_queries(layer, probed != 0, queries, positions, *n_rows, *scale);
    });
}
