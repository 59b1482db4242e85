#include "score/kernels.h"
#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

// X = sum_i h_i V_i over the cells of `order` but `skipped`, h summing to 1; where they have no weight they count alike.
static void attention_output(const Rows & values, const float * weights, const uint32_t * order, size_t n, size_t skipped,
                             bool alike, float * row, float * output) {
    double total = 0.0;
    for (size_t i = 0; i < n; ++i) {
        total += i == skipped ? 0.0 : weights[order[i]];
    }
    alike                = alike || total == 0.0;
    const double inverse = 1.0 / (alike ? static_cast<double>(skipped < n ? n - 1 : n) : total);
    std::fill_n(output, values.dim(), 0.0f);
    for (size_t i = 0; i < n; ++i) {
        if (i == skipped) {
            continue;
        }
        const float weight = static_cast<float>((alike ? 1.0 : weights[order[i]]) * inverse);
        values.read(order[i], row);
        kernels().add_scaled(output, weight, row, values.dim());
    }
}

static float distance(const float * a, const float * b, uint32_t dim) { return std::sqrt(kernels().squared_distance(a, b, dim)); }

// A rotation of the values changes no distance, so rotated ones are read as they are stored.
void score_caote(const edgekv_policy & policy, const Cells & cells, const float * weights, const uint32_t * order, size_t n_alive,
                 Scratch & scratch, float * errors) {
    const Rows & values = *cells.values;
    float *      row    = scratch.rows.data();
    float *      output = scratch.anchor.data();
    const bool   fast   = policy.weigh == EDGEKV_WEIGH_FASTCAOTE;

    double total = 0.0;
    for (size_t i = 0; i < n_alive; ++i) {
        total += weights[order[i]];
    }
    const double inverse = total != 0.0 ? 1.0 / total : 0.0;
    size_t       heavy   = n_alive; // the cell that holds more than half of all weight, if there is one
    attention_output(values, weights, order, n_alive, n_alive, fast, row, output);
    for (size_t i = 0; i < n_alive; ++i) {
        const double share = weights[order[i]] * inverse;
        heavy              = share > 0.5 ? i : heavy;
        values.read(order[i], row);
        errors[order[i]] = static_cast<float>(share / std::max(1.0 - share, 1e-6) * distance(output, row, values.dim()));
    }
    // X - V of a heavy cell is mostly rounding, and 1 - h may be nothing else: the same error is h * norm2(V - X without it)
    if (heavy < n_alive && n_alive > 1 && !fast) {
        attention_output(values, weights, order, n_alive, heavy, false, row, output);
        values.read(order[heavy], row);
        errors[order[heavy]] = static_cast<float>(weights[order[heavy]] * inverse * distance(output, row, values.dim()));
    }
}

} // namespace edgekv
