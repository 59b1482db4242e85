#include "device/row_graphs.h"

#include "device/row_bits.h"
#include "rows/rows.h"

#include <algorithm>
#include <numeric>

namespace edgekv {

namespace {

constexpr size_t n_tensors = 10; // beside the rows of a pool

// The widest layer of a pool, in KV heads.
size_t widest(const FlatCache & flat, uint32_t pool) {
    size_t most = 0;
    for (const FlatCache::Layer & layer : flat.layers()) {
        most = std::max<size_t>(most, layer.pool == pool ? layer.n_head_kv : 0);
    }
    return most;
}

// Factors of one layer. A device reads them from where they begin.
size_t factor_bytes(const FlatCache::Pool & pool) { return Graph::rounded(pool.k->ne[0] / 2 * sizeof(float)); }

size_t widest_row(const FlatCache::Pool & pool) { return std::max(pool.k->ne[0], pool.v->ne[0]); }

} // namespace

// Cells that one graph scores: those of a layer whose heads hold equally many, or of the longest head.
size_t RowGraphs::n_at_once(const FlatCache & flat, uint32_t pool) {
    return std::max<size_t>(widest(flat, pool) * flat.n_cells(), flat.n_cells_max());
}

// Their keys or values, as floats.
size_t RowGraphs::place_bytes(const FlatCache & flat, uint32_t pool) {
    return sizeof(float) * n_at_once(flat, pool) * widest_row(flat.pools()[pool]);
}

// Four numbers a cell, two vectors and a number a head.
size_t RowGraphs::small_bytes(const FlatCache & flat, uint32_t pool) {
    const size_t n_heads = widest(flat, pool) * sizeof(float);
    return 4 * Graph::rounded(sizeof(float) * n_at_once(flat, pool)) + 2 * Graph::rounded(n_heads * widest_row(flat.pools()[pool])) +
           Graph::rounded(n_heads);
}

// Rows that are moved or turned at once: as many as a layer has.
size_t RowGraphs::n_listed(const FlatCache & flat, uint32_t pool) {
    const FlatCache::Pool & rows = flat.pools()[pool];
    return std::min(widest(flat, pool) * flat.n_cells(), place_bytes(flat, pool) / std::max(rows.k->nb[1], rows.v->nb[1]));
}

uint64_t RowGraphs::bytes(const FlatCache & flat, uint32_t pool) {
    const FlatCache::Pool & rows  = flat.pools()[pool];
    const uint64_t          dim_k = rows.k->ne[0];
    const uint64_t          dim_v = rows.v->ne[0];
    const uint64_t          n     = uint64_t(rows.n_heads) * flat.n_cells();
    return Graph::bytes(place_bytes(flat, pool), small_bytes(flat, pool)) + 3 * sizeof(int32_t) * n_listed(flat, pool) +
           sizeof(float) * (3 * n + dim_k * dim_k + dim_v * dim_v) + 2 * flat.layers().size() * factor_bytes(rows);
}

// The description of a graph, and the rows that are noted.
uint64_t RowGraphs::host_bytes(const FlatCache & flat, uint32_t pool) {
    return Graph::description_bytes() + 2 * sizeof(int32_t) * n_listed(flat, pool);
}

RowGraphs::RowGraphs(const llama_context & ctx, const FlatCache & flat, uint32_t pool, const std::vector<RopeAngles> & angles) :
    flat_(flat), pool_(flat.pools()[pool]), number_(pool), memory_(n_tensors), turned_(flat.layers().size()) {
    const ggml_backend_t backend = backend_of(ctx, *pool_.k);
    const size_t         n       = n_listed(flat, pool);
    ggml_context *       here    = memory_.at(*pool_.k);
    const size_t         n_bytes = Graph::bytes(place_bytes(flat, pool), small_bytes(flat, pool));
    ggml_tensor *        work    = ggml_new_tensor_1d(here, GGML_TYPE_F32, n_bytes / sizeof(float));

    first_    = ggml_new_tensor_1d(here, GGML_TYPE_I32, n);
    second_   = ggml_new_tensor_1d(here, GGML_TYPE_I32, n);
    steps_    = ggml_new_tensor_1d(here, GGML_TYPE_F32, n);
    scores_   = ggml_new_tensor_1d(here, GGML_TYPE_F32, uint64_t(pool_.n_heads) * flat.n_cells());
    before_   = ggml_new_tensor_1d(here, GGML_TYPE_F32, scores_->ne[0]);
    gains_    = ggml_new_tensor_1d(here, GGML_TYPE_F32, scores_->ne[0]);
    factors_  = ggml_new_tensor_2d(here, GGML_TYPE_F32, factor_bytes(pool_) / sizeof(float), 2 * flat.layers().size());

    of_keys_.matrix   = ggml_new_tensor_2d(here, GGML_TYPE_F32, pool_.k->ne[0], pool_.k->ne[0]);
    of_values_.matrix = ggml_new_tensor_2d(here, GGML_TYPE_F32, pool_.v->ne[0], pool_.v->ne[0]);
    memory_.allocate();
    for (const FlatCache::Layer & layer : flat.layers()) {
        if (layer.pool == pool) {
            write(of_values_, flat.attention(layer.il).rotation_v);
            break;
        }
    }
    for (size_t i = 0; i < angles.size(); ++i) {
        const FlatCache::Layer & layer = flat.layers()[i];
        if (layer.pool != pool) {
            continue;
        }
        write(of_keys_, flat.attention(layer.il).rotation_k);

        // what a type rounds again must be what turns; other rows keep the bytes of what does not
        const auto   type     = pool_.k->type;
        const size_t step     = std::max<size_t>(ggml_blck_size(type), of_keys_.run);
        const bool   whole    = (angles[i].n_rot + step - 1) / step * step == layer.head_dim_k;
        turned_[i].from_first = angles[i].first == 0;
        turned_[i].possible   = angles[i].first == 0 && (whole || (!ggml_is_quantized(type) && of_keys_.run == 0));
        turned_[i].neighbours = angles[i].neighbours;
        turned_[i].n_rot      = static_cast<int32_t>(angles[i].n_rot);

        std::vector<float> factors(angles[i].w.size()); // ggml's angle is position / factor
        std::transform(angles[i].w.begin(), angles[i].w.end(), factors.begin(), [](double w) { return static_cast<float>(1.0 / w); });
        for (const size_t row : { i, flat.layers().size() + i }) {
            ggml_backend_tensor_set(factors_, factors.data(), row * factors_->nb[1], factors.size() * sizeof(float));
            std::transform(factors.begin(), factors.end(), factors.begin(), std::negate<>());
        }
    }
    std::vector<float> steps(n);
    std::iota(steps.begin(), steps.end(), 0.0f);
    ggml_backend_tensor_set(steps_, steps.data(), 0, ggml_nbytes(steps_));
    noted_first_.reserve(n);
    noted_second_.reserve(n);
    if (backend != nullptr) {
        graph_.emplace(backend, *work, place_bytes(flat, pool));
        moves_ = build_moves(1);
        for (uint32_t i = 0; i < turned_.size(); ++i) {
            turned_[i].possible = turned_[i].possible && (turned_[i].n_rot == 0 || build_turns(i, 1));
        }
    }
}

void RowGraphs::write(Rotation & rotation, uint32_t run) {
    if (rotation.run == run) {
        return;
    }
    rotation.run = run;
    std::vector<float> row(run);
    for (uint32_t i = 0; i < run; ++i) {
        std::fill(row.begin(), row.end(), 0.0f);
        row[i] = 1.0f;
        rotate_hadamard(row.data(), run, run);
        ggml_backend_tensor_set(rotation.matrix, row.data(), i * run * sizeof(float), run * sizeof(float));
    }
}

void RowGraphs::move(uint32_t from, uint32_t to) {
    turning_.reset();
    note(from, static_cast<int32_t>(to));
}

void RowGraphs::turn(uint32_t layer, uint32_t row, int32_t delta) {
    if (delta != 0 && turned_[layer].n_rot > 0) {
        turning_ = layer;
        note(row, delta);
    }
}

void RowGraphs::note(uint32_t first, int32_t second) {
    noted_first_.push_back(static_cast<int32_t>(first));
    noted_second_.push_back(second);
    if (noted_first_.size() == static_cast<size_t>(first_->ne[0])) {
        finish();
    }
}

void RowGraphs::forget() {
    noted_first_.clear();
    noted_second_.clear();
}

void RowGraphs::finish() {
    const size_t n = noted_first_.size();
    if (n == 0) {
        return;
    }
    const size_t n_bytes = n * sizeof(int32_t);
    send(first_, noted_first_.data(), n_bytes);
    send(second_, noted_second_.data(), n_bytes);
    forget();
    if (turning_) {
        build_turns(*turning_, n);
    } else {
        build_moves(n);
    }
    graph_->compute();
}

void RowGraphs::send(ggml_tensor * to, const void * from, size_t n_bytes) {
    ggml_backend_tensor_set(to, from, 0, n_bytes);
    crossed_bytes += n_bytes;
}

// The first n numbers that a graph left in scores_.
void RowGraphs::take(float * to, size_t n) {
    ggml_backend_tensor_get(scores_, to, 0, n * sizeof(float));
    crossed_bytes += n * sizeof(float);
}

// Hadamard-rotated rows (dim, ...) as they were before, or the other way round.
ggml_tensor * RowGraphs::rotated(ggml_context * context, ggml_tensor * rows, size_t place, const Rotation & rotation) {
    const int64_t run = rotation.run;
    if (run == 0) {
        return rows;
    }
    ggml_tensor * runs   = ggml_reshape_2d(context, rows, run, ggml_nelements(rows) / run);
    ggml_tensor * matrix = ggml_view_2d(context, rotation.matrix, run, run, run * sizeof(float), 0);
    runs                 = graph_->in_place(place, ggml_mul_mat(context, matrix, runs));
    ggml_mul_mat_set_hint(runs, GGML_HINT_SRC0_IS_HADAMARD);
    return ggml_reshape_3d(context, runs, rows->ne[0], rows->ne[1], rows->ne[2]);
}

// Rows (dim, heads, n), turned by delta (n,) positions, or back. The angles are measured ones, so no scaling is left to ggml.
ggml_tensor * RowGraphs::turned(ggml_context * context, ggml_tensor * rows, ggml_tensor * delta, uint32_t index, bool back) {
    const Turned & turn    = turned_[index];
    const size_t   row     = (back ? turned_.size() : 0) + index;
    ggml_tensor *  factors = ggml_view_1d(context, factors_, turn.n_rot / 2, row * factors_->nb[1]);
    return ggml_rope_ext_inplace(context, rows, delta, factors, turn.n_rot,
                                 turn.neighbours ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX, 0, 1.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
}

// Gather the rows that are noted, then put them where they go. False where the backend cannot.
bool RowGraphs::build_moves(size_t n) {
    const bool latent = pool_.v == pool_.k;
    if (pool_.k->nb[1] % sizeof(float) != 0 || pool_.v->nb[1] % sizeof(float) != 0) {
        return false; // an odd number of blocks of q8_0 or q4_0
    }
    Graph &        graph   = *graph_;
    ggml_context * context = graph.begin();
    ggml_tensor *  from    = ggml_view_1d(context, first_, n, 0);
    ggml_tensor *  to      = ggml_view_1d(context, second_, n, 0);
    for (size_t place = 0; place < (latent ? 1u : 2u); ++place) {
        ggml_tensor * bits = as_bits(context, place == 0 ? pool_.k : pool_.v);
        ggml_tensor * rows = graph.in_place(place, ggml_get_rows(context, bits, from));
        graph.add(ggml_set_rows(context, bits, rows, to));
    }
    return graph.is_supported();
}

// Read the keys that are noted, turn them, and round them again where they lie. False where the backend cannot.
bool RowGraphs::build_turns(uint32_t layer, size_t n) {
    const int64_t  dim     = pool_.k->ne[0];
    Graph &        graph   = *graph_;
    ggml_context * context = graph.begin();
    ggml_tensor *  from    = ggml_view_1d(context, first_, n, 0);
    ggml_tensor *  delta   = ggml_view_1d(context, second_, n, 0);
    ggml_tensor *  keys    = graph.in_place(0, ggml_get_rows(context, pool_.k, from));
    keys                   = ggml_reshape_3d(context, keys, dim, 1, static_cast<int64_t>(n));
    keys                   = rotated(context, turned(context, rotated(context, keys, 1, of_keys_), delta, layer), 0, of_keys_);
    keys                   = ggml_reshape_2d(context, keys, dim, static_cast<int64_t>(n));
    graph.add(ggml_set_rows(context, pool_.k, keys, from));
    return graph.is_supported();
}

} // namespace edgekv
