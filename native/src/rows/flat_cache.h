// The rows of a KV cache in which every head has a number of its own.
#pragma once

#include "edgekv.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "rope/key_rope.h"
#include "rows/batch.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace edgekv {

// Keys lie in pools of rows, one for all heads of a device that have the same shape, and values beside them. A head owns
// a run of rows: those that the last compaction kept, then open ones, equally many in every head, which take the next
// tokens. So one mask, aligned to where the open rows begin, serves all heads of all layers. A recall adds rows to those kept, and
// lays the rows out anew. On a device a head begins where a tensor may, and so some rows before it may be nobody's.
//
// A context may have several slots, for sequences that share its steps. A slot is a flat cache of the same shape with rows of its
// own in the same pools. The first one owns the others.
class FlatCache {
  public:
    struct Head {
        uint32_t first; // row in its pool
        uint32_t cell;  // its first among the cells of its pool, which lie close
        uint32_t kept;
        uint32_t added; // rows behind these that recalls have added since, and that were filled before a recall

        uint32_t open() const { return kept + added; } // where its open rows begin, from `first` on
        bool     is_like(const Head & other) const { return open() == other.open(); }
    };

    // A layer of the model that attends with some rows: the layer that writes them, or a later one that shares them.
    struct Reader {
        uint32_t il;
        uint32_t first;   // of its query heads among those of one KV head
        uint32_t n_group; // how many they are
    };

    // The rows of a layer that has its own. Query heads of one KV head lie together, those of one reader after another's.
    struct Layer {
        uint32_t            il; // llama.cpp's number
        uint32_t            pool;
        uint32_t            first_head;    // counted over all layers
        uint32_t            first_of_pool; // the same head, counted over the layers of its pool
        uint32_t            n_head_kv;
        uint32_t            n_group; // query heads of one KV head, of all readers
        uint32_t            head_dim_k;
        uint32_t            head_dim_v;
        ggml_tensor *       k; // (head_dim_k, rows) of the whole pool
        ggml_tensor *       v; // k itself where a row is a latent: its first head_dim_v elements are the value
        std::vector<Reader> readers; // the layer itself, and those that share its rows

        uint32_t n_head() const { return n_group * n_head_kv; }

        bool     is_latent() const { return v == k; }
        uint64_t row_bytes() const { return k->nb[1] + (is_latent() ? 0 : v->nb[1]); } // of a cell
    };

    struct Pool {
        ggml_context * context;
        ggml_tensor *  k;
        ggml_tensor *  v; // k itself, likewise
        bool           host; // whether the rows lie in the host's memory
        uint32_t       step; // a head begins at a row that is a multiple of this
        uint32_t       n_heads;
        uint32_t       first_row;   // of the slot
        uint32_t       offset;      // cells of the pools before
        uint64_t       n_used;      // cells, while they are laid out
        uint64_t       n_used_rows; // likewise
    };

    // What a graph does with the queries, keys and values of a layer.
    struct Attention {
        KeyRope  rope;
        float    scale      = 0.0f; // of Q K^T
        uint32_t rotation_k = 0;    // run of the Hadamard rotation that keys are given; 0 = none
        uint32_t rotation_v = 0;    // the same of values
    };

    // What graphs say of themselves, one for all slots. They change nothing else here.
    struct Notes {
        std::unordered_map<uint32_t, Attention> attention;       // by il of layers, of the newest graph
        std::vector<uint8_t>                    attended;        // by il, whether the newest graph does so through FlatGraph
        bool                                    written = false; // whether the batch may have written rows, queries too
        uint64_t                                n_batches = 0;   // so far: logits are those of the last one
    };

    explicit FlatCache(const edgekv_layout & layout);

    // Make the slots of the layout, once all layers are there. Nothing is allocated for rows: their pools have room for all slots.
    // Throws Error(EDGEKV_STATUS_UNSUPPORTED) where rows lie on a device.
    void add_slots();

    uint32_t    n_slots() const { return layout_.n_slots; }
    FlatCache & slot(uint32_t i); // throws Error if there is none

    // Its rows are one edgekv_cache's alone, while this lives. Throws Error if they are another's.
    class Claim {
      public:
        explicit Claim(FlatCache & flat);
        ~Claim() { flat_.claimed_ = false; }
        Claim(const Claim &)             = delete;
        Claim & operator=(const Claim &) = delete;

      private:
        FlatCache & flat_;
    };

    // Give a layer rows of the pools in `context`, which are allocated later, in `memory`. type_v: GGML_TYPE_COUNT where a row
    // is a latent.
    void add_layer(ggml_context * context, ggml_backend_buffer_type_t memory, uint32_t il, uint32_t n_head, uint32_t n_head_kv,
                   ggml_type type_k, uint32_t head_dim_k, ggml_type type_v, uint32_t head_dim_v);

    // Let layer `il`, of n_head query heads, attend with the rows of `owner`. Throws if they are no multiple of its KV heads.
    void add_reader(uint32_t il, uint32_t n_head, uint32_t owner);

    uint32_t                   n_cells() const { return layout_.n_cells; } // of every head on average
    uint32_t                   n_cells_max() const;                        // of one head
    uint32_t                   n_allowed() const { return n_allowed_; }    // of every head on average, at most n_cells()
    bool                       is_outgrown() const { return n_laid_out_ != n_allowed_; } // laid out for another number
    const std::vector<Layer> & layers() const { return layers_; }
    const std::vector<Pool> &  pools() const { return pools_; }
    const Layer &              layer(uint32_t il) const { return layers_[index_.at(il)]; } // whose rows il reads
    const Head &               head(size_t h) const { return heads_[h]; } // counted over all layers
    uint32_t                   n_heads() const { return static_cast<uint32_t>(heads_.size()); }
    uint32_t                   n_cells_total() const { return n_heads() * layout_.n_cells; }
    uint32_t                   n_own(const Head & head) const { return head.open() + n_open_; } // its cells, in use or not
    uint32_t                   n_apart(const Head & head, const Pool & pool) const;           // rows to the head after it
    uint32_t                   n_open() const { return n_open_; }     // open rows of every head
    uint32_t                   n_filled() const { return n_filled_; } // of these, in use before the batch
    uint64_t                   n_before_open() const { return n_before_open_; } // rows of all heads before their open ones
    uint32_t                   max_open() const { return max_open_; } // where the open rows of a head begin, at most
    uint32_t                   version() const { return version_ + queries_.version(); } // a graph holds for one; what outdates graphs raises it
    uint32_t                   n_nodes() const;                       // graph nodes that it takes beyond llama.cpp's own, at most
    bool                       attends_by_head() const;               // whether the graph has nodes for heads that all differ
    bool                       on_device() const { return on_device_; } // some rows, at least
    const QueryRings &         queries() const { return queries_; }
    QueryRings &               queries() { return queries_; }
    ggml_tensor *              query_ring(uint32_t il) const { return queries_.rings()[index_.at(il)]; }
    const Notes &              notes() const { return *notes_; }
    int32_t                    unattended() const; // il of a reader that the newest graph does not attend with; -1 = none
    const Attention &          attention(uint32_t il) const { return notes_->attention.at(il); }
    Notes &                    notes() { return *notes_; }

    // Lay the rows out anew: kept (n_heads,) of every head, in the order of the layers; the rest is open, in equal parts.
    // Rows do not move by this, and nothing is allocated. Throws Error, and changes nothing, where a pool has too few rows.
    void lay_out(const std::vector<uint32_t> & kept);

    // Use n_cells of every head on average, at most as many as there are, from the next layout on.
    void allow(uint32_t n_cells);

    // Give the memory of host rows that this layout does not use back to the system. What they held is lost.
    void return_rows();

    // Lay them out anew by where the open rows of every head begin: (n_heads,), at the kept ones at least. Likewise.
    void lay_out_before_open(const std::vector<uint32_t> & n);

    // Keep nothing. No graph of before is used again: it may attend to more open rows, and round otherwise.
    void clear();
    void outdate() { ++version_; } // these graphs, where fewer open rows are in use

    // Whether the rows can be laid out so, and then have n_open rows of every head open. before_open: of every head
    bool fits(const std::vector<uint32_t> & before_open, uint32_t n_open) const;

    // What this slot gets next goes to its open rows from the n_filled-th on.
    void begin_part(uint32_t n_filled) { n_filled_ = n_filled; }

    // Of the first slot: the parts of the batch that is decoded, for all slots.
    BatchParts &       batch() { return batch_; }
    const BatchParts & batch() const { return batch_; }

  private:
    FlatCache(const FlatCache & first, uint32_t slot);

    bool                          copies() const;        // whether the graph reads copies of rows
    template <typename Rows> bool fits_by(uint32_t n_cells, Rows before_open, uint32_t n_open) const; // of every head: f(head)
    template <typename Kept, typename Added> void lay_out_by(uint32_t n_cells, Kept kept, Added added); // likewise

    edgekv_layout                        layout_;
    std::vector<Pool>                    pools_;
    std::vector<Layer>                   layers_;
    std::vector<Head>                    heads_; // of all layers
    std::unordered_map<uint32_t, size_t> index_; // by il of a reader
    QueryRings                           queries_;
    std::shared_ptr<Notes>               notes_ = std::make_shared<Notes>();
    std::vector<std::unique_ptr<FlatCache>> others_; // further slots
    BatchParts                           batch_;
    uint32_t                             n_filled_  = 0;
    uint32_t                             n_open_    = 0;
    uint32_t                             n_allowed_;
    uint32_t                             n_laid_out_ = 0; // n_allowed_ of the newest layout
    uint64_t                             n_before_open_ = 0;
    uint32_t                             max_open_  = 0;
    uint32_t                             version_   = 0;
    bool                                 on_device_ = false;
    bool                                 claimed_   = false;
};

// Whether all heads have the same number.
inline bool are_alike(const std::vector<uint32_t> & of_heads) {
    return std::adjacent_find(of_heads.begin(), of_heads.end(), std::not_equal_to<>()) == of_heads.end();
}

} // namespace edgekv
