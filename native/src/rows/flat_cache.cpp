#include "rows/flat_cache.h"

#include "hooks/pages.h"
#include "hooks/status.h"
#include "kernels/row_types.h"
#include "rows/strided_heads.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace edgekv {

namespace {

// Devices read rows in runs of 256, beyond a head's end too. ggml wants room for a view as if no head of a layer overlapped the
// next, so the last layer needs that for each of its heads.
constexpr uint32_t device_slack = 255;

ggml_tensor * add_rows(ggml_tensor * tensor, uint32_t n) {
    tensor->ne[1] += n;
    tensor->nb[2] = tensor->nb[3] = tensor->nb[1] * tensor->ne[1];
    return tensor;
}

// The fewest rows that take whole multiples of an alignment, a power of 2.
uint32_t step_of(const ggml_tensor & rows, size_t alignment) {
    return static_cast<uint32_t>(alignment / std::gcd(alignment, rows.nb[1]));
}

} // namespace

FlatCache::Claim::Claim(FlatCache & flat) : flat_(flat) {
    if (flat.claimed_) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the context has a cache already; free that one first, or make another context");
    }
    flat.claimed_ = true;
}

FlatCache::FlatCache(const edgekv_layout & layout) : layout_(layout), n_open_(layout.n_cells), n_allowed_(layout.n_cells) {
    layout_.n_slots = std::max(1u, layout.n_slots);
}

void FlatCache::add_layer(ggml_context * context, ggml_backend_buffer_type_t memory, uint32_t il, uint32_t n_head, uint32_t n_head_kv,
                          ggml_type type_k, uint32_t head_dim_k, ggml_type type_v, uint32_t head_dim_v) {
    const bool host   = ggml_backend_buft_is_host(memory);
    const bool latent = type_v == GGML_TYPE_COUNT;
    const auto same   = [&](const Pool & pool) {
        return pool.context == context && pool.k->ne[0] == head_dim_k && (latent || pool.v->ne[0] == head_dim_v);
    };
    auto pool = std::find_if(pools_.begin(), pools_.end(), same);
    if (pool == pools_.end()) {
        ggml_tensor * k = ggml_new_tensor_2d(context, type_k, head_dim_k, 0);
        ggml_format_name(k, "edgekv_k%zu", pools_.size());
        ggml_tensor * v = k;
        if (!latent) {
            v = ggml_new_tensor_2d(context, type_v, head_dim_v, 0);
            ggml_format_name(v, "edgekv_v%zu", pools_.size());
        }
        const size_t alignment = host ? 1 : ggml_backend_buft_get_alignment(memory);
        const auto   step      = std::max(step_of(*k, alignment), step_of(*v, alignment));
        pool = pools_.insert(pools_.end(), { context, k, v, host, step, 0, 0, 0, 0, 0 });
        on_device_ |= !host;
    }
    // of a head on average in all slots, and what its start may leave unused
    const uint32_t n_rows = (layout_.n_cells + pool->step - 1) * layout_.n_slots;
    const auto     slack  = static_cast<uint32_t>(pool->k->ne[1] - pool->n_heads * n_rows);
    const auto     more   = n_head_kv * n_rows + (host ? 0 : std::max(slack, n_head_kv * device_slack) - slack);
    add_rows(pool->k, more);
    if (!latent) {
        add_rows(pool->v, more);
    }
    index_[il] = layers_.size();
    const auto number = static_cast<uint32_t>(pool - pools_.begin());
    layers_.push_back({ il, number, n_heads(), pool->n_heads, n_head_kv, 0, head_dim_k, head_dim_v, pool->k, pool->v, {} });
    pool->n_heads += n_head_kv;
    add_reader(il, n_head, il);
    heads_.resize(heads_.size() + n_head_kv);
    uint32_t offset = 0;
    for (Pool & each : pools_) {
        each.offset = offset;
        offset += each.n_heads * layout_.n_cells;
    }
    clear();
}

FlatCache::FlatCache(const FlatCache & first, uint32_t slot) :
    layout_(first.layout_), pools_(first.pools_), layers_(first.layers_), heads_(first.heads_), index_(first.index_), notes_(first.notes_),
    n_open_(first.n_open_), n_allowed_(first.n_allowed_) {
    for (Pool & pool : pools_) {
        pool.first_row = slot * pool.n_heads * layout_.n_cells;
    }
    clear();
}

void FlatCache::add_slots() {
    if (layout_.n_slots > 1 && on_device_) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "%u slots, but rows lie on a device, where each context has one; use one slot "
             "(n_slots = 1 in C, parallel=1 in Python)", layout_.n_slots);
    }
    for (uint32_t i = 1; i < layout_.n_slots; ++i) {
        others_.emplace_back(new FlatCache(*this, i));
    }
}

FlatCache & FlatCache::slot(uint32_t i) {
    if (i >= n_slots()) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "there is no slot %u; the context was made with %u", i, n_slots());
    }
    return i == 0 ? *this : *others_[i - 1];
}

void FlatCache::add_reader(uint32_t il, uint32_t n_head, uint32_t owner) {
    Layer &        layer   = layers_[index_.at(owner)];
    const uint32_t n_group = n_head / layer.n_head_kv;
    if (n_group * layer.n_head_kv != n_head) {
        throw std::runtime_error("the " + std::to_string(n_head) + " heads of layer " + std::to_string(il) + " do not share the " +
                                 std::to_string(layer.n_head_kv) + " KV heads of layer " + std::to_string(owner) + " evenly");
    }
    layer.readers.push_back({ il, layer.n_group, n_group });
    layer.n_group += n_group;
    index_[il] = index_.at(owner);
}

int32_t FlatCache::unattended() const {
    for (const Layer & layer : layers_) {
        for (const Reader & reader : layer.readers) {
            if (reader.il >= notes_->attended.size() || !notes_->attended[reader.il]) {
                return static_cast<int32_t>(reader.il);
            }
        }
    }
    return -1;
}

uint32_t FlatCache::n_cells_max() const {
    uint32_t most = layout_.n_cells_max;
    for (const Pool & pool : pools_) {
        most = std::min(most, pool.n_heads * layout_.n_cells);
    }
    return most;
}

bool FlatCache::copies() const {
    return std::any_of(pools_.begin(), pools_.end(), [](const Pool & pool) { return ggml_is_quantized(pool.k->type); });
}

bool FlatCache::attends_by_head() const { return copies() || n_cells_max() > layout_.n_cells; }

uint32_t FlatCache::n_nodes() const {
    const bool one_by_one = attends_by_head();
    const auto of_a_call  = 7 + (copies() ? 2 : 0) + (on_device_ ? 1 : 0); // five views, attention, its place; copies of rows, of a mask
    uint32_t   n            = on_device_ ? 3 * pools_.size() + StridedHeads::n_nodes(*this) : 0; // the lists and masks there
    for (const Layer & layer : layers_) {
        n += layer.readers.size() * (5 * layout_.n_slots + (one_by_one ? of_a_call * layer.n_head_kv : 0));
    }
    return n;
}

template <typename Rows> bool FlatCache::fits_by(uint32_t n_cells, Rows before_open, uint32_t n_open) const {
    const uint64_t most = n_cells_max();
    for (size_t p = 0; p < pools_.size(); ++p) {
        uint64_t n_used = 0;
        for (const Layer & layer : layers_) {
            for (size_t h = layer.first_head; layer.pool == p && h < layer.first_head + layer.n_head_kv; ++h) {
                const uint64_t n = uint64_t(before_open(h)) + n_open;
                if (n > most) {
                    return false;
                }
                n_used += n;
            }
        }
        if (n_used > uint64_t(pools_[p].n_heads) * n_cells) {
            return false;
        }
    }
    return true;
}

bool FlatCache::fits(const std::vector<uint32_t> & before_open, uint32_t n_open) const {
    return fits_by(n_allowed_, [&](size_t head) { return before_open[head]; }, n_open);
}

uint32_t FlatCache::n_apart(const Head & head, const Pool & pool) const {
    return static_cast<uint32_t>(round_up(n_own(head), pool.step));
}

template <typename Kept, typename Added> void FlatCache::lay_out_by(uint32_t n_cells, Kept kept, Added added) {
    if (!fits_by(n_cells, [&](size_t head) { return kept(head) + added(head); }, 0)) {
        throw Error(EDGEKV_STATUS_INTERNAL, "the rows were to be laid out beyond what their pools hold");
    }
    for (Pool & pool : pools_) {
        pool.n_used = 0;
    }
    max_open_      = 0;
    n_before_open_ = 0;
    for (const Layer & layer : layers_) {
        for (size_t h = layer.first_head; h < layer.first_head + layer.n_head_kv; ++h) {
            const uint32_t n = kept(h) + added(h);
            pools_[layer.pool].n_used += n;
            n_before_open_ += n;
            max_open_ = std::max(max_open_, n);
        }
    }
    const uint32_t n_open_before = n_open_;
    n_open_ = n_cells_max() - max_open_;
    for (Pool & pool : pools_) {
        const uint64_t cells = uint64_t(pool.n_heads) * n_cells;
        n_open_     = std::min<uint64_t>(n_open_, (cells - pool.n_used) / pool.n_heads);
        pool.n_used = pool.n_used_rows = 0;
    }
    bool same = n_open_ == n_open_before;
    for (const Layer & layer : layers_) {
        Pool & pool = pools_[layer.pool];
        for (size_t h = layer.first_head; h < layer.first_head + layer.n_head_kv; ++h) {
            const FlatCache::Head head = { pool.first_row + static_cast<uint32_t>(pool.n_used_rows), static_cast<uint32_t>(pool.n_used), kept(h),
                                           added(h) };
            same &= heads_[h].is_like(head);
            heads_[h] = head;
            pool.n_used_rows += n_apart(heads_[h], pool);
            pool.n_used += n_own(heads_[h]);
        }
    }
    version_ += !same;
    n_laid_out_ = n_cells;
}

void FlatCache::lay_out(const std::vector<uint32_t> & kept) {
    lay_out_by(n_allowed_, [&](size_t head) { return kept[head]; }, [](size_t) { return 0u; });
}

void FlatCache::lay_out_before_open(const std::vector<uint32_t> & n) {
    lay_out_by(n_laid_out_, [&](size_t head) { return heads_[head].kept; }, [&](size_t head) { return n[head] - heads_[head].kept; });
}

void FlatCache::clear() {
    const bool outgrown = is_outgrown();
    const auto none     = [](size_t) { return 0u; };
    lay_out_by(n_allowed_, none, none);
    ++version_;
    if (outgrown) {
        return_rows();
    }
}

void FlatCache::allow(uint32_t n_cells) { n_allowed_ = std::min(n_cells, layout_.n_cells); }

void FlatCache::return_rows() {
    for (const Pool & pool : pools_) {
        const uint64_t end = pool.first_row + uint64_t(pool.n_heads) * layout_.n_cells, used = pool.first_row + pool.n_used_rows;
        for (const ggml_tensor * rows : { pool.k, pool.v }) {
            if (pool.host && rows->data != nullptr) {
                char * data = static_cast<char *>(rows->data);
                return_pages(data + used * rows->nb[1], data + end * rows->nb[1]);
            }
        }
    }
}

} // namespace edgekv
