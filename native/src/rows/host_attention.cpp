#include "rows/host_attention.h"

#include "ggml-backend.h"

#include <algorithm>

namespace edgekv {

namespace {

// Call f(pass, part) for every part of the batch.
template <typename Operation, typename F> void each_pass(const Operation & op, const AttentionOperands & of, F f) {
    size_t first_token = 0;
    for (size_t part = 0; part < op.n_parts(); ++part) {
        AttentionPass pass(of, first_token, op.n_tokens(part, *of.out));
        f(pass, part);
        first_token += op.n_tokens(part, *of.out);
    }
}

// What ggml calls on each thread. Threads share the cells out: one may begin and end within a head.
template <typename Operation> void run(ggml_tensor * out, int i_thread, int n_threads, void * userdata) {
    const auto &            op = *static_cast<const Operation *>(userdata);
    const AttentionOperands of = op.operands(*out);

    size_t n_all = 0;
    each_pass(op, of, [&](const AttentionPass & pass, size_t part) {
        for (size_t g = 0; g < of.n_head_kv; ++g) {
            n_all += pass.n_queries() * op.cells(part, g, *out).n;
        }
    });
    const size_t begin = n_all * i_thread / n_threads;
    const size_t end   = n_all * (i_thread + 1) / n_threads;

    size_t before = 0;
    each_pass(op, of, [&](AttentionPass & pass, size_t part) {
        for (size_t g = 0; g < of.n_head_kv; ++g) {
            const HeadRows cells     = op.cells(part, g, *out);
            const auto      n_started = [&](size_t bound) { // queries whose cells begin before it
                return bound <= before ? 0 : std::min(pass.n_queries(), round_up((bound - before + cells.n - 1) / cells.n, pass.step()));
            };
            pass.attend(cells, g, n_started(begin), n_started(end));
            before += pass.n_queries() * cells.n;
        }
    });
}

// args: q (dim_k, n_head, n_tokens), ..., and sinks last, or NULL
template <typename Operation, size_t n>
ggml_tensor * operation_of(ggml_context * context, Operation & op, int64_t dim_v, ggml_tensor * (&args)[n]) {
    const ggml_tensor & q      = *args[0];
    const int           n_args = args[n - 1] != nullptr ? n : n - 1;
    return ggml_custom_4d(context, GGML_TYPE_F32, dim_v * q.ne[1], q.ne[2], 1, 1, args, n_args, run<Operation>, GGML_N_TASKS_MAX, &op);
}

const char * row(const ggml_tensor & rows, size_t offset) { return static_cast<const char *>(rows.data) + offset; }

} // namespace

bool HostAttention::can_attend(const FlatCache & cache) {
    const auto fits = [](const FlatCache::Layer & layer) { return AttentionPass::fits(layer.head_dim_k, layer.head_dim_v); };
    return !cache.on_device() && std::all_of(cache.layers().begin(), cache.layers().end(), fits);
}

ggml_tensor * HostAttention::operation(ggml_context * context, ggml_tensor * q, ggml_tensor * sinks) {
    const FlatCache::Layer & layer  = parts.front().slot->layer(il);
    ggml_tensor *            args[] = { q, layer.k, layer.v, sinks };
    return operation_of(context, *this, layer.head_dim_v, args);
}

AttentionOperands HostAttention::operands(ggml_tensor & out) const {
    const FlatCache::Layer & layer = parts.front().slot->layer(il); // slots share pools
    AttentionOperands        of    = {};
    of.queries                     = out.src[0];
    of.sinks                       = out.src[3];
    of.out                         = &out;
    of.n_head_kv                   = layer.n_head_kv;
    of.keys                        = { layer.k->type, layer.head_dim_k, layer.k->nb[1] };
    of.values                      = { layer.v->type, layer.head_dim_v, layer.v->nb[1] };
    of.is_latent                   = layer.is_latent();
    of.scale                       = scale;
    of.softcap                     = softcap;
    return of;
}

HeadRows HostAttention::cells(size_t part, size_t g, const ggml_tensor &) const {
    const FlatCache &        slot  = *parts[part].slot;
    const FlatCache::Layer & layer = slot.layer(il);
    const FlatCache::Head &  head  = slot.head(layer.first_head + g);
    return { row(*layer.k, head.first * layer.k->nb[1]), row(*layer.v, head.first * layer.v->nb[1]),
             head.kept + slot.n_filled() + parts[part].n_tokens, slot.biases(layer, head), head.kept };
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
                                         ggml_tensor * sinks) {
    ggml_tensor * args[] = { q, k, v, mask, sinks };
    return operation_of(context, *this, v->ne[0], args);
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
    of.scale               = scale;
    of.softcap             = softcap;
    return of;
}

HeadRows WindowAttention::cells(size_t, size_t g, const ggml_tensor & out) const {
    const ggml_tensor & k = *out.src[1];
    const ggml_tensor & v = *out.src[2];
    return { row(k, g * k.nb[1]), row(v, g * v.nb[1]), static_cast<size_t>(k.ne[2]) };
}

} // namespace edgekv
