// How a thread asks llama.cpp for a flat cache, whose constructors take no argument for it; and what is told of the request.
#pragma once

#include "edgekv.h"
#include "rows/flat_cache.h"

#include <cstdint>
#include <memory>

namespace edgekv {

// While it lives, what this thread makes as a cache of full attention becomes a flat one.
class CacheRequest {
  public:
    explicit CacheRequest(const edgekv_layout & layout); // which outlives it
    ~CacheRequest();
    bool refused() const; // whether `refuse` threw since then
    CacheRequest(const CacheRequest &)             = delete;
    CacheRequest & operator=(const CacheRequest &) = delete;

    // Says, while it lives, whether a memory is being made whose cache of full attention edgekv knows how to reach.
    class Reachable {
      public:
        explicit Reachable(bool reachable);
        ~Reachable();
        Reachable(const Reachable &)             = delete;
        Reachable & operator=(const Reachable &) = delete;
    };

    // A flat cache where this thread makes such a memory and one is asked for, else NULL. It has one slot until `add_slots`.
    static std::unique_ptr<FlatCache> granted();

    // Cells of a ring for sliding windows: of a flat cache, what a window, a batch and a probe take; else as many as llama.cpp has.
    static uint32_t window_cells(uint32_t n_own, uint32_t window, uint32_t n_batch);

    // What llama.cpp calls to work on rows as its own cache would lay them. No graph that edgekv has seen does: throw
    // Error(EDGEKV_STATUS_UNSUPPORTED).
    [[noreturn]] static void refuse(const char * call);
};

} // namespace edgekv
