// What one thread does of attention on the processor: it takes queries of a KV head over its cells, tile by tile.
#pragma once

#include "kernels/kernels.h"
#include "kernels/row_types.h"

#include <algorithm>

namespace edgekv {

// How keys or values are stored.
struct RowFormat {
    ggml_type type;
    size_t    dim;
    size_t    stride; // bytes from a cell's row to the next one's
};

// What an operation attends with, whatever keeps the cells.
struct AttentionOperands {
    const ggml_tensor * queries; // F32 (keys.dim, n_head, n_tokens)
    const ggml_tensor * sinks;   // F32 (n_head,), or NULL
    const ggml_tensor * mask;    // F16 (cells, n_tokens), 0 if a token sees a cell, else -inf; NULL = the last token sees all
                                 // cells, and each one cell more than the token before
    ggml_tensor *       out;     // F32 (values.dim * n_head, n_tokens)
    size_t              n_head_kv;
    RowFormat          keys;
    RowFormat          values;
    bool                is_latent; // a value is the first part of its key
    float               scale;     // of Q K^T
    float               softcap;   // 0 = none
};

// The cells of a KV head that a batch sees, in the order of their sums.
struct AttendedHead {
    const char *  keys; // of the first one
    const char *  values;
    size_t        n;
};

// What a query sees of a tile.
struct SeenCells {
    uint64_t bits; // of the cells
    size_t   n;    // the last one is n - 1; 0 = none
};

// A tile is too large for the stack of a thread: musl gives new ones 128 KiB. Sums of a query depend neither on
// how queries are shared out nor on how many there are.
class AttentionPass {
  public:
    // Tokens [first_token, first_token + n_tokens) of `of`, which outlives this; so does the memory (work_bytes,) that no other pass
    // uses meanwhile. It begins at a multiple of n_aligned.
    AttentionPass(const AttentionOperands & of, size_t first_token, size_t n_tokens, void * memory);

    // Whether rows of these lengths fit a tile; and bytes that a pass over them works in then, a multiple of n_aligned.
    static constexpr size_t n_aligned = 64;
    static bool             fits(size_t dim_k, size_t dim_v);
    static size_t           work_bytes(size_t dim_k, size_t dim_v);

    // Of a KV head, counted by query head, then token.
    size_t n_queries() const { return n_group_ * n_tokens_; }

    // Queries that only one thread may take.
    size_t step() const { return tile_.has_panels ? n_lanes : 1; }

    // Queries [first, last) of KV head g.
    void attend_head(const AttendedHead & cells, size_t g, size_t first, size_t last) {
        for (; first < last; first += tile_.n_queries) {
            attend_queries(cells, g, first, std::min(tile_.n_queries, last - first));
        }
    }

  private:
    static constexpr size_t n_floats     = 10240; // of a tile of keys, one of values, the queries of a pass, and their sums
    static constexpr size_t most_queries = 32;    // that are rows
    static constexpr size_t most_panels  = 8;
    static constexpr size_t most_at_once = std::max(most_queries, most_panels * n_lanes);
    static constexpr size_t most_cells   = 64;
    static constexpr size_t max_row      = n_floats / n_lanes; // a tile is no fewer than n_lanes cells
    static constexpr size_t n_logits     = most_queries * most_cells; // a panel's are no more

    // From so many tokens on, queries are lanes of panels: fewer would leave lanes empty. Both have the same sums, to the bit.
    static constexpr size_t fewest_tokens = 8;

    // How much is done at once. Sums do not depend on the number of threads, so this does not either.
    struct Tile {
        size_t dim_k; // of rows here
        size_t dim_v;
        size_t n_cells;
        size_t n_queries;
        bool   has_panels; // queries are the lanes of panels, not rows

        Tile(size_t head_dim_k, size_t head_dim_v, size_t n_tokens);

        // Floats of keys, values, queries, their sums, logits, and what is hidden.
        size_t size() const { return (n_cells + n_queries) * (dim_k + dim_v) + 2 * n_logits; }
    };

    void      attend_queries(const AttendedHead & cells, size_t g, size_t first, size_t n);
    void      add_tile(const AttendedHead & cells, size_t cell, size_t n_read, size_t n);
    SeenCells see(const AttendedHead & cells, size_t cell, size_t n_read, size_t n);
    void      read(const AttendedHead & cells, size_t cell, size_t n_read, uint64_t wanted);
    size_t    place(size_t i, size_t dim) const;
    void      put_query(size_t i, const float * query);
    void      put_out(size_t i, float * dst) const;

    const int32_t * hidden(size_t i, size_t n, size_t n_cells, size_t next_query, size_t next_cell);

    // Of a query of KV head g: its query head, and its token.
    size_t head_of(size_t g, size_t query) const { return g * n_group_ + query / n_tokens_; }
    size_t token_of(size_t query) const { return first_token_ + query % n_tokens_; }

    const AttentionOperands & of_;
    const size_t              first_token_;
    const size_t              n_tokens_;
    const size_t              n_group_; // query heads of a KV head
    const Tile                tile_;
    const ggml_to_float_t     read_k_;
    const ggml_to_float_t     read_v_;

    float * const   keys_;
    float * const   values_;
    float * const   queries_;
    float * const   out_rows_;
    float * const   logits_;
    int32_t * const hidden_;

    float    most_[most_at_once];
    float    sums_[most_at_once];
    size_t   tokens_[most_at_once];
    int32_t  n_seen_[most_at_once]; // the first ones of a tile
    uint64_t seen_[most_at_once];   // bits of the cells of a tile
};

} // namespace edgekv
