#include "rows/host_attention.h"

#include "ggml-backend.h"
#include "rows/attention_node.h"

#include <algorithm>
#include <cstring>

#if defined(__GNUC__)
#    pragma GCC diagnostic push
#    pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "ggml-impl.h"
#if defined(__GNUC__)
#    pragma GCC diagnostic pop
#endif

namespace edgekv {

namespace {

// Marks a node as edgekv's. ggml calls edgekv_compute_attention in its place, which knows the memory to work in.
void is_attention(ggml_tensor *, int, int, void *) { GGML_ABORT("attention was computed without its memory"); }

// The operation of a node of edgekv's; NULL for any other.
const AttentionOperation * operation_of(const ggml_tensor & node) {
    ggml_custom_op_params params = {};
    if (node.op == GGML_OP_CUSTOM) {
        std::memcpy(&params, node.op_params, sizeof(params));
    }
    return params.fun == is_attention ? static_cast<const AttentionOperation *>(params.userdata) : nullptr;
}

// What one thread works in.
size_t pass_bytes(const ggml_tensor & node) {
    const ggml_tensor & queries = *node.src[0];
    return AttentionPass::work_bytes(queries.ne[0], node.ne[0] / queries.ne[1]);
}

void * aligned(void * memory) {
    return reinterpret_cast<void *>(round_up(reinterpret_cast<uintptr_t>(memory), AttentionPass::n_aligned));
}

// Call f(pass, part) for every part of the batch.
template <typename F> void each_pass(const AttentionOperation & op, const AttentionOperands & of, void * memory, F f) {
    size_t first_token = 0;
    for (size_t part = 0; part < op.n_parts(); ++part) {
        AttentionPass pass(of, first_token, op.n_tokens(part, *of.out), memory);
        f(pass, part);
        first_token += op.n_tokens(part, *of.out);
    }
}

// The part of one thread. Threads share the cells out: one may begin and end within a head.
void compute_share(const AttentionOperation & op, ggml_tensor & out, void * memory, int thread, int n_threads) {
    const AttentionOperands of = op.operands(out);

    size_t n_all = 0;
    each_pass(op, of, memory, [&](const AttentionPass & pass, size_t part) {
        for (size_t g = 0; g < of.n_head_kv; ++g) {
            n_all += pass.n_queries() * op.cells(part, g, out).n;
        }
    });
    const size_t begin = n_all * thread / n_threads;
    const size_t end   = n_all * (thread + 1) / n_threads;

    size_t before = 0;
    each_pass(op, of, memory, [&](AttentionPass & pass, size_t part) {
        for (size_t g = 0; g < of.n_head_kv; ++g) {
            const AttendedHead cells     = op.cells(part, g, out);
            const auto     n_started = [&](size_t bound) { // queries whose cells begin before it
                return bound <= before ? 0 : std::min(pass.n_queries(), round_up((bound - before + cells.n - 1) / cells.n, pass.step()));
            };
            pass.attend_head(cells, g, n_started(begin), n_started(end));
            before += pass.n_queries() * cells.n;
        }
    });
}

const char * row(const ggml_tensor & rows, size_t offset) { return static_cast<const char *>(rows.data) + offset; }

} // namespace

template <size_t n> ggml_tensor * AttentionOperation::node_of(ggml_context * context, int64_t dim_v, ggml_tensor * (&args)[n]) const {
    const ggml_tensor & q      = *args[0];
    const int           n_args = args[n - 1] != nullptr ? n : n - 1;
    return ggml_custom_4d(context, GGML_TYPE_F32, dim_v * q.ne[1], q.ne[2], 1, 1, args, n_args, is_attention, GGML_N_TASKS_MAX,
                          const_cast<AttentionOperation *>(this));
}

bool HostAttention::can_attend(const FlatCache & cache) {
    const auto fits = [](const FlatCache::Layer & layer) { return AttentionPass::fits(layer.head_dim_k, layer.head_dim_v); };
    return !cache.on_device() && std::all_of(cache.layers().begin(), cache.layers().end(), fits);
}

ggml_tensor * HostAttention::operation(ggml_context * context, ggml_tensor * q, ggml_tensor * sinks) const {
    const FlatCache::Layer & layer  = parts_.front().slot->layer(il_);
    ggml_tensor *            args[] = { q, layer.k, layer.v, sinks };
    return node_of(context, layer.head_dim_v, args);
}

AttentionOperands HostAttention::operands(ggml_tensor & out) const {
    const FlatCache::Layer & layer = parts_.front().slot->layer(il_); // slots share pools
    AttentionOperands        of    = {};
    of.queries                     = out.src[0];
    of.sinks                       = out.src[3];
    of.out                         = &out;
    of.n_head_kv                   = layer.n_head_kv;
    of.keys                        = { layer.k->type, layer.head_dim_k, layer.k->nb[1] };
    of.values                      = { layer.v->type, layer.head_dim_v, layer.v->nb[1] };
    of.is_latent                   = layer.is_latent();
    of.scale                       = scale_;
    of.softcap                     = softcap_;
    return of;
}

AttendedHead HostAttention::cells(size_t part, size_t g, const ggml_tensor &) const {
    const FlatCache &        slot  = *parts_[part].slot;
    const FlatCache::Layer & layer = slot.layer(il_);
    const FlatCache::Head &  head  = slot.head(layer.first_head + g);
    return { row(*layer.k, head.first * layer.k->nb[1]), row(*layer.v, head.first * layer.v->nb[1]),
             head.open() + slot.n_filled() + parts_[part].n_tokens };
}

bool WindowAttention::can_attend(const ggml_tensor & k, const ggml_tensor & v, const ggml_tensor & mask) {
    const auto on_host = [](const ggml_tensor & rows) {
        const ggml_tensor & all = rows.view_src != nullptr ? *rows.view_src : rows;
        return all.buffer != nullptr && ggml_backend_buffer_is_host(all.buffer);
    };
    const bool by_cell = v.nb[1] <= v.nb[2]; // without flash attention values lie by column
    return by_cell && mask.type == GGML_TYPE_F16 && on_host(k) && on_host(v) && AttentionPass::fits(k.ne[0], v.ne[0]);
}

ggml_tensor * WindowAttention::operation(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * mask,
                                         ggml_tensor * sinks) const {
    ggml_tensor * args[] = { q, k, v, mask, sinks };
    return node_of(context, v->ne[0], args);
}

size_t WindowAttention::n_tokens(size_t, const ggml_tensor & out) const { return out.ne[1]; }

AttentionOperands WindowAttention::operands(ggml_tensor & out) const {
    const ggml_tensor & k = *out.src[1];
    const ggml_tensor & v = *out.src[2];
    AttentionOperands   of = {};
    of.queries             = out.src[0];
    of.sinks               = out.src[4];
    of.mask                = out.src[3];
    of.out                 = &out;
    of.n_head_kv           = k.ne[1];
    of.keys                = { k.type, static_cast<size_t>(k.ne[0]), k.nb[2] };
    of.values              = { v.type, static_cast<size_t>(v.ne[0]), v.nb[2] };
    of.scale               = scale_;
    of.softcap             = softcap_;
    return of;
}

AttendedHead WindowAttention::cells(size_t, size_t g, const ggml_tensor & out) const {
    const ggml_tensor & k = *out.src[1];
    const ggml_tensor & v = *out.src[2];
    return { row(k, g * k.nb[1]), row(v, g * v.nb[1]), static_cast<size_t>(k.ne[2]) };
}

} // namespace edgekv

using namespace edgekv;

size_t edgekv_attention_bytes(const ggml_tensor * node, int n_threads) {
    return operation_of(*node) != nullptr ? AttentionPass::n_aligned + n_threads * pass_bytes(*node) : 0;
}

bool edgekv_compute_attention(ggml_tensor * node, void * workspace, int thread, int n_threads) {
    const AttentionOperation * op = operation_of(*node);
    if (op != nullptr) {
        compute_share(*op, *node, static_cast<char *>(aligned(workspace)) + thread * pass_bytes(*node), thread, n_threads);
    }
    return op != nullptr;
}
