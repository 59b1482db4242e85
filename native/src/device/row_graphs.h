// Scoring, moving, turning and copying rows where they lie: what score/, evict/ and rope/ do in host memory, as graphs.
#pragma once

#include "device/graph.h"
#include "device/row_packet.h"
#include "edgekv.h"
#include "rope/rope_angles.h"
#include "rows/beside.h"
#include "rows/flat_cache.h"
#include "score/weight_rows.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace edgekv {

// Whether there is a graph for the base scores of a policy.
bool has_graph(const edgekv_policy & policy);

// The queries that score, of the newest rows.
struct GraphQueries {
    bool                 probed;  // they come after all cells; else each comes after some
    float                softcap; // 0 = none
    std::vector<int32_t> rows;    // of the rings, ascending by position
    std::vector<int32_t> deltas;  // by how many positions each is turned
    std::vector<float>   gains;   // (layers, rows) scale of each row's products; none = the layer's own
};

// The graphs of one pool of rows, computed by the backend that holds it. Only scores and lists of rows cross between the host and
// the device.
class RowGraphs {
  public:
    // angles: of every layer of the cache, where keys are turned; else none. Throws std::bad_alloc.
    RowGraphs(const llama_context & ctx, const FlatCache & flat, uint32_t pool, const std::vector<RopeAngles> & angles);

    static uint64_t bytes(const FlatCache & flat, uint32_t pool);      // that one takes beside the rows
    static uint64_t host_bytes(const FlatCache & flat, uint32_t pool); // and in the host's memory, wherever the rows lie
    uint64_t        bytes(bool host) const { return memory_.bytes(host) + (host ? host_bytes(flat_, number_) : 0); }

    // Write what every head's cells, its kept ones and n_filled more, are scored with, to scores, by cell of the pool: base scores,
    // not pooled yet, or what they get of attention, as `score_by_attention` has it. Before, scores hold how many of the queries come
    // before each cell, where those are not probed; less than 1 = none. rope_positions, by cell likewise, turned the keys. False
    // where the backend lacks an operation; then nothing is written.
    bool score_pool(const edgekv_policy & policy, uint32_t n_filled, const GraphQueries & queries, const int32_t * rope_positions,
               float * scores);

    // Write norm2(V)^2 of every head's cells to squares, by cell of the pool. False likewise.
    bool square(uint32_t n_filled, float * squares);

    // Write how far every cell's value is from a mean of its head's values to by_cell, which holds each one's weight in that mean
    // before. False likewise.
    bool measure(uint32_t n_filled, float * by_cell);

    // Write the sum of norm1(V W_O) over all query heads that read a value to norms, by cell of the pool: of each head's cells from
    // first_cells of the head on. projections: W_O of every reader of each layer of the cache, which must lie beside the rows. False
    // likewise.
    bool norms(uint32_t n_filled, const std::vector<const std::vector<WeightRows> *> & projections, const std::vector<uint32_t> & first_cells,
               float * norms);

    bool moves() const { return moves_; } // whether the backend can move rows byte for byte
    bool turns(uint32_t layer) const { return turned_[layer].possible; }

    // Note that row `from` goes to row `to`. Of all rows noted before `finish`, none is moved after another was moved to it.
    void move(uint32_t from, uint32_t to);

    // Note that the key in a row is turned by delta positions. Of all noted before `finish`, rows are of one layer.
    void turn(uint32_t layer, uint32_t row, int32_t delta);

    // Do what is noted. Throws Error where the backend fails; then rows are lost.
    void finish();
    void forget(); // what is noted

    size_t packet_bytes() const { return ggml_nbytes(&graph_->memory()); } // at most

    // Copy a packet's keys and values, of the same rows (n_keys,), to `to`. If the backend moves rows, as `scatter` needs it, too.
    void gather(const RowPacket & packet, const int32_t * rows, char * to);

    // Copy a packet's keys and values to the rows that it names. Throws Error where the backend fails.
    void scatter(const RowPacket & packet, const char * from);

    uint64_t crossed_bytes = 0; // copied between the host and the device

  private:
    struct Turned {
        bool    possible   = false; // of stored rows
        bool    from_first = false; // then rows of floats can be turned, too
        bool    neighbours = false;
        int32_t n_rot      = 0;
    };

    // A Hadamard rotation of stored rows; none where the run is 0.
    struct Rotation {
        ggml_tensor * matrix; // (run, run), in room for a row squared
        uint32_t      run = 0;
    };

    // Adjacent heads of a layer that hold equally many cells, which one graph scores.
    struct Run {
        uint32_t layer; // of the cache
        uint32_t begin; // head of the layer
        uint32_t n_heads;
        uint32_t n; // cells of each
    };

    // Some cells of every head of a run.
    struct Cells {
        uint32_t begin;
        uint32_t n;
    };

    // Where numbers of cells go in scores_: those of a head `apart` after those of the head before.
    struct Place {
        size_t first;
        size_t apart;
    };

    static constexpr uint32_t n_normed = 128; // values of each head that a section norms

    static size_t n_at_once(const FlatCache & flat, uint32_t pool);
    static size_t place_bytes(const FlatCache & flat, uint32_t pool);
    static size_t small_bytes(const FlatCache & flat, uint32_t pool);
    static size_t n_listed(const FlatCache & flat, uint32_t pool);

    void                    write(Rotation & rotation, uint32_t run);
    Run                     run_at(uint32_t index, uint32_t begin, uint32_t n_filled) const;
    const FlatCache::Head & first_of(const Run & run) const { return flat_.head(flat_.layers()[run.layer].first_head + run.begin); }

    bool          compute_by_run(uint32_t n_filled, const std::function<bool(const Run & run)> & f);
    bool          by_run(uint32_t n_filled, float * by_cell, const std::function<bool(const Run & run)> & f);
    void          send(ggml_tensor * to, const void * from, size_t n_bytes);
    void          take(float * to, size_t n);
    bool          score_by_keys(const edgekv_policy & policy, const Run & run);
    ggml_tensor * before_rope(ggml_context * context, ggml_tensor * keys, const Run & run);
    bool          score_by_attention(const edgekv_policy & policy, const GraphQueries & queries, const Run & run);
    ggml_tensor * largest_of(ggml_context * context, ggml_tensor * weights, ggml_tensor * zeros, ggml_tensor * before);
    bool          add_norms(const Run & run, const ggml_tensor & w_o, uint32_t n_group, const Cells & cells, const Place & place, bool first);
    ggml_tensor * rows_of(ggml_context * context, ggml_tensor * all, const Run & run);
    ggml_tensor * rows_of(ggml_context * context, ggml_tensor * all, const Run & run, const Cells & cells, size_t place);
    ggml_tensor * sharpened(ggml_context * context, ggml_tensor * logits, const GraphQueries & queries, const Run & run, size_t first);
    ggml_tensor * place_of(ggml_context * context, ggml_tensor * by_cell, const Run & run);
    ggml_tensor * mask_of(ggml_context * context, const Run & run, size_t first, int64_t n_rows);
    ggml_tensor * queries_of(ggml_context * context, const Run & run, size_t first, size_t n_rows, bool turned);
    ggml_tensor * rotated(ggml_context * context, ggml_tensor * rows, size_t place, const Rotation & rotation);
    ggml_tensor * turned(ggml_context * context, ggml_tensor * rows, ggml_tensor * delta, uint32_t index, bool back = false);
    ggml_tensor * key_diff(ggml_context * context, const edgekv_policy & policy, ggml_tensor * keys);
    ggml_tensor * over_cells(ggml_context * context, ggml_tensor * rows, float scale, ggml_tensor * weights = nullptr);
    ggml_tensor * of_rows(ggml_context * context, ggml_tensor * products);
    bool          build_moves(size_t n);
    ggml_tensor * listed(ggml_context * context, size_t offset, size_t n);
    bool          build_turns(uint32_t layer, size_t n);
    void          note(uint32_t first, int32_t second);

    const FlatCache &       flat_;
    const FlatCache::Pool   pool_;
    uint32_t                number_;
    Beside                  memory_;
    ggml_tensor *           first_;    // (n_listed,) rows that are read
    ggml_tensor *           second_;   // (n_listed,) rows that are written, or by how much they turn
    ggml_tensor *           steps_;    // (n_listed,) 0, 1, 2, ...
    ggml_tensor *           scores_;   // by cell of the pool
    ggml_tensor *           before_;   // likewise: how many queries come before it, its weight in a mean, or, I32, its RoPE position
    ggml_tensor *           gains_;    // as many as cells, of the rows that score in every layer
    ggml_tensor *           factors_;  // (dim / 2, 2 layers of the cache) positions per radian, where keys are turned; then to turn back
    Rotation                of_keys_;  // where keys are turned
    Rotation                of_values_;
    std::vector<Turned>     turned_;   // by layer of the cache
    std::optional<Graph>    graph_;
    bool                    moves_ = false;
    std::vector<int32_t>    noted_first_, noted_second_; // room for n_listed
    std::optional<uint32_t> turning_; // the layer whose rows are noted to turn; none: they are noted to move
};

} // namespace edgekv
