#include "score/scratch.h"

namespace edgekv {

template <typename F> void Scratch::each(const ScratchSize & size, F f) {
    const size_t n      = size.n_cells;
    const size_t attend = size.n_window > 0 ? 1 : 0;

    f(norms, n);
    f(scores, n);
    f(prior, n);
    f(moved_to, n);
    f(line, n_columns * n);
    f(sums, n + 1);
    f(rows, n_rows * size.dim);
    f(factors, n_rows);
    f(anchor, size.dim);
    f(keys, attend * n * size.dim);
    f(panel, attend * n_lanes * size.dim);
    f(logits, attend * n * n_lanes);
    f(weights, attend * n * n_lanes);
    f(window, size.n_window * size.dim);
    f(positions, size.n_rows);
    f(gains, size.n_rows);
    f(wo_values, size.wo_values);
    f(wo_latents, size.wo_latents);
    f(wo_slice, size.wo_slice);
    f(wo_bytes, size.wo_bytes);
}

void Scratch::reserve(const ScratchSize & size) {
    each(size, [](auto & vector, size_t n) { vector.resize(n); });
}

size_t Scratch::held() const {
    size_t sum = 0;
    const_cast<Scratch *>(this)->each({}, [&](auto & vector, size_t) { sum += vector.capacity() * sizeof(vector[0]); });
    return sum;
}

size_t Scratch::bytes(const ScratchSize & size) {
    Scratch empty;
    size_t  sum = 0;
    empty.each(size, [&](auto & vector, size_t n) { sum += n * sizeof(vector[0]); });
    return sum;
}

} // namespace edgekv
