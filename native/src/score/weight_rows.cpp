#include "score/weight_rows.h"

#include "hooks/status.h"
#include "hooks/streamed_weights.h"
#include "hooks/weights_file.h"
#include "llama-model.h"

namespace edgekv {

WeightRows::WeightRows(const llama_model & model, const ggml_tensor & weight) : weight_(&weight) {
    if (!is_repacked(ggml_backend_buffer_get_type(weight.buffer)) && !is_streamed(weight)) {
        return;
    }
    if (!model.weights_file) {
        throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, "critical reads W_O, which was repacked and cannot be read back; load the model "
                                                    "with edgekv_model_load, or with use_extra_bufts = false");
    }
    file_   = model.weights_file.get();
    offset_ = file_->find(weight);
}

const ggml_tensor * WeightRows::on(ggml_backend_t backend) const {
    const bool there = file_ == nullptr && ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(weight_->buffer));
    return there ? weight_ : nullptr;
}

void WeightRows::read(size_t first, size_t n, void * dst) const {
    const size_t bytes = weight_->nb[1];
    if (file_ != nullptr) {
        file_->read(offset_ + first * bytes, dst, n * bytes);
    } else {
        ggml_backend_tensor_get(weight_, dst, first * bytes, n * bytes);
    }
}

} // namespace edgekv
