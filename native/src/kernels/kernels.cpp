// Compiled once for each set of instructions, with its options; EDGEKV_INSTRUCTIONS is its name.
#include "kernels/kernels.h"
#include "kernels/panel_products.h"
#include "kernels/vectors.h"

#include <cstring>
#include <math.h>

#define EDGEKV_TEXT_(a) #a
#define EDGEKV_TEXT(a)  EDGEKV_TEXT_(a)

namespace edgekv {

namespace {

float dot(const float * a, const float * b, size_t n) {
    float sum = 0.0f;
    for (size_t i = 0; i < n; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

float squared_distance(const float * a, const float * b, size_t n) {
    float sum = 0.0f;
    for (size_t i = 0; i < n; ++i) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return sum;
}

void add_scaled(float * sum, float weight, const float * row, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        sum[i] += weight * row[i];
    }
}

void dots(const float * rows, size_t n_rows, const float * vector, size_t depth, float * products) {
    for (size_t r = 0; r < n_rows; ++r) {
        products[r] = dot(rows + r * depth, vector, depth);
    }
}

void squares(const float * rows, size_t n_rows, size_t depth, float * products) {
    for (size_t r = 0; r < n_rows; ++r) {
        products[r] = dot(rows + r * depth, rows + r * depth, depth);
    }
}

void add_weighted(float * sum, const float * weights, const float * rows, size_t n_rows, size_t depth) {
    constexpr size_t n = 4; // vectors of the sum at once
    size_t           k = 0;
    for (; k + n * width <= depth; k += n * width) {
        Vector part[n];
        std::memcpy(part, sum + k, sizeof(part));
        for (size_t r = 0; r < n_rows; ++r) {
#pragma GCC unroll 4
            for (size_t i = 0; i < n; ++i) {
                part[i] += weights[r] * load(rows + r * depth + k + i * width);
            }
        }
        std::memcpy(sum + k, part, sizeof(part));
    }
    for (size_t r = 0; r < n_rows; ++r) {
        for (size_t i = k; i < depth; ++i) {
            sum[i] += weights[r] * rows[r * depth + i];
        }
    }
}

// sin(2 pi x) for |x| <= 0.25, by Taylor's terms.
float sine(float x) {
    const float square = x * x;
    float       y      = -15.0946426f;
    y                  = y * square + 42.0586940f;
    y                  = y * square - 76.7058597f;
    y                  = y * square + 81.6052493f;
    y                  = y * square - 41.3417022f;
    return x * (y * square + 6.28318531f);
}

void turn_back(float * row, const double * turns, size_t n_pairs, bool neighbours, int32_t position) {
    constexpr size_t n = 32; // pairs at once
    for (size_t first = 0; first < n_pairs; first += n) {
        const size_t end = n_pairs - first < n ? n_pairs - first : n;
        float        cosines[n], sines[n];
        for (size_t i = 0; i < end; ++i) {
            const double turn  = position * turns[first + i];
            const float  part  = static_cast<float>(turn - rint(turn)); // of a circle, in [-0.5, 0.5]
            const float  size  = part < 0.0f ? -part : part;
            const float  above = size - 0.25f;
            const float  side  = sine(0.25f - (above < 0.0f ? -above : above));

            cosines[i] = sine(0.25f - size);
            sines[i]   = part < 0.0f ? -side : side;
        }
        float *      a    = row + (neighbours ? 2 * first : first);
        float *      b    = neighbours ? a + 1 : a + n_pairs;
        const size_t step = neighbours ? 2 : 1;
        for (size_t i = 0; i < end; ++i) {
            const float x = a[i * step], y = b[i * step];

            a[i * step] = x * cosines[i] + y * sines[i];
            b[i * step] = y * cosines[i] - x * sines[i];
        }
    }
}

void add_norm1(const float * rows, size_t stride, size_t n_rows, const float * panel, size_t depth, float * sums) {
    Vector all_sums[n_parts];
    std::memcpy(all_sums, sums, sizeof(all_sums));
    each_product<n_rows_at_once>({ rows, stride, 1 }, n_rows, panel, depth, [&](size_t, const Vector (&product)[n_parts]) {
        for (size_t p = 0; p < n_parts; ++p) {
            all_sums[p] += magnitude(product[p]);
        }
    });
    std::memcpy(sums, all_sums, sizeof(all_sums));
}

void add_squares(const float * rows, size_t n_rows, const float * panel, size_t depth, float * sums) {
    each_product<n_rows_at_once>({ rows, depth, 1 }, n_rows, panel, depth, [&](size_t row, const Vector (&product)[n_parts]) {
        Vector squares = product[0] * product[0];
        for (size_t p = 1; p < n_parts; ++p) {
            squares += product[p] * product[p];
        }
        float lanes[width];
        store(lanes, squares);
        for (const float lane : lanes) {
            sums[row] += lane;
        }
    });
}

bool add_attention(const float * rows, size_t n_rows, const float * panel, size_t depth, const int32_t * positions,
                   const int32_t * limits, float softcap, const float * sinks, const float * lane_factors, float * logits, float * weights) {
    int32_t first_limit = limits[0]; // what all lanes see
    Whole   last_seen[n_parts], largest[n_parts] = {}; // `largest` magnitude, in bits: they grow as floats do, and NaN is above inf
    Vector  most[n_parts], sums[n_parts], factors[n_parts];
    std::memcpy(last_seen, limits, sizeof(last_seen));
    for (size_t i = 0; i < n_lanes; ++i) {
        first_limit = limits[i] < first_limit ? limits[i] : first_limit;
    }
    std::memcpy(most, sinks, sizeof(most));
    each_product<n_rows_at_once>({ rows, depth, 1 }, n_rows, panel, depth, [&](size_t row, Vector (&product)[n_parts]) {
        cap(product, softcap);
        const bool seen_by_all = positions[row] <= first_limit;
        for (size_t p = 0; p < n_parts; ++p) {
            Vector logit = product[p];
            Whole  bits  = bits_of<Whole>(logit) & 0x7FFFFFFF;
            if (!seen_by_all) {
                bits  = positions[row] <= last_seen[p] ? bits : Whole{};
                logit = positions[row] <= last_seen[p] ? logit : all(-INFINITY);
            }
            largest[p] = bits > largest[p] ? bits : largest[p];
            most[p]    = logit > most[p] ? logit : most[p];
            store(logits + row * n_lanes + p * width, logit);
        }
    });
    int32_t largest_of[n_lanes];
    std::memcpy(largest_of, largest, sizeof(largest_of));
    for (const int32_t bits : largest_of) {
        if (bits >= infinity) {
            return false;
        }
    }
    for (Vector & vector : most) { // so that a lane that sees nothing is exp(-inf) throughout
        vector = vector > -INFINITY ? vector : Vector{};
    }
    for (size_t p = 0; p < n_parts; ++p) {
        sums[p] = exp_negative(load(sinks + p * width) - most[p]);
    }
    for (size_t j = 0; j < n_rows; ++j) {
        for (size_t p = 0; p < n_parts; ++p) {
            float *      logit = logits + j * n_lanes + p * width;
            const Vector power = exp_negative(load(logit) - most[p]);
            sums[p] += power;
            store(logit, power);
        }
    }
    for (size_t p = 0; p < n_parts; ++p) {
        factors[p] = sums[p] > 0.0f ? load(lane_factors + p * width) / sums[p] : Vector{};
    }
    for (size_t j = 0; j < n_rows; ++j) {
        for (size_t p = 0; p < n_parts; ++p) {
            const size_t i = j * n_lanes + p * width;
            store(weights + i, load(weights + i) + factors[p] * load(logits + i));
        }
    }
    return true;
}

void sum_lanes(const float * rows, size_t n, float * sums) {
    for (size_t j = 0; j < n; ++j) {
        float sum = 0.0f;
        for (size_t i = 0; i < n_lanes; ++i) {
            sum += rows[j * n_lanes + i];
        }
        sums[j] = sum;
    }
}

} // namespace

void EDGEKV_OF_SET(attend_tile_)(const AttentionTile & tile); // kernels_attend.cpp
void EDGEKV_OF_SET(attend_panel_)(const AttentionPanel & panel);
void EDGEKV_OF_SET(add_exponentials_)(const KeyTile & tile, float * most, float * sums); // kernels_scan.cpp
void EDGEKV_OF_SET(largest_weights_)(const KeyTile & tile, const float * log_sums, float * weights);

extern const Kernels EDGEKV_OF_SET(kernels_);
const Kernels        EDGEKV_OF_SET(kernels_) = {
    EDGEKV_TEXT(EDGEKV_INSTRUCTIONS), dot, squared_distance, add_scaled, dots, squares, add_weighted,
    turn_back, add_norm1, add_attention, add_squares, sum_lanes, EDGEKV_OF_SET(attend_tile_), EDGEKV_OF_SET(attend_panel_),
    EDGEKV_OF_SET(add_exponentials_), EDGEKV_OF_SET(largest_weights_),
};

} // namespace edgekv
