#include "kernels/kernels.h"
#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

// The sum of the weights of the first n cells of `order`, but one.
static double total_of(const float * weights, const uint32_t * order, size_t n, size_t left_out) {
    double total = 0.0;
    for (size_t i = 0; i < n; ++i) {
        total += i == left_out ? 0.0 : weights[order[i]];
    }
    return total;
}

size_t heavy_cell(const edgekv_policy & policy, const float * weights, const uint32_t * order, size_t n) {
    if (n < 2 || policy.weigh == EDGEKV_WEIGH_FASTCAOTE) {
        return n;
    }
    const double total   = total_of(weights, order, n, n);
    const double inverse = total != 0.0 ? 1.0 / total : 0.0;
    return std::find_if(order, order + n, [&](uint32_t cell) { return weights[cell] * inverse > 0.5; }) - order;
}

// h, summing to 1; if nothing has weight, and for FastCAOTE, all count alike.
void write_mean_weights(const edgekv_policy & policy, const float * weights, const uint32_t * order, size_t n, size_t left_out,
                  float * mean_weights) {
    const double total   = total_of(weights, order, n, left_out);
    const bool   alike   = policy.weigh == EDGEKV_WEIGH_FASTCAOTE || total == 0.0;
    const double inverse = 1.0 / (alike ? static_cast<double>(left_out < n ? n - 1 : n) : total);
    for (size_t i = 0; i < n; ++i) {
        mean_weights[order[i]] = i == left_out ? 0.0f : static_cast<float>((alike ? 1.0 : weights[order[i]]) * inverse);
    }
}

// X = sum_i h_i V_i over the cells of `order` that have a weight in it.
static void mean_value(const Rows & values, const float * mean_weights, const uint32_t * order, size_t n, float * row, float * mean) {
    std::fill_n(mean, values.dim(), 0.0f);
    for (size_t i = 0; i < n; ++i) {
        values.read(order[i], row);
        kernels().add_scaled(mean, mean_weights[order[i]], row, values.dim());
    }
}

static float distance(const float * a, const float * b, uint32_t dim) { return std::sqrt(kernels().squared_distance(a, b, dim)); }

// How far each value is from the mean of all; that of a heavy one from the mean of the others. A rotation of the values changes no
// distance, so rotated ones are read as they are stored.
static void measure(const edgekv_policy & policy, const Rows & values, const float * weights, const uint32_t * order, size_t n,
                    size_t heavy, Scratch & scratch, float * distances) {
    float * row    = scratch.rows.data();
    float * mean   = scratch.anchor.data();
    float * mean_weights = scratch.line.data();
    write_mean_weights(policy, weights, order, n, n, mean_weights);
    mean_value(values, mean_weights, order, n, row, mean);
    for (size_t i = 0; i < n; ++i) {
        values.read(order[i], row);
        distances[order[i]] = distance(mean, row, values.dim());
    }
    if (heavy < n) {
        write_mean_weights(policy, weights, order, n, heavy, mean_weights);
        mean_value(values, mean_weights, order, n, row, mean);
        values.read(order[heavy], row);
        distances[order[heavy]] = distance(mean, row, values.dim());
    }
}

void score_caote(const edgekv_policy & policy, const Cells & cells, const float * weights, Scratch & scratch, float * errors) {
    const uint32_t * order   = cells.order;
    const size_t     n       = cells.keys.n();
    const double     total   = total_of(weights, order, n, n);
    const double     inverse = total != 0.0 ? 1.0 / total : 0.0;
    const size_t     heavy   = heavy_cell(policy, weights, order, n);
    if (cells.of_values != nullptr) {
        std::copy_n(cells.of_values, n, errors);
    } else {
        measure(policy, *cells.values, weights, order, n, heavy, scratch, errors);
    }
    for (size_t i = 0; i < n; ++i) {
        const double weight = weights[order[i]] * inverse;
        // X - V of a heavy cell is mostly rounding, and 1 - h may be nothing else: the same error is h * norm2(V - X without it)
        const double factor = i == heavy ? weight : weight / std::max(1.0 - weight, 1e-6);
        errors[order[i]]    = static_cast<float>(factor * errors[order[i]]);
    }
}

} // namespace edgekv
