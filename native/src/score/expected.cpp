#include "kernels/kernels.h"
#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

// Logits of one query head: scale * mean . K, and with the covariance half of what the products of single rows vary by.
static void expect_logits(const edgekv_policy & policy, const edgekv_queries & queries, const float * rows, size_t n_rows, size_t n,
                          Scratch & scratch, float * logits) {
    const size_t  dim  = queries.dim;
    const float * keys = scratch.keys.data();
    float *       mean = scratch.anchor.data();
    std::fill_n(mean, dim, 0.0f);
    for (size_t w = 0; w < n_rows; ++w) {
        kernels().add_scaled(mean, queries.scale / static_cast<float>(n_rows), rows + w * dim, dim);
    }
    kernels().dots(keys, n, mean, dim, logits);
    if (!(policy.flags & EDGEKV_EXPECTED_COVARIANCE)) {
        return;
    }
    float * squares = scratch.line.data();
    std::fill_n(squares, n, 0.0f);
    for (size_t first = 0; first < n_rows; first += n_lanes) {
        for (size_t i = 0; i < n_lanes; ++i) {
            const float * row = rows + (first + i) * dim;
            for (size_t k = 0; k < dim; ++k) {
                scratch.panel[k * n_lanes + i] = first + i < n_rows ? queries.scale * row[k] - mean[k] : 0.0f;
            }
        }
        kernels().add_squares(keys, n, scratch.panel.data(), dim, squares);
    }
    for (size_t j = 0; j < n; ++j) {
        logits[j] += squares[j] / static_cast<float>(2 * n_rows);
    }
}

void score_expected(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores) {
    const edgekv_queries & queries = *cells.queries;
    const size_t           n       = cells.keys.n();
    const size_t           n_rows  = std::min<size_t>(queries.n_rows, policy.rows);
    float *                logits  = scratch.prior.data();
    std::fill_n(scores, n, 0.0f);
    if (n == 0 || n_rows == 0) {
        return;
    }
    cells.keys.read(0, n, scratch.keys.data());
    for (size_t h = 0; h < queries.n_head; ++h) {
        const float * rows = queries.data + ((h + 1) * queries.n_rows - n_rows) * queries.dim; // the newest ones
        expect_logits(policy, queries, rows, n_rows, n, scratch, logits);
        if (!std::all_of(logits, logits + n, [](float logit) { return std::isfinite(logit); })) {
            std::fill_n(scores, n, NAN); // a softmax makes a silent 0 of -inf
            return;
        }
        const float sink = queries.sinks != nullptr ? queries.sinks[h] : -INFINITY;
        const float most = std::max(sink, *std::max_element(logits, logits + n));
        double      sum  = std::exp(sink - most);
        for (size_t j = 0; j < n; ++j) {
            logits[j] = std::exp(logits[j] - most);
            sum += logits[j];
        }
        kernels().add_scaled(scores, static_cast<float>(1.0 / (sum * queries.n_head)), logits, n);
    }
}

} // namespace edgekv
