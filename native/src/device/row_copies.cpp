// Rows of a pool between the host and the device: as many at once as the memory of its graphs holds.
#include "device/row_bits.h"
#include "device/row_graphs.h"

namespace edgekv {

// Which rows of the pool a packet's keys or values are.
ggml_tensor * RowGraphs::listed(ggml_context * context, size_t offset, size_t n) {
    return graph_->at(offset, ggml_new_tensor_1d(context, GGML_TYPE_I32, static_cast<int64_t>(n)));
}

void RowGraphs::gather(const RowPacket & packet, const int32_t * rows, char * to) {
    Graph &        graph   = *graph_;
    ggml_context * context = graph.begin();
    ggml_tensor *  list    = listed(context, packet.key_rows(), packet.n_keys);
    ggml_backend_tensor_set(list, rows, 0, ggml_nbytes(list));
    graph.add(graph.at(0, ggml_get_rows(context, as_bits(context, pool_.k), list)));
    if (packet.n_values > 0) {
        graph.add(graph.at(packet.values(), ggml_get_rows(context, as_bits(context, pool_.v), list)));
    }
    graph.compute();
    ggml_backend_tensor_get(&graph.memory(), to, 0, packet.key_rows());
}

void RowGraphs::scatter(const RowPacket & packet, const char * from) {
    Graph &        graph   = *graph_;
    ggml_context * context = graph.begin();
    const auto     add     = [&](ggml_tensor * pool, size_t n, size_t first, size_t list) {
        ggml_tensor * bits = as_bits(context, pool);
        ggml_tensor * rows = graph.at(first, ggml_new_tensor_2d(context, GGML_TYPE_F32, bits->ne[0], static_cast<int64_t>(n)));
        graph.add(ggml_set_rows(context, bits, rows, listed(context, list, n)));
    };
    if (packet.n_keys > 0) {
        add(pool_.k, packet.n_keys, 0, packet.key_rows());
    }
    if (packet.n_values > 0) {
        add(pool_.v, packet.n_values, packet.values(), packet.value_rows());
    }
    ggml_backend_tensor_set(&graph.memory(), from, 0, packet.bytes());
    graph.compute();
}

} // namespace edgekv
