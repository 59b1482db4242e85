// A weight that scoring reads, wherever it lies.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"
#include "rows/rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

struct llama_model;

namespace edgekv {

class WeightsFile;

// The rows of a matrix, or of several matrices, one after the other.
class WeightRows {
  public:
    WeightRows() = default; // of no weight

    // Throws Error if the weight was repacked or is streamed, and the model has no file to read it in, or another one.
    WeightRows(const llama_model & model, const ggml_tensor & weight);

    size_t n() const { return static_cast<size_t>(ggml_nrows(weight_)); }
    size_t dim() const { return static_cast<size_t>(weight_->ne[0]); } // elements of a row

    // Call f(first, rows) for all of them: at once where they lie in the host's memory as they are, else n_slice at a time,
    // read to `copy`, which has room for so many. Throws Error if the file was changed.
    template <typename F> void each_slice(size_t n_slice, std::vector<char> & copy, F f) const {
        if (file_ == nullptr && ggml_backend_buffer_is_host(weight_->buffer)) {
            f(size_t(0), rows(weight_->data, n()));
            return;
        }
        for (size_t first = 0; first < n(); first += n_slice) {
            const size_t n_rows = std::min(n_slice, n() - first);
            read(first, n_rows, copy.data());
            f(first, rows(copy.data(), n_rows));
        }
    }

    // The weight itself where a backend can compute with it as it lies, else NULL.
    const ggml_tensor * on(ggml_backend_t backend) const;

  private:
    Rows rows(const void * data, size_t n) const { return Rows({ sizeof(edgekv_rows), weight_->type, data, n, weight_->nb[1], uint32_t(dim()), 0 }); }
    void read(size_t first, size_t n, void * dst) const;

    const ggml_tensor * weight_ = nullptr;
    const WeightsFile * file_   = nullptr; // where it is read, if it was repacked or is streamed
    uint64_t            offset_ = 0;       // in the file
};

} // namespace edgekv
