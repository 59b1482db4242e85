#include "rows/batch.h"

#include "rows/flat_cache.h"

#include <numeric>
#include <utility>

namespace edgekv {

std::vector<BatchPart> BatchParts::of(FlatCache & first, uint32_t n_tokens) const {
    return parts_.empty() ? std::vector<BatchPart>{ { &first, n_tokens, 0 } } : parts_;
}

void BatchParts::place(llama_pos * positions) const {
    for (const BatchPart & part : parts_) {
        std::iota(positions, positions + part.n_tokens, part.position);
        positions += part.n_tokens;
    }
}

Batch::Batch(FlatCache & first, std::vector<BatchPart> && parts) : parts_(first.batch()) {
    parts_.parts_         = std::move(parts);
    first.notes().written = false;
    ++first.notes().n_batches;
}

void QueryRings::set(std::vector<ggml_tensor *> && rings) {
    rings_ = std::move(rings);
    first_ = n_ = 0;
    lag_        = 0;
    ++version_;
}

void QueryRings::aim(uint32_t first, uint32_t n, int32_t lag) {
    version_ += first != first_ || n != n_;
    first_ = first;
    n_     = n;
    lag_   = lag;
}

} // namespace edgekv
