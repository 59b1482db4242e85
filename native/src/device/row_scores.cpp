// Scores of cells, as graphs.
#include "device/row_graphs.h"
#include "score/score.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace edgekv {

namespace {

constexpr float least   = 1e-30f; // added to a mean of squares, so that no key is divided by 0
constexpr float hidden  = -1e30f; // a logit that a softmax makes 0; added, so not infinite
constexpr float epsilon = 1e-6f;  // floor of the cosine's denominator, as in score/keydiff.cpp

} // namespace

bool has_graph(const edgekv_policy & policy) {
    switch (policy.base) {
        case EDGEKV_BASE_KEYDIFF: return policy.anchor != EDGEKV_ANCHOR_MEDIAN;
        case EDGEKV_BASE_SNAPKV:  return policy.pool_rows == 0 || policy.kernel == 1; // others go row by row
        case EDGEKV_BASE_L2NORM:
        case EDGEKV_BASE_TOVA:
        case EDGEKV_BASE_H2O:
        case EDGEKV_BASE_AHAKV:   return true;
        default:                  return false;
    }
}

bool RowGraphs::score_pool(const edgekv_policy & policy, uint32_t n_filled, const GraphQueries & queries,
                      const int32_t * rope_positions, float * scores) {
    const size_t n_rows     = queries.rows.size();
    const bool   by_queries = traits_of(policy).queries;
    if (!graph_ || n_rows > static_cast<size_t>(first_->ne[0]) || queries.gains.size() > static_cast<size_t>(gains_->ne[0]) ||
        (by_queries && n_rows == 0)) {
        return false;
    }
    if (traits_of(policy).before_rope) {
        send(before_, rope_positions, ggml_nbytes(before_));
    }
    if (by_queries) {
        send(gains_, queries.gains.data(), queries.gains.size() * sizeof(float));
        send(first_, queries.rows.data(), n_rows * sizeof(int32_t));
        send(second_, queries.deltas.data(), n_rows * sizeof(int32_t));
        if (!queries.probed) {
            send(before_, scores, ggml_nbytes(before_));
        }
    }
    return by_run(n_filled, scores, [&](const Run & run) {
        return by_queries ? score_by_attention(policy, queries, run) : score_by_keys(policy, run);
    });
}

// Have f make the sections of a graph for the heads of every layer, run by run, until one call returns false.
bool RowGraphs::compute_by_run(uint32_t n_filled, const std::function<bool(const Run & run)> & f) {
    graph_->begin();
    for (uint32_t i = 0; i < flat_.layers().size(); ++i) {
        const FlatCache::Layer & layer = flat_.layers()[i];
        for (uint32_t g = 0; layer.pool == number_ && g < layer.n_head_kv;) {
            const Run run = run_at(i, g, n_filled);
            if (run.n > 0 && !f(run)) {
                return false;
            }
            g += run.n_heads;
        }
    }
    return graph_->compute_if_supported();
}

// The same, and bring what they leave in scores_.
bool RowGraphs::by_run(uint32_t n_filled, float * by_cell, const std::function<bool(const Run & run)> & f) {
    if (!compute_by_run(n_filled, f)) {
        return false;
    }
    take(by_cell, ggml_nelements(scores_));
    return true;
}

// The run of heads from one on, as long as there is memory for their keys.
RowGraphs::Run RowGraphs::run_at(uint32_t index, uint32_t begin, uint32_t n_filled) const {
    const FlatCache::Layer & layer = flat_.layers()[index];
    const FlatCache::Head &  first = flat_.head(layer.first_head + begin);
    const uint32_t           n     = first.open() + n_filled;
    const size_t             most  = n_at_once(flat_, number_) / std::max(1u, n);
    uint32_t                 end   = begin + 1;
    while (end < layer.n_head_kv && end - begin < most && flat_.head(layer.first_head + end).is_like(first)) {
        ++end;
    }
    return { index, begin, end - begin, n };
}

// Of all keys or values, those of a run's cells, as floats: (dim, n, heads).
ggml_tensor * RowGraphs::rows_of(ggml_context * context, ggml_tensor * all, const Run & run) {
    return rows_of(context, all, run, { 0, run.n }, 0);
}

// Those of some of its cells, of which the first lies where a tensor may begin.
ggml_tensor * RowGraphs::rows_of(ggml_context * context, ggml_tensor * all, const Run & run, const Cells & cells, size_t place) {
    const FlatCache::Head & first = first_of(run);
    const size_t            row   = all->nb[1];
    ggml_tensor *           rows  = ggml_view_3d(context, all, all->ne[0], cells.n, run.n_heads, row,
                                                 row * flat_.n_apart(first, pool_), row * (first.first + cells.begin));
    return graph_->in_place(place, ggml_cast(context, rows, GGML_TYPE_F32));
}

// What numbers by cell say of a run's cells: (n, heads).
ggml_tensor * RowGraphs::place_of(ggml_context * context, ggml_tensor * by_cell, const Run & run) {
    const FlatCache::Head & first = first_of(run);
    return ggml_view_2d(context, by_cell, run.n, run.n_heads, sizeof(float) * flat_.n_own(first), sizeof(float) * first.cell);
}

bool RowGraphs::score_by_keys(const edgekv_policy & policy, const Run & run) {
    Graph &        graph   = *graph_;
    const bool     undone  = traits_of(policy).before_rope && turned_[run.layer].n_rot > 0;
    ggml_context * context = undone && !turned_[run.layer].from_first ? nullptr : graph.begin_section();
    if (context == nullptr) {
        return false;
    }
    ggml_tensor * keys = rows_of(context, pool_.k, run);
    ggml_tensor * scores;
    if (undone) {
        keys = before_rope(context, keys, run);
    }
    if (policy.base == EDGEKV_BASE_KEYDIFF) {
        scores = key_diff(context, policy, keys);
    } else {
        scores = of_rows(context, graph.in_place(1, ggml_sqr(context, keys)));
        scores = ggml_scale_inplace(context, ggml_sqrt_inplace(context, scores), -1.0f);
    }
    graph.add(ggml_cpy(context, scores, place_of(context, scores_, run)));
    return true;
}

// A run's keys (dim, n, heads) as they were before RoPE.
ggml_tensor * RowGraphs::before_rope(ggml_context * context, ggml_tensor * keys, const Run & run) {
    const int64_t n_rows    = keys->ne[1] * keys->ne[2];
    ggml_tensor * rows      = ggml_reshape_3d(context, keys, keys->ne[0], 1, n_rows);
    ggml_tensor * positions = place_of(context, before_, run);
    positions->type         = GGML_TYPE_I32;
    positions               = graph_->small(ggml_cont(context, positions)); // where a device can read from
    positions               = ggml_reshape_1d(context, positions, n_rows);
    rows                    = turned(context, rotated(context, rows, 1, of_keys_), positions, run.layer, true);
    rows                    = rotated(context, rows, 0, of_keys_);
    return ggml_reshape_3d(context, rows, keys->ne[0], keys->ne[1], keys->ne[2]);
}

// The attention that cells get, a few rows at a time: the mean over a KV head's query heads, summed over the rows, or the largest.
bool RowGraphs::score_by_attention(const edgekv_policy & policy, const GraphQueries & queries, const Run & run) {
    const FlatCache::Layer & layer   = flat_.layers()[run.layer];
    const Turned &           turn    = turned_[run.layer];
    const bool               largest = traits_of(policy).largest;
    const size_t             n_rows  = queries.rows.size();
    const size_t             n_room  = n_at_once(flat_, number_);
    const size_t             n_fit   = n_room / (size_t(run.n_heads) * run.n) * layer.head_dim_k; // logits of a query that fit a place
    const size_t             n_left  = n_fit - std::min<size_t>(n_fit, largest); // beside the largest ones so far
    const size_t             n_once  = std::min(n_left, n_room / layer.n_head_kv) / layer.n_group; // and queries of the whole layer
    const auto &             deltas  = queries.deltas;
    const bool               stay    = turn.n_rot == 0 || std::all_of(deltas.begin(), deltas.end(), [](int32_t by) { return by == 0; });
    if (n_once == 0 || (!stay && !turn.from_first)) {
        return false;
    }
    for (size_t first = 0; first < n_rows; first += n_once) {
        const size_t   n_now   = std::min(n_once, n_rows - first);
        Graph &        graph   = *graph_;
        ggml_context * context = graph.begin_section();
        if (context == nullptr) {
            return false;
        }
        ggml_tensor * keys   = rows_of(context, pool_.k, run);
        ggml_tensor * rows   = queries_of(context, run, first, n_now, !stay);
        ggml_tensor * logits = graph.in_place(1, ggml_mul_mat(context, keys, rows)); // (n, rows, query heads)
        ggml_prec_set_acc(logits, GGML_PREC_F32);

        // a softmax makes a silent 0 of -inf; NaN * 0 is none
        ggml_tensor * sums = graph.small(ggml_sum_rows(context, logits));
        sums               = ggml_scale_inplace(context, sums, 0.0f);
        logits             = ggml_add_inplace(context, logits, sums);
        logits             = sharpened(context, logits, queries, run, first);
        if (queries.softcap > 0.0f) {
            logits = ggml_scale_inplace(context, logits, 1.0f / queries.softcap);
            logits = ggml_scale_inplace(context, ggml_tanh_inplace(context, logits), queries.softcap);
        }
        ggml_tensor * mask = queries.probed ? nullptr : mask_of(context, run, first, n_now);
        if (mask != nullptr) {
            logits = ggml_reshape_4d(context, logits, run.n, n_now, layer.n_group, run.n_heads);
            logits = ggml_add_inplace(context, logits, mask);
        }
        ggml_tensor * weights = ggml_soft_max_inplace(context, logits);
        if (mask != nullptr) { // of a row that sees no cell, a softmax gives every cell the same
            mask    = ggml_scale_bias_inplace(context, mask, 1.0f, 1.0f);
            mask    = ggml_clamp_inplace(context, mask, 0.0f, 1.0f); // 1 of cells that are seen, else 0
            weights = ggml_mul_inplace(context, weights, mask);
        }
        weights = ggml_reshape_3d(context, weights, run.n, static_cast<int64_t>(n_now) * layer.n_group, run.n_heads);

        ggml_tensor * place = place_of(context, scores_, run);
        if (largest) {
            ggml_tensor * scores = largest_of(context, weights, sums, first == 0 ? nullptr : place);
            graph.add(ggml_cpy(context, scores, place));
        } else {
            weights              = ggml_transpose(context, weights);
            ggml_tensor * scores = of_rows(context, graph.in_place(2, ggml_cont(context, weights)));
            scores               = ggml_scale_inplace(context, scores, 1.0f / static_cast<float>(layer.n_group));
            graph.add(first == 0 ? ggml_cpy(context, scores, place) : ggml_add_inplace(context, place, scores));
        }
    }
    return true;
}

// The largest of the rows of weights (n, rows, heads), and of those before, (n, heads), if there are any: (n, heads). A maximum passes
// over NaN, so it is added: `zeros` of each row are NaN where the row is.
ggml_tensor * RowGraphs::largest_of(ggml_context * context, ggml_tensor * weights, ggml_tensor * zeros, ggml_tensor * before) {
    Graph &       graph   = *graph_;
    const int64_t n       = weights->ne[0];
    const int64_t n_rows  = weights->ne[1];
    const int64_t n_heads = weights->ne[2];
    zeros                 = graph.small(ggml_sum_rows(context, ggml_reshape_2d(context, zeros, n_rows, n_heads)));
    if (before != nullptr) {
        ggml_tensor * nothing = graph.small(ggml_cont(context, before));
        nothing               = ggml_scale_inplace(context, nothing, 0.0f);
        zeros                 = ggml_add_inplace(context, nothing, zeros);
        before                = ggml_view_3d(context, before, n, 1, n_heads, before->nb[1], before->nb[1], 0);
        weights               = graph.in_place(2, ggml_concat(context, weights, before, 1));
    }
    const auto    height  = static_cast<int>(weights->ne[1]);
    ggml_tensor * largest = graph.small(ggml_pool_2d(context, weights, GGML_OP_POOL_MAX, 1, height, 1, height, 0.0f, 0.0f));
    largest               = ggml_reshape_2d(context, largest, n, n_heads);
    return ggml_add_inplace(context, largest, zeros);
}

// Products (n, rows, query heads) as logits, where `first` rows come before the first: scaled, or each by its row's gain.
ggml_tensor * RowGraphs::sharpened(ggml_context * context, ggml_tensor * products, const GraphQueries & queries, const Run & run,
                                   size_t first) {
    if (queries.gains.empty()) {
        return ggml_scale_inplace(context, products, flat_.attention(flat_.layers()[run.layer].il).scale);
    }
    first += run.layer * queries.rows.size(); // of all layers' rows
    ggml_tensor * gains = ggml_view_2d(context, gains_, 1, products->ne[1], sizeof(float), first * sizeof(float));
    return ggml_mul_inplace(context, products, gains);
}

// Added to logits (n, rows, group, heads), where `first` rows come before the first: 0, or `hidden` of cells that come after their
// row (n, rows, 1, heads).
ggml_tensor * RowGraphs::mask_of(ggml_context * context, const Run & run, size_t first, int64_t n_rows) {
    Graph &       graph  = *graph_;
    ggml_tensor * before = place_of(context, before_, run);
    const size_t  head   = before->nb[1];
    before               = ggml_view_4d(context, before, run.n, 1, 1, run.n_heads, head, head, head, 0);
    ggml_tensor * mask   = graph.in_place(2, ggml_repeat_4d(context, before, run.n, n_rows, 1, run.n_heads));
    ggml_tensor * steps  = ggml_view_2d(context, steps_, 1, n_rows, sizeof(float), first * sizeof(float));

    mask = ggml_sub_inplace(context, mask, steps); // whole numbers: more than 0 is at least 1
    return ggml_scale_inplace(context, ggml_clamp_inplace(context, mask, 0.0f, 1.0f), hidden);
}

// The listed rows [first, first + n_rows) of the queries of a run, turned: (dim, n_rows, query heads).
ggml_tensor * RowGraphs::queries_of(ggml_context * context, const Run & run, size_t first, size_t n_rows, bool turn) {
    const FlatCache::Layer & layer = flat_.layers()[run.layer];
    Graph &                  graph = *graph_;
    const auto               list  = [&](ggml_tensor * all) { return ggml_view_1d(context, all, n_rows, first * sizeof(int32_t)); };
    ggml_tensor * rows = graph.in_place(1, ggml_get_rows(context, flat_.queries().rings()[run.layer], list(first_)));
    rows               = ggml_reshape_3d(context, rows, layer.head_dim_k, layer.n_head(), n_rows);
    if (turn) {
        ggml_tensor * deltas = list(second_);
        deltas               = first == 0 ? deltas : graph.small(ggml_cont(context, deltas)); // where a device can read from
        rows                 = rotated(context, turned(context, rotated(context, rows, 2, of_keys_), deltas, run.layer), 1, of_keys_);
    }
    const int64_t n_heads = int64_t(run.n_heads) * layer.n_group;
    rows = ggml_view_3d(context, rows, layer.head_dim_k, n_heads, static_cast<int64_t>(n_rows), rows->nb[1], rows->nb[2],
                        size_t(run.begin) * layer.n_group * rows->nb[1]);
    return graph.in_place(2, ggml_cont(context, ggml_permute(context, rows, 0, 2, 1, 3)));
}

// Sums of the rows of products (dim, n, n_head_kv): (n, n_head_kv).
ggml_tensor * RowGraphs::of_rows(ggml_context * context, ggml_tensor * products) {
    ggml_tensor * sums = graph_->small(ggml_sum_rows(context, products));
    return ggml_reshape_2d(context, sums, products->ne[1], products->ne[2]);
}

// Sums over the cells, scaled, or each with a weight (n, n_head_kv): (dim, 1, n_head_kv).
ggml_tensor * RowGraphs::over_cells(ggml_context * context, ggml_tensor * rows, float scale, ggml_tensor * weights) {
    ggml_tensor * turned = ggml_transpose(context, rows);
    turned               = graph_->in_place(2, ggml_cont(context, turned)); // (n, dim, n_head_kv)
    if (weights != nullptr) {
        weights = ggml_view_3d(context, weights, weights->ne[0], 1, weights->ne[1], weights->nb[1], weights->nb[1], 0);
        turned  = ggml_mul_inplace(context, turned, weights);
    }
    ggml_tensor * sums   = graph_->small(ggml_sum_rows(context, turned));
    ggml_tensor * vector = ggml_reshape_3d(context, sums, rows->ne[0], 1, rows->ne[2]);
    return ggml_scale_inplace(context, vector, scale);
}

ggml_tensor * RowGraphs::key_diff(ggml_context * context, const edgekv_policy & policy, ggml_tensor * keys) {
    Graph &     graph  = *graph_;
    const float n      = static_cast<float>(keys->ne[1]);
    const bool  unit   = policy.anchor != EDGEKV_ANCHOR_MEAN;
    const bool  cosine = policy.metric == EDGEKV_METRIC_COSINE;

    // keys over their root mean square are unit keys times sqrt(dim)
    ggml_tensor * averaged = unit ? graph.in_place(1, ggml_rms_norm(context, keys, least)) : keys;
    ggml_tensor * anchor   = over_cells(context, averaged, 1.0f / (unit ? n * std::sqrt(static_cast<float>(keys->ne[0])) : n));
    if (policy.metric == EDGEKV_METRIC_EUCLIDEAN) {
        ggml_tensor * apart = graph.in_place(1, ggml_sub(context, keys, anchor));
        return ggml_sqrt_inplace(context, of_rows(context, ggml_sqr_inplace(context, apart)));
    }
    ggml_tensor * products = of_rows(context, graph.in_place(1, ggml_mul(context, keys, anchor)));
    if (cosine) {
        ggml_tensor * norms = of_rows(context, graph.in_place(1, ggml_sqr(context, keys)));
        norms               = ggml_sqrt_inplace(context, norms);
        if (policy.anchor != EDGEKV_ANCHOR_PAIRWISE) { // whose anchor is the mean of unit keys, and no direction
            ggml_tensor * norm = of_rows(context, graph.small(ggml_sqr(context, anchor)));
            norm               = ggml_sqrt_inplace(context, norm);
            norms              = ggml_mul_inplace(context, norms, norm);
        }
        norms    = ggml_clamp_inplace(context, norms, epsilon, FLT_MAX);
        products = ggml_div_inplace(context, products, norms);
    }
    return ggml_scale_inplace(context, products, -1.0f);
}

} // namespace edgekv
