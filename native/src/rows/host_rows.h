// Rows of a tensor, readable in host memory wherever they live.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace edgekv {

// Room for a copy of rows, kept between calls, and the bytes that were copied, there and back.
struct RowCopy {
    std::vector<char> rows;
    uint64_t          n_bytes = 0;
};

// Rows [first, first + n) of a pool: in a copy, or in place if there is none. Only committed copies are written back.
class HostRows {
  public:
    HostRows(ggml_tensor * tensor, size_t first, size_t n, RowCopy * copy) : tensor_(tensor), first_(first), copy_(copy) {
        if (copy != nullptr) {
            ggml_backend_tensor_get(tensor, copy->rows.data(), first * stride(), n * stride());
            copy->n_bytes += n * stride();
        }
    }

    ggml_type type() const { return tensor_->type; }
    size_t dim() const { return static_cast<size_t>(tensor_->ne[0]); }
    size_t stride() const { return tensor_->nb[1]; }
    char * row_of_tensor(size_t i) { return row(i - first_); } // of those that are here
    char * row(size_t i) { return (copy_ != nullptr ? copy_->rows.data() : in_place(first_)) + i * stride(); }

    void commit(size_t n) { commit_to(first_, n); }

    // Write the first n rows to rows [to, to + n) of the pool, which those they came from may overlap.
    void commit_to(size_t to, size_t n) {
        if (copy_ != nullptr) {
            ggml_backend_tensor_set(tensor_, copy_->rows.data(), to * stride(), n * stride());
            copy_->n_bytes += n * stride();
        } else if (to != first_) {
            std::memmove(in_place(to), in_place(first_), n * stride());
        }
    }

  private:
    char * in_place(size_t i) const { return static_cast<char *>(tensor_->data) + i * stride(); }

    ggml_tensor * tensor_;
    size_t        first_;
    RowCopy *     copy_;
};

} // namespace edgekv
