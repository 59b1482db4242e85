// Rows of a tensor, readable in host memory wherever they live.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstring>
#include <vector>

namespace edgekv {

// Rows [first, first + n) of a pool: copied where there is room for a copy, which is kept between calls; in place where there
// is none. Only committed copies are written back.
class HostRows {
  public:
    HostRows(ggml_tensor * tensor, size_t first, size_t n, std::vector<char> & copy) : tensor_(tensor), first_(first), copy_(copy) {
        if (is_copy()) {
            ggml_backend_tensor_get(tensor, copy.data(), first * stride(), n * stride());
        }
    }

    size_t stride() const { return tensor_->nb[1]; }
    char * row(size_t i) { return (is_copy() ? copy_.data() : in_place(first_)) + i * stride(); }

    void commit(size_t n) { commit_to(first_, n); }

    // Write the first n rows to rows [to, to + n) of the pool, which those they came from may overlap.
    void commit_to(size_t to, size_t n) {
        if (is_copy()) {
            ggml_backend_tensor_set(tensor_, copy_.data(), to * stride(), n * stride());
        } else if (to != first_) {
            std::memmove(in_place(to), in_place(first_), n * stride());
        }
    }

  private:
    bool   is_copy() const { return !copy_.empty(); }
    char * in_place(size_t i) const { return static_cast<char *>(tensor_->data) + i * stride(); }

    ggml_tensor *       tensor_;
    size_t              first_;
    std::vector<char> & copy_;
};

} // namespace edgekv
