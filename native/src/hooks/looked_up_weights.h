// Weights of which a batch needs parts: rows of tables of embeddings, and experts. Parts are read to where they would lie in the whole
// weight, which has addresses, but memory only where something was read. So every operation of ggml finds them.
#pragma once

#include "ggml.h"
#include "hooks/parallel_reads.h"
#include "hooks/weights_file.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace edgekv {

class LookedUpWeights {
  public:
    static const bool works; // on systems that give addresses without memory, and take memory back

    // The most memory that n rows of a table take, or all experts of a weight.
    static size_t bytes_of_rows(const ggml_tensor & table, size_t n);
    static size_t bytes_of_experts(const ggml_tensor & weight);

    //   reads : of the same file; it outlives this
    LookedUpWeights(std::shared_ptr<const WeightsFile> file, ParallelReads & reads) : file_(std::move(file)), reads_(reads) {}
    ~LookedUpWeights();
    LookedUpWeights(const LookedUpWeights &)             = delete;
    LookedUpWeights & operator=(const LookedUpWeights &) = delete;

    // Give a loaded weight its addresses. Throws Error, std::bad_alloc.
    void add_table(ggml_tensor & weight);
    void add_experts(ggml_tensor & weight);

    // Experts may take so many bytes together, at least those of one weight: those that were chosen last.
    void set_room(size_t n_bytes) { room_ = n_bytes; }

    // Read what a node needs of a weight. Returns 0, or what WeightsFile::try_read returned, and from then on for every node of the
    // batch. One thread asks for them, while others that compute the node wait.
    int read_for(const ggml_tensor & weight, const ggml_tensor & node);

    // Rows of tables go; experts stay.
    void end_batch();

    uint64_t n_read() const;  // bytes, so far
    uint64_t read_ns() const; // that it took

  private:
    struct Weight;
    struct Expert {
        Weight *                      weight;
        uint32_t                      number;
        bool                          is_there = false;
        std::list<Expert *>::iterator place; // in recent_ or absent_
    };
    struct Weight {
        const ggml_tensor * tensor;
        uint64_t            offset; // in the file
        char *              data;
        const ggml_tensor * read_for; // the node whose parts are there
        std::vector<Expert> experts;            // none of a table
    };

    Weight & add(ggml_tensor & weight);
    int      read_rows(const Weight & weight, const ggml_tensor & ids);
    int      read_experts(Weight & weight, const ggml_tensor & ids);
    int      read(const Weight & weight, size_t begin, size_t n_bytes);
    void     make_room(size_t n_bytes);
    void     drop(Expert & expert);

    std::shared_ptr<const WeightsFile>              file_;
    ParallelReads &                                 reads_;
    std::unordered_map<const ggml_tensor *, Weight> weights_;
    std::list<Expert *>                             recent_; // experts that are there, the one that was chosen last first
    std::list<Expert *>                             absent_; // the others: nothing is allocated while a graph computes
    std::vector<Expert *>                           missing_; // that a node needs
    std::vector<ParallelReads::Span>                spans_;   // of these
    size_t                                          room_    = 0;
    size_t                                          held_    = 0;
    uint64_t                                        n_read_  = 0;
    uint64_t                                        read_ns_ = 0;
    int                                             failed_  = 0;
    mutable std::mutex                              mutex_;
};

} // namespace edgekv
