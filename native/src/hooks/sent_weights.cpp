#include "hooks/sent_weights.h"

#include "ggml-backend.h"
#include "hooks/weights_file.h"
#include "llama-mmap.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace edgekv {

namespace {

constexpr size_t piece_bytes = 256 << 10; // a client of RPC copies it once more; both fit in the plan's margin

bool goes_in_pieces(const ggml_tensor & weight) {
    ggml_backend_buffer_type_t type   = ggml_backend_buffer_get_type(weight.buffer);
    ggml_backend_dev_t         device = ggml_backend_buft_get_device(type);
    return device != nullptr && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU && type == ggml_backend_dev_buffer_type(device);
}

// Rows that are repacked side by side never belong to two experts.
void send_experts(ggml_tensor & weight, llama_file & file, size_t begin) {
    const size_t n_bytes = weight.nb[2];
    const auto   piece   = std::make_unique<uint8_t[]>(n_bytes);
    ggml_tensor  expert  = weight;
    expert.ne[2]         = 1;
    for (int64_t i = 0; i < weight.ne[2]; ++i) {
        expert.data = static_cast<char *>(weight.data) + i * n_bytes;
        file.seek(begin + i * n_bytes, SEEK_SET);
        file.read_raw(piece.get(), n_bytes);
        ggml_backend_tensor_set(&expert, piece.get(), 0, n_bytes);
    }
}

} // namespace

bool send_in_pieces(ggml_tensor & weight, llama_file & file, size_t begin) {
    if (is_repacked(ggml_backend_buffer_get_type(weight.buffer)) && weight.ne[2] > 1 && weight.ne[3] == 1) {
        send_experts(weight, file, begin);
        return true;
    }
    if (!goes_in_pieces(weight)) {
        return false;
    }
    const size_t n_bytes = ggml_nbytes(&weight);
    const auto   piece   = std::make_unique<uint8_t[]>(std::min(n_bytes, piece_bytes));
    for (size_t offset = 0; offset < n_bytes; offset += piece_bytes) {
        const size_t n = std::min(piece_bytes, n_bytes - offset);
        file.seek(begin + offset, SEEK_SET);
        file.read_raw(piece.get(), n);
        ggml_backend_tensor_set(&weight, piece.get(), offset, n);
    }
    return true;
}

} // namespace edgekv
