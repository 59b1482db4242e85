// Compiled once for each set of instructions, with its options; EDGEKV_INSTRUCTIONS is its name.
#include "kernels/kernels.h"
#include "kernels/panel_products.h"
#include "kernels/vectors.h"

#include <cstring>
#include <math.h>
#include <type_traits>

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
inline float sine(float x) {
    const float square = x * x;
    float       y      = -15.0946426f;
    y                  = y * square + 42.0586940f;
    y                  = y * square - 76.7058597f;
    y                  = y * square + 81.6052493f;
    y                  = y * square - 41.3417022f;
    return x * (y * square + 6.28318531f);
}

// Turn n pairs back, at most `width`: their first elements and the other ones, `step` floats apart. A compiler makes vectors of loops of
// a constant n over arrays that cannot overlap.
template <size_t step, typename N>
inline void turn_few(float * first, float * other, const double * turns, N n, int32_t position) {
    float x[width], y[width], cosines[width], sines[width];
    for (size_t i = 0; i < n; ++i) {
        x[i] = first[i * step];
        y[i] = other[i * step];
    }
    for (size_t i = 0; i < n; ++i) {
        const double turn  = position * turns[i];
        const float  part  = static_cast<float>(turn - rint(turn)); // of a circle, in [-0.5, 0.5]
        const float  size  = part < 0.0f ? -part : part;
        const float  above = size - 0.25f;
        const float  side  = sine(0.25f - (above < 0.0f ? -above : above));

        cosines[i] = sine(0.25f - size);
        sines[i]   = part < 0.0f ? -side : side;
    }
    for (size_t i = 0; i < n; ++i) {
        first[i * step] = x[i] * cosines[i] + y[i] * sines[i];
        other[i * step] = y[i] * cosines[i] - x[i] * sines[i];
    }
}

template <size_t step> void turn_pairs(float * first, float * other, const double * turns, size_t n_pairs, int32_t position) {
    size_t i = 0;
    for (; i + width <= n_pairs; i += width) {
        turn_few<step>(first + i * step, other + i * step, turns + i, std::integral_constant<size_t, width>{}, position);
    }
    turn_few<step>(first + i * step, other + i * step, turns + i, n_pairs - i, position);
}

void turn_back(float * row, const double * turns, size_t n_pairs, bool neighbours, int32_t position) {
    if (neighbours) {
        turn_pairs<2>(row, row + 1, turns, n_pairs, position);
    } else {
        turn_pairs<1>(row, row + n_pairs, turns, n_pairs, position);
    }
}

// Sums and differences of elements that lie `half` apart, for each half from n / 2 down to `least`.
inline void add_halves(float * run, size_t n, size_t least) {
    for (size_t half = n / 2; half >= least; half /= 2) {
        for (size_t first = 0; first < n; first += 2 * half) {
            for (size_t i = first; i < first + half; ++i) {
                const float a = run[i], b = run[i + half];

                run[i]        = a + b;
                run[i + half] = a - b;
            }
        }
    }
}

// All halves of two vectors. Each time their elements are shuffled, so that those of the next half lie in both.
inline void add_two_vectors(float * run) {
    Vector a = load(run), b = load(run + width);
    for (size_t n = 1; n < 2 * width; n *= 2) {
        const Vector sum = a + b, difference = a - b;
        a = zip_low(sum, difference);
        b = zip_high(sum, difference);
    }
    store(run, a);
    store(run + width, b);
}

void rotate(float * row, size_t n, size_t run) {
    constexpr size_t two   = 2 * width;
    const bool       zips  = width > 1 && run >= two;
    const float      scale = 1.0f / sqrtf(static_cast<float>(run));
    for (float * part = row; part < row + n; part += run) {
        add_halves(part, run, zips ? two : 1);
        for (size_t i = 0; zips && i < run; i += two) {
            add_two_vectors(part + i);
        }
        for (size_t i = 0; i < run; ++i) {
            part[i] *= scale;
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
void EDGEKV_OF_SET(add_gram_)(const double * rows, size_t n, double * gram); // kernels_rest.cpp
void EDGEKV_OF_SET(solve_)(double * gram, size_t n, double * right);

extern const Kernels EDGEKV_OF_SET(kernels_);
const Kernels        EDGEKV_OF_SET(kernels_) = {
    EDGEKV_TEXT(EDGEKV_INSTRUCTIONS), dot, squared_distance, add_scaled, dots, squares, add_weighted,
    turn_back, rotate, add_norm1, add_attention, sum_lanes, EDGEKV_OF_SET(attend_tile_), EDGEKV_OF_SET(attend_panel_),
    EDGEKV_OF_SET(add_exponentials_), EDGEKV_OF_SET(largest_weights_), EDGEKV_OF_SET(add_gram_), EDGEKV_OF_SET(solve_),
};

} // namespace edgekv
