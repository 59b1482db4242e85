#include "rows/beside.h"

#include "ggml-backend.h"

#include <new>

namespace edgekv {

ggml_context * Beside::at(const ggml_tensor & other) {
    ggml_context_ptr & context = contexts_[ggml_backend_buffer_get_type(other.buffer)];
    if (!context) {
        context.reset(ggml_init({ n_tensors_ * ggml_tensor_overhead(), nullptr, true }));
    }
    if (!context) {
        throw std::bad_alloc();
    }
    return context.get();
}

void Beside::allocate() {
    buffers_.reserve(contexts_.size());
    for (const auto & [type, context] : contexts_) {
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(context.get(), type);
        if (buffer == nullptr) {
            throw std::bad_alloc();
        }
        buffers_.emplace_back(buffer);
        ggml_backend_buffer_clear(buffer, 0);
    }
}

uint64_t Beside::bytes(bool host) const {
    uint64_t sum = 0;
    for (const auto & [type, context] : contexts_) {
        const ggml_tensor * tensor = ggml_backend_buft_is_host(type) == host ? ggml_get_first_tensor(context.get()) : nullptr;
        for (; tensor != nullptr; tensor = ggml_get_next_tensor(context.get(), const_cast<ggml_tensor *>(tensor))) {
            sum += ggml_nbytes(tensor);
        }
    }
    return sum;
}

} // namespace edgekv
