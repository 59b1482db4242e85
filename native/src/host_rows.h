// Rows of a tensor, readable in host memory wherever they live.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <vector>

namespace edgekv {

// The first n rows of a cache tensor: in place where they lie in host memory, else a copy in a buffer that is kept
// between calls. Only committed copies are written back.
class HostRows {
  public:
    HostRows(ggml_tensor * tensor, size_t n, bool staged, std::vector<char> & copy) : tensor_(tensor), staged_(staged) {
        if (!staged) {
            data_ = static_cast<char *>(tensor->data);
            return;
        }
        if (copy.size() < n * stride()) {
            copy.resize(n * stride());
        }
        data_ = copy.data();
        ggml_backend_tensor_get(tensor, data_, 0, n * stride());
    }

    size_t stride() const { return tensor_->nb[1]; }
    char * row(size_t i) { return data_ + i * stride(); }

    void commit(size_t n) {
        if (staged_) {
            ggml_backend_tensor_set(tensor_, data_, 0, n * stride());
        }
    }

  private:
    ggml_tensor * tensor_;
    bool          staged_;
    char *        data_;
};

} // namespace edgekv
