// Moves of heads to other rows of their pools, after these were laid out anew.
#pragma once

#include "cache/cache.h"
#include "evict/team.h"

#include <cstdint>
#include <vector>

namespace edgekv {

class HeadMoves {
  public:
    // Where every head lies now, of which the first n[head] rows and cells will move.
    HeadMoves(const edgekv_cache & cache, const std::vector<uint32_t> & n);

    // Move them to where the rows are laid out now; the next move goes on from there. Nothing is allocated, and nothing fails but a device.
    void move(edgekv_cache & cache, Team & team);

    static uint64_t bytes(size_t n_heads) { return n_heads * sizeof(Move); }

  private:
    struct Move {
        const edgekv_layer * layer;
        FlatCache::Head      from;
        FlatCache::Head      to;
        uint32_t             n;
    };

    template <typename F> void each(uint32_t FlatCache::Head::* first, F f) const;
    void move_on_devices(edgekv_cache & cache) const;
    void move_rows(edgekv_cache & cache, bool values) const;
    void move_cells(edgekv_cache & cache) const;

    std::vector<Move> moves_; // of every head
};

} // namespace edgekv
