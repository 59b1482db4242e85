// What scores read of values, as graphs.
#include "device/row_graphs.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace edgekv {

bool RowGraphs::square(uint32_t n_filled, float * squares) {
    return graph_ && by_run(n_filled, squares, [&](const Run & run) {
        Graph &        graph   = *graph_;
        ggml_context * context = graph.begin_section();
        if (context == nullptr) {
            return false;
        }
        ggml_tensor * values = rows_of(context, pool_.v, run);
        ggml_tensor * sums   = of_rows(context, graph.in_place(1, ggml_sqr(context, values)));
        graph.add(ggml_cpy(context, sums, place_of(context, scores_, run)));
        return true;
    });
}

// A rotation of the values changes no distance, so rotated ones are read as they are stored.
bool RowGraphs::measure(uint32_t n_filled, float * by_cell) {
    if (!graph_) {
        return false;
    }
    send(before_, by_cell, ggml_nbytes(before_));
    return by_run(n_filled, by_cell, [&](const Run & run) {
        Graph &        graph   = *graph_;
        ggml_context * context = graph.begin_section();
        if (context == nullptr) {
            return false;
        }
        ggml_tensor * values = rows_of(context, pool_.v, run);
        ggml_tensor * mean   = over_cells(context, values, 1.0f, place_of(context, before_, run));
        ggml_tensor * apart  = graph.in_place(1, ggml_sub(context, values, mean));
        apart                  = of_rows(context, ggml_sqr_inplace(context, apart));
        apart                  = ggml_sqrt_inplace(context, apart);
        graph.add(ggml_cpy(context, apart, place_of(context, scores_, run)));
        return true;
    });
}

bool RowGraphs::norms(uint32_t n_filled, const std::vector<const std::vector<WeightRows> *> & projections,
                      const std::vector<uint32_t> & first_cells, float * norms) {
    struct Piece { // of one head
        size_t from;
        size_t to;
        size_t n;
    };
    std::vector<Piece> pieces; // they come here one after the other
    size_t             n_all = 0;
    const bool         done  = graph_ && compute_by_run(n_filled, [&](const Run & run) {
        const FlatCache::Layer & layer = flat_.layers()[run.layer];
        const auto               first = first_cells.begin() + layer.first_head + run.begin;
        // a tensor may begin at every so many rows
        const auto     step  = static_cast<uint32_t>(Graph::alignment / std::gcd(Graph::alignment, pool_.v->nb[1]));
        const uint32_t begin = std::min(run.n, *std::min_element(first, first + run.n_heads) / step * step);
        const size_t   n     = run.n - begin;
        for (uint32_t cell = begin; cell < run.n; cell += n_normed) {
            const Cells cells = { cell, std::min(n_normed, run.n - cell) };
            for (size_t reader = 0; reader < layer.readers.size(); ++reader) {
                const ggml_tensor * w_o = (*projections[run.layer])[reader].on(graph_->backend());
                const Place         to  = { n_all + cell - begin, n };
                if (w_o == nullptr || !add_norms(run, *w_o, layer.readers[reader].n_group, cells, to, reader == 0)) {
                    return false;
                }
            }
        }
        for (uint32_t g = 0; g < run.n_heads; ++g, n_all += n) {
            pieces.push_back({ n_all, first_of(run).cell + g * flat_.n_own(first_of(run)) + begin, n });
        }
        return true;
    });
    if (!done) {
        return false;
    }
    take(norms, n_all);
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) { // the last first, since no piece moves to an earlier place
        std::memmove(norms + piece->to, norms + piece->from, piece->n * sizeof(float));
    }
    return true;
}

// Those of some cells by one W_O, a few of its outputs at a time; added to what is there, but for the first W_O.
bool RowGraphs::add_norms(const Run & run, const ggml_tensor & w_o, uint32_t n_group, const Cells & cells, const Place & place,
                          bool first) {
    const int64_t n         = cells.n;
    const int64_t n_head_kv = run.n_heads;
    const int64_t n_head    = n_head_kv * n_group;
    const int64_t dim       = pool_.v->ne[0];
    const int64_t n_columns = w_o.ne[0];
    const int64_t n_outputs = w_o.ne[1];

    // a device reads stored rows from where a tensor may begin
    const auto    row    = static_cast<int64_t>(w_o.nb[1]);
    const int64_t step   = Graph::alignment / std::gcd(static_cast<int64_t>(Graph::alignment), row);
    const auto    room   = static_cast<int64_t>(place_bytes(flat_, number_) / sizeof(float)); // of a place, in floats
    const int64_t n_once = room / std::max(n_columns, n * n_head) / step * step;
    if (n_once == 0) {
        return false;
    }
    for (int64_t begin = 0; begin < n_outputs; begin += n_once) {
        const int64_t  n_now   = std::min(n_once, n_outputs - begin);
        Graph &        graph   = *graph_;
        ggml_context * context = graph.begin_section();
        if (context == nullptr) {
            return false;
        }
        ggml_tensor * values = rows_of(context, pool_.v, run, cells, of_values_.run > 0 ? 1 : 0);
        values               = rotated(context, values, 0, of_values_);
        graph.add(values);

        ggml_tensor * weights = ggml_view_2d(context, const_cast<ggml_tensor *>(&w_o), n_columns, n_now, row, begin * row);
        weights               = graph.in_place(1, ggml_cast(context, weights, GGML_TYPE_F32));
        weights               = ggml_view_3d(context, weights, dim, n_head, n_now, dim * sizeof(float), n_columns * sizeof(float),
                                             run.begin * n_group * dim * sizeof(float));
        weights               = ggml_permute(context, weights, 0, 2, 1, 3);
        weights               = graph.in_place(2, ggml_cont(context, weights)); // (dim, outputs, query heads)

        ggml_tensor * outputs = graph.in_place(1, ggml_mul_mat(context, values, weights)); // (n, outputs, query heads)
        ggml_prec_set_acc(outputs, GGML_PREC_F32);
        outputs            = ggml_abs_inplace(context, outputs);
        outputs            = ggml_reshape_3d(context, outputs, n, n_now * n_group, n_head_kv);
        outputs            = ggml_transpose(context, outputs);
        ggml_tensor * sums = of_rows(context, graph.in_place(2, ggml_cont(context, outputs))); // (n, n_head_kv)

        ggml_tensor * all = ggml_view_2d(context, scores_, n, n_head_kv, place.apart * sizeof(float), place.first * sizeof(float));
        graph.add(first && begin == 0 ? ggml_cpy(context, sums, all) : ggml_add_inplace(context, all, sums));
    }
    return true;
}

} // namespace edgekv
