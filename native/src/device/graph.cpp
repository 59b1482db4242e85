#include "device/graph.h"

#include "hooks/status.h"
#include "llama-context.h"

#include <new>

namespace edgekv {

ggml_backend_t backend_of(const llama_context & ctx, const ggml_tensor & tensor) {
    const ggml_backend_sched_t sched = ctx.get_sched();
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        const ggml_backend_t     backend = ggml_backend_sched_get_backend(sched, i);
        const ggml_backend_dev_t device  = ggml_backend_get_device(backend);
        const bool whole = device == nullptr || ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_ACCEL; // not for products alone
        if (whole && ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(tensor.buffer))) {
            return backend;
        }
    }
    return nullptr;
}

Graph::Graph(ggml_backend_t backend, ggml_tensor & memory, size_t place_bytes) :
    backend_(backend), memory_(memory), place_bytes_(rounded(place_bytes)) {
    context_.reset(ggml_init({ description_bytes(), nullptr, true }));
    if (!context_) {
        throw std::bad_alloc();
    }
}

// Of the nodes, and of tensors of the newest section that are none.
size_t Graph::description_bytes() {
    return (n_nodes + n_section) * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false);
}

ggml_context * Graph::begin() {
    ggml_reset(context_.get());
    graph_   = ggml_new_graph_custom(context_.get(), n_nodes, false);
    n_small_ = 0;
    n_bound_ = 0;
    return context_.get();
}

ggml_context * Graph::begin_section() {
    n_small_ = 0;
    if (ggml_graph_n_nodes(graph_) + n_section <= n_nodes) {
        return context_.get();
    }
    return compute_if_supported() ? begin() : nullptr;
}

ggml_tensor * Graph::in_place(size_t place, ggml_tensor * node) {
    if (ggml_nbytes(node) > place_bytes_) {
        throw Error(EDGEKV_STATUS_INTERNAL, "a node of a graph over the cache is larger than its place");
    }
    return at(place * place_bytes_, node);
}

ggml_tensor * Graph::small(ggml_tensor * node) {
    const size_t offset = n_places * place_bytes_ + n_small_;
    n_small_ += rounded(ggml_nbytes(node));
    return at(offset, node);
}

ggml_tensor * Graph::at(size_t offset, ggml_tensor * node) {
    if (offset + ggml_nbytes(node) > ggml_nbytes(&memory_)) {
        throw Error(EDGEKV_STATUS_INTERNAL, "the nodes of a graph over the cache are larger than their memory");
    }
    if (ggml_backend_tensor_alloc(memory_.buffer, node, static_cast<char *>(memory_.data) + offset) != GGML_STATUS_SUCCESS) {
        throw Error(EDGEKV_STATUS_INTERNAL, "a device gave a node of a graph over the cache no memory");
    }
    return node;
}

void Graph::add(ggml_tensor * node) {
    ggml_build_forward_expand(graph_, node);
    for (; n_bound_ < ggml_graph_n_nodes(graph_); ++n_bound_) {
        ggml_tensor * added = ggml_graph_node(graph_, n_bound_);
        if (added->view_src != nullptr && ggml_backend_view_init(added) != GGML_STATUS_SUCCESS) {
            throw Error(EDGEKV_STATUS_INTERNAL, "a device gave a view of the cache no memory");
        }
    }
}

bool Graph::is_supported() const {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        if (!ggml_backend_supports_op(backend_, ggml_graph_node(graph_, i))) {
            return false;
        }
    }
    return true;
}

bool Graph::compute_if_supported() {
    const bool supported = is_supported();
    if (supported && ggml_graph_n_nodes(graph_) > 0) {
        compute();
    }
    return supported;
}

void Graph::compute() {
    if (ggml_backend_graph_compute(backend_, graph_) != GGML_STATUS_SUCCESS) {
        fail(EDGEKV_STATUS_INTERNAL, "%s failed to compute a graph over the cache", ggml_backend_name(backend_));
    }
}

} // namespace edgekv
