// The loops that scoring spends its time in, compiled once for each set of instructions and chosen when the library is loaded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgekv {

constexpr size_t n_lanes = 16; // columns of a panel

struct Kernels {
    const char * name;     // "avx512", "avx2" or "baseline"
    bool (*runs_here)();   // whether this processor has the instructions

    float (*dot)(const float * a, const float * b, size_t n);
    float (*squared_distance)(const float * a, const float * b, size_t n);
    void (*add_scaled)(float * sum, float weight, const float * row, size_t n); // sum += weight * row

    // Dot products of rows (n_rows, depth), `stride` floats apart, with the columns of panel (depth, n_lanes): products (n_rows, n_lanes).
    void (*multiply)(const float * rows, size_t stride, size_t n_rows, const float * panel, size_t depth, float * products);

    // Add their absolute values, summed over the rows, to sums (n_lanes,).
    void (*add_norm1)(const float * rows, size_t stride, size_t n_rows, const float * panel, size_t depth, float * sums);

    // Turn logits (n, n_lanes), a query a lane, into their softmax over the n cells, and add that times shares (n_lanes,) to
    // weights (n, n_lanes). Lane i sees the cells whose position is at most limits[i]; a lane that sees none adds nothing.
    // False, and no weights to speak of, where a logit that is seen is not finite.
    bool (*add_softmax)(float * logits, size_t n, const int32_t * positions, const int32_t * limits, float softcap,
                        const float * shares, float * weights);

    // Sums of rows (n, n_lanes), one for each row.
    void (*sum_lanes)(const float * rows, size_t n, float * sums);
};

// The ones that EDGEKV_INSTRUCTIONS names, where this processor runs them; else the fastest that it runs.
const Kernels & kernels();

// All that this library holds, fastest first; NULL ends them.
extern const Kernels * const all_kernels[];

} // namespace edgekv
