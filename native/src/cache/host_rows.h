// Rows of a tensor, readable in host memory wherever they live.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstring>
#include <vector>

namespace edgekv {

// Rows [first, first + n) of a pool: in place where they lie in host memory, else a copy in a buffer that is kept between
// calls. Only committed copies are written back.
class HostRows {
  public:
    HostRows(ggml_tensor * tensor, size_t first, size_t n, bool staged, std::vector<char> & copy) :
        tensor_(tensor), first_(first), staged_(staged) {
        if (!staged) {
            data_ = static_cast<char *>(tensor->data) + first * stride();
            return;
        }
        data_ = copy.data();
        ggml_backend_tensor_get(tensor, data_, first * stride(), n * stride());
    }

    size_t stride() const { return tensor_->nb[1]; }
    char * row(size_t i) { return data_ + i * stride(); }

    void commit(size_t n) { commit_to(first_, n); }

    // Write the first n rows to rows [to, to + n) of the pool, which those they came from may overlap.
    void commit_to(size_t to, size_t n) {
        if (staged_) {
            ggml_backend_tensor_set(tensor_, data_, to * stride(), n * stride());
        } else if (to != first_) {
            std::memmove(static_cast<char *>(tensor_->data) + to * stride(), data_, n * stride());
        }
    }

  private:
    ggml_tensor * tensor_;
    size_t        first_;
    bool          staged_;
    char *        data_;
};

} // namespace edgekv
