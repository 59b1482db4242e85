// Attention on the processor, an operation of a graph for each layer: over heads of unequal length, and over a window.
#pragma once

#include "rows/attention_pass.h"
#include "rows/flat_cache.h"

namespace edgekv {

// What the threads that compute an operation need to know of a part of the batch, and of its KV head g. It must outlive the graph.
class AttentionOperation {
  public:
    virtual size_t            n_parts() const                                              = 0;
    virtual size_t            n_tokens(size_t part, const ggml_tensor & out) const         = 0;
    virtual AttentionOperands operands(ggml_tensor & out) const                            = 0;
    virtual AttendedHead          cells(size_t part, size_t g, const ggml_tensor & out) const = 0;

  protected:
    ~AttentionOperation() = default;

    // args: q (dim_k, n_head, n_tokens), ..., and sinks last, or NULL
    template <size_t n> ggml_tensor * node_of(ggml_context * context, int64_t dim_v, ggml_tensor * (&args)[n]) const;
};

// Over a layer of a flat cache.
class HostAttention final : public AttentionOperation {
  public:
    // parts: of the batch; scale: of Q K^T; softcap: 0 = none
    HostAttention(const std::vector<BatchPart> & parts, uint32_t il, float scale, float softcap)
        : parts_(parts), il_(il), scale_(scale), softcap_(softcap) {}

    // Whether rows of all layers of a cache are read so.
    static bool can_attend(const FlatCache & cache);

    // q (head_dim_k, n_head, n_tokens) F32, sinks (n_head,) or NULL -> (head_dim_v * n_head, n_tokens). A token sees every kept
    // cell of a head of its slot, the open ones filled before the batch, and those of its part of the batch up to its own. Sums are
    // taken in float32, in an order that depends neither on threads nor on other tokens of the batch.
    ggml_tensor * operation(ggml_context * context, ggml_tensor * q, ggml_tensor * sinks) const;

    size_t            n_parts() const override { return parts_.size(); }
    size_t            n_tokens(size_t part, const ggml_tensor &) const override { return parts_[part].n_tokens; }
    AttentionOperands operands(ggml_tensor & out) const override;
    AttendedHead          cells(size_t part, size_t g, const ggml_tensor & out) const override;

  private:
    const std::vector<BatchPart> & parts_;
    const uint32_t                       il_;
    const float                          scale_;
    const float                          softcap_;
};

// Over the ring of a layer that sees no further than a window.
class WindowAttention final : public AttentionOperation {
  public:
    WindowAttention(float scale, float softcap) : scale_(scale), softcap_(softcap) {}

    // Whether keys and values, as llama.cpp hands them to its own attention, are read so.
    static bool can_attend(const ggml_tensor & k, const ggml_tensor & v, const ggml_tensor & mask);

    // The same of k (head_dim_k, n_head_kv, cells) and v in the host's memory. A token sees the cells whose mask (cells, n_tokens),
    // F16, is 0; it is -inf elsewhere. Sums go by cell.
    ggml_tensor * operation(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * mask,
                            ggml_tensor * sinks) const;

    size_t            n_parts() const override { return 1; }
    size_t            n_tokens(size_t part, const ggml_tensor & out) const override;
    AttentionOperands operands(ggml_tensor & out) const override;
    AttendedHead          cells(size_t part, size_t g, const ggml_tensor & out) const override;

  private:
    const float scale_;
    const float softcap_;
};

} // namespace edgekv
