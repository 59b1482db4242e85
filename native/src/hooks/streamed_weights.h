// Weights that do not stay in memory: matrices of a layer are read from the model's file when the layer's turn comes, and of others the
// parts that a batch needs.
#pragma once

#include "ggml-backend.h"
#include "hooks/looked_up_weights.h"
#include "hooks/parallel_reads.h"
#include "hooks/streamed_layers.h"
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

// The streamed weights of one model, and the threads that read them ahead. One batch at a time may be computed with them.
class StreamedWeights {
  public:
    static constexpr size_t n_threads = 1 + ParallelReads::n_threads;

    StreamedWeights(std::shared_ptr<const WeightsFile> file, StreamedLayers layers);
    ~StreamedWeights();
    StreamedWeights(const StreamedWeights &)             = delete;
    StreamedWeights & operator=(const StreamedWeights &) = delete;

    // What llama.cpp allocates these weights with. It takes no memory for them.
    ggml_backend_buffer_type_t type() { return type_.get(); }

    // Give the weights of a loaded model their places in the slots, and begin to read. Throws Error, std::bad_alloc.
    void begin(const std::vector<std::pair<std::string, ggml_tensor *>> & weights);

    // Wait until a streamed weight is there that a node computes with: its layer, which stays until another is waited for, or the parts
    // that are looked up. False if they cannot be read. All threads that compute the node call it before.
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
        uint64_t n_bytes;        // of matrices, read once a batch
        uint64_t n_expert_bytes; // of experts, of which those are read that are chosen
        uint64_t n_slot_bytes;   // memory for both
        uint64_t n_read;  // bytes, so far
        uint64_t read_ns; // that took
        uint64_t wait_ns; // in which computing waited for it
    };
    Stats stats() const;

    const StreamedLayers & layers() const { return layers_; }

  private:
    struct Layer {
        int32_t                          next; // that was waited for after it, the last time
        std::vector<ParallelReads::Span> weights;
    };
    friend bool is_streamed(ggml_backend_buffer_type_t type);
    static constexpr int32_t none = -1;

    static const char *          name(ggml_backend_buffer_type_t type);
    static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t n_bytes);
    static size_t                alignment(ggml_backend_buffer_type_t type);

    bool    wait_for_layer(int32_t index);
    bool    wait_for_parts(const ggml_tensor & weight, const ggml_tensor & node);
    void    read_ahead();
    int32_t to_read() const;
    bool    is_there(int32_t index) const { return there_[index % StreamedSizes::n_slots] == index; }
    char *  slot(int32_t index) const;

    std::unique_ptr<ggml_backend_buffer_type>        type_;
    std::shared_ptr<const WeightsFile>               file_;
    StreamedLayers                                   layers_;
    std::vector<Layer>                               streamed_; // what follows counts layers among these
    std::unordered_map<const ggml_tensor *, int32_t> layer_of_;
    ParallelReads                                    reads_;
    LookedUpWeights                                  looked_up_;
    ggml_backend_buffer_t                            slots_      = nullptr;
    size_t                                           slot_bytes_ = 0;

    mutable std::mutex       mutex_;
    std::condition_variable  to_do_;
    std::condition_variable  done_;
    std::atomic<int32_t>     current_{ none }; // the layer that computes
    int32_t                  last_   = none;   // that was waited for
    int32_t                  wanted_ = none;
    int32_t                  there_[StreamedSizes::n_slots] = { none, none }; // the layers in the slots
    int                      failure_ = 0; // what WeightsFile::try_read returned in this batch
    bool                     stops_   = false;
    Stats                    stats_ = {};
    std::mutex               pass_;
    std::thread              thread_;
};

// Whether weights are read when their turn comes.
bool is_streamed(ggml_backend_buffer_type_t type);
bool is_streamed(const ggml_tensor & weight);

} // namespace edgekv
