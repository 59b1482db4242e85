// Tensors of edgekv's own that lie where llama.cpp's lie: in buffers of the same types.
#pragma once

#include "ggml-cpp.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace edgekv {

class Beside {
  public:
    explicit Beside(size_t n_tensors) : n_tensors_(n_tensors) {} // room for so many

    // Where to make a tensor that is to lie beside `other`. Throws std::bad_alloc.
    ggml_context * at(const ggml_tensor & other);

    // Give all tensors that were made their memory, zeroed. Throws std::bad_alloc.
    void allocate();

    uint64_t bytes(bool host) const; // of the tensors: in the host's memory, or on devices

  private:
    size_t                                                 n_tensors_;
    std::map<ggml_backend_buffer_type_t, ggml_context_ptr> contexts_;
    std::vector<ggml_backend_buffer_ptr>                   buffers_;
};

} // namespace edgekv
