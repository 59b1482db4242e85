// One small graph at a time, computed where the tensors lie that it reads.
#pragma once

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include <cstddef>

struct llama_context;

namespace edgekv {

// Of the backends that compute a context's graphs, the one that computes on a tensor where it lies; NULL where there is none.
ggml_backend_t backend_of(const llama_context & ctx, const ggml_tensor & tensor);

// Nodes are given memory as they are made, from a tensor that lies there: in the places 0, 1 and 2, whose nodes the caller lets
// follow one another, or after them. So to build and compute allocates nothing here. A graph has sections, one computed after the
// other, which share that memory: a device is told of as many at once as there is room for.
class Graph {
  public:
    static constexpr size_t n_places  = 3;
    static constexpr size_t alignment = 256; // of what a device reads, on every backend

    // `memory` has bytes(place_bytes, small_bytes). Throws std::bad_alloc.
    Graph(ggml_backend_t backend, ggml_tensor & memory, size_t place_bytes);

    static size_t bytes(size_t place_bytes, size_t small_bytes) { return n_places * rounded(place_bytes) + small_bytes; }
    static size_t description_bytes(); // in the host's memory
    static size_t rounded(size_t n_bytes) { return (n_bytes + alignment - 1) / alignment * alignment; } // what a node takes

    ggml_backend_t backend() const { return backend_; }
    ggml_tensor &  memory() const { return memory_; }
    ggml_context * begin(); // where to make the nodes of the next graph, instead of the last one's

    // Where to make the nodes of another section, n_section at most. What is there is computed first if there is no room for more. NULL
    // where the backend does not support it.
    ggml_context * begin_section();

    // Give a new node its memory. A view has that of what it looks at.
    ggml_tensor * in_place(size_t place, ggml_tensor * node);
    ggml_tensor * small(ggml_tensor * node);
    ggml_tensor * at(size_t offset, ggml_tensor * node); // a byte of the memory, whatever the places are

    void add(ggml_tensor * node);  // it and all that it needs
    bool is_supported() const;     // by the backend, every node
    void compute();                // throws Error where the backend fails
    bool compute_if_supported();

  private:
    static constexpr int n_section = 64;            // nodes
    static constexpr int n_nodes   = 4 * n_section; // of one graph, at most

    ggml_backend_t   backend_;
    ggml_tensor &    memory_;
    size_t           place_bytes_;
    size_t           n_small_ = 0; // bytes of small nodes
    int              n_bound_ = 0; // nodes that have their memory
    ggml_context_ptr context_;
    ggml_cgraph *    graph_ = nullptr;
};

} // namespace edgekv
