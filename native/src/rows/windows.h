// The newest rows of layers that see no further than a window: a ring of llama.cpp's own.
#pragma once

#include "ggml.h"
#include "llama-kv-cells.h"

#include <cstddef>
#include <cstdint>
#include <vector>

class llama_kv_cache;

namespace edgekv {

class Windows {
  public:
    explicit Windows(llama_kv_cache & ring) : ring_(ring) {}

    int32_t  last() const; // position of the newest token; -1 = none
    uint32_t size() const; // cells

    // What is decoded from now on, from position `next` on, leaves the cells that a token there sees.
    void begin(int32_t next);

    // Drop what was decoded since; cells that it took from tokens that nobody sees stay free. This neither fails nor allocates.
    void undo();

    // Position of the token in every cell; -1 = none, hidden(position) where the next token does not see it and it is not the newest.
    // And the cell where llama.cpp begins to look for a free one: that depends on how many are taken, the unseen ones too.
    std::vector<int32_t> positions() const;
    uint32_t             head() const;

    // Its own inverse.
    static int32_t hidden(int32_t position) { return -2 - position; }

    // Whether a window that ends at `newest` keeps a position: the next token sees it, or it is the newest.
    bool sees(int32_t position, int32_t newest) const;

    // f(tensor, first byte, bytes) of all rows of the cells that have a position which is seen.
    template <typename F> void each_part(const std::vector<int32_t> & positions, F f) const {
        for (ggml_tensor * rows : rows_) {
            for (size_t cell = 0; cell < positions.size(); ++cell) {
                if (positions[cell] >= 0) {
                    f(rows, cell * rows->nb[1], rows->nb[1]);
                }
            }
        }
    }

    // llama.cpp's cells as they would hold those tokens; and to put them in place, which allocates nothing.
    static llama_kv_cells cells_of(const std::vector<int32_t> & positions);
    void                  replaced(llama_kv_cells && cells, uint32_t head);

  private:
    llama_kv_cache &           ring_;
    std::vector<ggml_tensor *> rows_ = rows();
    int32_t                    next_ = 0;
    uint32_t                   head_ = 0; // of the ring, before what was decoded

    std::vector<ggml_tensor *> rows() const; // keys and values of every layer, a row a cell
};

} // namespace edgekv
