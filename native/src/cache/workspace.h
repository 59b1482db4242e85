// Memory for compactions of a cache: allocated when it is opened, kept between them, and no part of its state.
#pragma once

#include "cache/cells.h"
#include "cache/staging.h"
#include "device/row_graphs.h"
#include "edgekv.h"
#include "rope/rope_turn.h"
#include "rope/rope_undo.h"
#include "rows/host_rows.h"
#include "score/custom.h"
#include "score/scratch.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace edgekv {

struct Workspace {
    // new_norms: as of WorkArrays. Throws Error and std::bad_alloc.
    Workspace(const llama_context & ctx, const FlatCache & flat, const edgekv_shape & shape, const edgekv_cache_params & params,
              Staging staging, float * new_norms);

    uint64_t bytes() const;                // in the host's memory, without graphs
    uint64_t graph_bytes(bool host) const; // in the host's memory, or on devices

    RopeTurn * turn_of(uint32_t layer) { return turns.empty() ? nullptr : &turns[layer]; }

    RowGraphs * moving(size_t pool) const; // the graphs that move its rows; NULL = the host does
    void        finish() const;            // what graphs were told to move and to turn

    // Bytes that one takes in the host's memory, if its graphs lie elsewhere.
    static uint64_t estimate_bytes(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging);

    WorkArrays                              cells;
    std::vector<Scratch>                    scratch; // one a thread
    RowCopy                                 copy_k;  // a head's rows, where they are read and moved in a copy
    RowCopy                                 copy_v;
    RowCopy                                 copy_queries; // a layer's, likewise
    std::vector<std::unique_ptr<RowGraphs>> graphs; // of pools on devices; NULL if the host works on the rows
    CustomArrays                            custom;
    std::vector<float>                      contest; // for the scores of heads that share a budget
    std::vector<RopeTurn>                   turns;   // of every layer's keys; none if they keep their positions
    std::vector<RopeUndo>                   undo;    // of every layer's keys; none if nobody reads them as they were before
    std::mutex                              turning; // held by the thread that turns queries

  private:
    CellParts parts_;
    size_t    n_rows_;
    uint64_t  custom_bytes_;
};

// Whether some rows are not worked on by the host in place. Then one thread does all that is left to the host.
bool is_staged(const edgekv_shape & shape, Staging staging);

// Each has scratch of its own, so there are no more than layers. A device is read by one thread, and a scorer of the host's runs
// on the caller's.
size_t n_workers(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging);

CellParts cell_parts(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging);

// Bytes of a layer's queries where they are read in a copy.
uint64_t copied_query_bytes(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging);

ScratchSize scratch_size(const edgekv_shape & shape, const edgekv_cache_params & params);

// Scores that are compared at once: of the heads of a layer, or of all.
size_t contest_size(const edgekv_shape & shape, const edgekv_cache_params & params);

} // namespace edgekv
