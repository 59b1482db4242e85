#include "score/attention.h"

#include "abi/status.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>

namespace edgekv {

void check(const edgekv_queries & queries, const Rows & keys) {
    require(queries.n_rows == 0 || (queries.data != nullptr && queries.positions != nullptr), "queries.data or .positions is NULL");
    require(queries.n_head > 0, "queries.n_head is 0");
    require(queries.dim == keys.dim(), "queries.dim differs from the keys'");
    require(std::isfinite(queries.scale) && queries.softcap >= 0.0f, "queries.scale is not finite, or softcap is negative");
}

namespace {

void pack_keys(const Rows & keys, Scratch & scratch) {
    const size_t n   = keys.n();
    const size_t dim = keys.dim();
    for (size_t first = 0; first < n; first += n_lanes) {
        for (size_t i = 0; i < n_lanes; ++i) {
            keys.read(std::min(first + i, n - 1), scratch.row.data() + i * dim); // lanes past the end are not read again
        }
        pack(scratch.row.data(), dim, scratch.packed.data() + first * dim);
    }
}

// Turn one row's logits (n,) into exp(logit - max) and return their sum; 0 where the row sees no cell, and NaN
// throughout where a logit that it sees is not finite: a softmax makes a silent 0 of -inf, a soft-cap a number of either.
float exponentials(float * logits, size_t n, const int32_t * positions, int32_t position, bool sees_all, float softcap) {
    uint32_t n_spoilt = 0;
    for (size_t j = 0; j < n; ++j) {
        n_spoilt += (sees_all || positions[j] <= position) && !(std::fabs(logits[j]) <= std::numeric_limits<float>::max());
    }
    if (n_spoilt > 0) {
        std::fill_n(logits, n, NAN);
        return NAN;
    }
    if (softcap > 0.0f) {
        for (size_t j = 0; j < n; ++j) {
            logits[j] = softcap * std::tanh(logits[j] / softcap);
        }
    }
    if (!sees_all) {
        for (size_t j = 0; j < n; ++j) {
            logits[j] = positions[j] <= position ? logits[j] : -INFINITY;
        }
    }
    float most = -INFINITY;
    for (size_t j = 0; j < n; ++j) {
        most = logits[j] > most ? logits[j] : most;
    }
    float sum = 0.0f;
    if (most == -INFINITY) { // nothing seen
        std::fill_n(logits, n, 0.0f);
        return sum;
    }
    for (size_t j = 0; j < n; ++j) {
        logits[j] = exp_negative(logits[j] - most);
        sum += logits[j];
    }
    return sum;
}

} // namespace

void attend(const Rows & keys, const int32_t * positions, const edgekv_queries & queries, size_t n_rows,
            const float * row_scales, Scratch & scratch, float * sums) {
    const size_t n      = keys.n();
    const size_t dim    = keys.dim();
    const size_t stride = round_up(n, n_lanes);
    std::fill_n(sums, n, 0.0f);
    if (n == 0 || n_rows == 0) {
        return;
    }
    pack_keys(keys, scratch);

    const size_t  skipped = queries.n_rows - n_rows;
    const size_t  n_all   = queries.n_head * n_rows;
    const int32_t newest  = *std::max_element(positions, positions + n);
    for (size_t first = 0; first < n_all; first += n_tile_rows) {
        const size_t n_here = std::min(n_tile_rows, n_all - first);
        for (size_t r = 0; r < n_tile_rows; ++r) {
            const size_t  flat  = first + std::min(r, n_here - 1); // the last row again where the tile is not full
            const size_t  head  = flat / n_rows;
            const size_t  row   = flat % n_rows;
            const float   scale = row_scales != nullptr ? row_scales[row] : queries.scale;
            const float * query = queries.data + (head * queries.n_rows + skipped + row) * dim;
            for (size_t k = 0; k < dim; ++k) {
                scratch.tile[r * dim + k] = scale * query[k];
            }
        }
        Lanes products[n_tile_rows];
        for (size_t j = 0; j < n; j += n_lanes) {
            multiply(scratch.tile.data(), dim, scratch.packed.data() + j * dim, dim, products);
            for (size_t r = 0; r < n_here; ++r) {
                store(scratch.logits.data() + r * stride + j, products[r]);
            }
        }
        for (size_t r = 0; r < n_here; ++r) {
            float *       logits   = scratch.logits.data() + r * stride;
            const int32_t position = queries.positions[skipped + (first + r) % n_rows];
            const float   total    = exponentials(logits, n, positions, position, newest <= position, queries.softcap);
            const float   share    = total == 0.0f ? 0.0f : 1.0f / (total * static_cast<float>(queries.n_head));
            for (size_t j = 0; j < n; ++j) {
                sums[j] += logits[j] * share;
            }
        }
    }
}

} // namespace edgekv
