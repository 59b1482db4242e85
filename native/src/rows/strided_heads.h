// Heads of unlike lengths that one call attends to, for a single token on a device.
#pragma once

#include "rows/flat_cache.h"

#include <vector>

namespace edgekv {

constexpr uint32_t device_pad = 256; // rows that flash attention on a device reads at once

// The heads of a layer are read as one tensor: views of one length that begin at equal distances, each around the rows of one head. A
// mask of each head hides what else its view has. The device makes the masks of all layers, from two numbers a head.
class StridedHeads {
  public:
    // Of a graph that decodes one token, and attends to n_visible open rows. With `largest` views are as long as any may be.
    StridedHeads(ggml_context * context, const FlatCache & cache, uint32_t n_visible, bool largest);

    bool          has(const FlatCache::Layer & layer) const { return pools_[layer.pool].n_rows > 0; }
    ggml_tensor * rows_of(ggml_context * context, ggml_tensor * rows, const FlatCache::Layer & layer) const; // (dim, n, 1, heads)
    ggml_tensor * mask_of(ggml_context * context, const FlatCache::Layer & layer);                           // F16 (n, 1, 1, heads)
    void          set_input() const;

    static uint32_t n_nodes(const FlatCache & cache); // that it adds to a graph, at most

  private:
    // Where the views of a layer's heads begin: `apart` rows after one another.
    struct Views {
        uint32_t first;
        uint32_t apart;
    };

    struct Pool {
        uint32_t      n_rows  = 0;       // of a view; 0 = it has none
        ggml_tensor * numbers = nullptr; // F32: the rows of a view, then the middle of each head's own ones there, then half their distance
        ggml_tensor * mask    = nullptr; // F16 (n_rows, 1, 1, heads)
    };

    bool     are_unlike(size_t pool) const;
    uint32_t lay_views(size_t pool);

    template <typename F> void each_layer(size_t pool, F f) const;

    const FlatCache &  cache_;
    uint32_t           n_visible_;
    std::vector<Pool>  pools_;
    std::vector<Views> views_; // by layer of the cache
};

} // namespace edgekv
