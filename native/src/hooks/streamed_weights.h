// Weights that do not stay in memory: matrices of a layer are read from the model's file when the layer's turn comes, and of tables of
// embeddings the rows that a batch looks up.
#pragma once

#include "ggml-backend.h"
#include "hooks/weights_file.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace edgekv {

// Which weights of a model are streamed. Layers are spread evenly, so that one that stays gives time to read the next.
struct StreamedLayers {
    uint32_t n_layers   = 0; // of the model
    uint32_t n_streamed = 0;
    bool     has_output = false; // a matrix of its own, so that the table of token embeddings is only looked up

    bool has(uint32_t layer) const { return uint64_t(layer + 1) * n_streamed / n_layers > uint64_t(layer) * n_streamed / n_layers; }

    // The layer whose weight this is, if it is streamed: its matrices are, its norms and vectors stay. -1 = it stays.
    int32_t layer_of(const std::string & weight, int64_t n_rows) const;

    // Whether the weight is a table of which rows are read when they are looked up. None is where none is streamed.
    bool is_table(const std::string & weight) const;

    // Names of the weights of a file that are streamed, and of tables, as a regular expression.
    std::string pattern(const WeightsFile & file) const;
};

// How many bytes of its slot each layer takes. There are two slots: one layer computes, and the next is read.
class SlotSizes {
  public:
    static constexpr size_t n_slots = 2;

    explicit SlotSizes(uint32_t n_layers) : used_(n_layers) {}

    size_t add(uint32_t layer, const ggml_tensor & weight); // returns where the weight begins in its slot
    size_t largest() const;
    size_t held() const; // by all slots

  private:
    std::vector<size_t> used_;
};

// The most memory that n rows of a table take, which are read to pages of their own.
size_t table_bytes(const ggml_tensor & table, size_t n);

// The streamed weights of one model, and the thread that reads them ahead. One batch at a time may be computed with them.
class StreamedWeights {
  public:
    StreamedWeights(std::shared_ptr<const WeightsFile> file, StreamedLayers layers);
    ~StreamedWeights();
    StreamedWeights(const StreamedWeights &)             = delete;
    StreamedWeights & operator=(const StreamedWeights &) = delete;

    // What llama.cpp allocates these weights with. It takes no memory for them.
    ggml_backend_buffer_type_t type() { return type_.get(); }

    // Give the weights of a loaded model their places in the slots, and begin to read. Throws Error, std::bad_alloc.
    void begin(const std::vector<std::pair<std::string, ggml_tensor *>> & weights);

    // Wait until a streamed weight is there that a node computes with: its layer, which stays until another is waited for, or the
    // rows that are looked up, which stay until the batch ends. False where they cannot be read. All threads that compute the node
    // call it before.
    static bool wait_for(const ggml_tensor & weight, const ggml_tensor & node);

    // The computation of one batch. Another one waits until it ends.
    class Pass {
      public:
        explicit Pass(StreamedWeights * weights); // NULL = nothing is streamed
        ~Pass();
        Pass(const Pass &)             = delete;
        Pass & operator=(const Pass &) = delete;

        // Throw Error(EDGEKV_STATUS_MODEL_INVALID) where weights could not be read meanwhile.
        void require_read() const;

      private:
        StreamedWeights * weights_;
    };

    struct Stats {
        uint64_t n_bytes; // of all streamed weights, read once a batch
        uint64_t n_slot_bytes;
        uint64_t n_read;  // bytes, so far
        uint64_t read_ns; // that took
        uint64_t wait_ns; // in which computing waited for it
    };
    Stats stats() const;

    const StreamedLayers & layers() const { return layers_; }

  private:
    struct Read { // of one weight
        uint64_t offset;
        size_t   n_bytes;
        size_t   place; // in the slot
    };
    struct Layer {
        int32_t           next; // that was waited for after it, the last time
        std::vector<Read> reads;
    };
    struct Table {
        uint64_t            offset; // in the file
        size_t              n_bytes;
        char *              data;
        const ggml_tensor * read_for = nullptr; // the node whose rows are there
    };
    friend bool is_streamed(ggml_backend_buffer_type_t type);
    static constexpr int32_t none = -1;

    static const char *          name(ggml_backend_buffer_type_t type);
    static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t n_bytes);
    static size_t                alignment(ggml_backend_buffer_type_t type);

    bool    wait_for_layer(int32_t index);
    bool    wait_for_rows(const ggml_tensor & table, const ggml_tensor & node);
    void    fail_to_read(int result);
    void    drop_rows();
    void    read_ahead();
    int32_t to_read() const;
    bool    is_there(int32_t index) const { return there_[index % SlotSizes::n_slots] == index; }
    int     read(int32_t index); // what WeightsFile::try_read returns
    char *  slot(int32_t index) const;

    std::unique_ptr<ggml_backend_buffer_type>        type_;
    std::shared_ptr<const WeightsFile>               file_;
    StreamedLayers                                   layers_;
    std::vector<Layer>                               streamed_; // what follows counts layers among these
    std::unordered_map<const ggml_tensor *, int32_t> layer_of_;
    std::unordered_map<const ggml_tensor *, Table>   tables_;
    ggml_backend_buffer_t                            slots_      = nullptr;
    size_t                                           slot_bytes_ = 0;

    mutable std::mutex       mutex_;
    std::condition_variable  to_do_;
    std::condition_variable  done_;
    std::atomic<int32_t>     current_{ none }; // the layer that computes
    int32_t                  last_   = none;   // that was waited for
    int32_t                  wanted_ = none;
    int32_t                  there_[SlotSizes::n_slots] = { none, none }; // the layers in the slots
    bool                     failed_  = false;
    bool                     stops_   = false;
    std::string              failure_;
    Stats                    stats_ = {};
    std::mutex               pass_;
    std::thread              thread_;
};

// Whether weights are read when their turn comes.
bool is_streamed(ggml_backend_buffer_type_t type);
bool is_streamed(const ggml_tensor & weight);

} // namespace edgekv
