// Where the time of a block goes: processor time by what a graph's nodes compute, and the share of it.
//   cmake --build BUILD --target edgekv_bench_nodes && BUILD/tests/edgekv_bench_nodes MODEL [CELLS [BLOCK [THREADS [KV_TYPE]]]]
// The cells are filled first; then blocks are decoded that see them. Nodes are computed one at a time, so that each is timed by itself,
// which costs a few microseconds a node; "whole" is a block as it is decoded otherwise. In turn with blocks the weights that their
// products read are read and nothing more: a token alone cannot take less time than that.
#include "cache_fixture.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>

namespace {

double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Times {
    std::map<std::string, double> of_kind;
    std::map<std::string, int>    n_of_kind;
    std::map<const void *, size_t> weights; // bytes at each address that products read
    bool                          counts = false;
    double                        began  = 0.0;
};

// Weights come from no other node. Of experts, a token reads those that it chooses.
void note_weights(const ggml_tensor & node, std::map<const void *, size_t> & weights) {
    const ggml_tensor * matrix = node.src[0];
    if (node.op == GGML_OP_MUL_MAT && matrix->op == GGML_OP_NONE) {
        weights[matrix->data] = ggml_nbytes(matrix);
    }
}

// Reads all bytes once, by as many threads as decode.
void read_plainly(const std::map<const void *, size_t> & weights, uint32_t n_threads) {
    const auto part = [&](uint32_t i) {
        uint64_t sum = 0;
        for (const auto & [data, n_bytes] : weights) {
            const auto * words   = static_cast<const uint64_t *>(data);
            const size_t n_words = n_bytes / sizeof(uint64_t);
            for (size_t word = n_words * i / n_threads; word < n_words * (i + 1) / n_threads; ++word) {
                sum += words[word];
            }
        }
        volatile uint64_t kept = sum; // else nothing needs to be read
        static_cast<void>(kept);
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 1; i < n_threads; ++i) {
        threads.emplace_back(part, i);
    }
    part(0);
    for (std::thread & thread : threads) {
        thread.join();
    }
}

// Products are told apart by their weights' type, the rest by their operation.
std::string kind_of(const ggml_tensor & node) {
    std::string kind = node.op == GGML_OP_UNARY ? ggml_unary_op_name(ggml_get_unary_op(&node)) : ggml_op_name(node.op);
    if (node.op == GGML_OP_CUSTOM) {
        kind = "attention";
    }
    if (node.op == GGML_OP_MUL_MAT || node.op == GGML_OP_MUL_MAT_ID) {
        kind += std::string(" ") + ggml_type_name(node.src[0]->type);
        kind += node.ne[1] == 1 ? ", one column" : "";
    }
    return kind;
}

bool time_node(ggml_tensor * node, bool ask, void * userdata) {
    auto & times = *static_cast<Times *>(userdata);
    if (!times.counts) {
        return false; // nothing is observed, and nodes are computed together
    }
    if (!ask) {
        const double ended = now();
        times.of_kind[kind_of(*node)] += ended - times.began;
        ++times.n_of_kind[kind_of(*node)];
        note_weights(*node, times.weights);
    }
    times.began = now();
    return true;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s MODEL [CELLS [BLOCK [THREADS [KV_TYPE]]]]\n", argv[0]);
        return 2;
    }
    const auto number = [&](int i, uint32_t otherwise) { return argc > i ? static_cast<uint32_t>(std::atoi(argv[i])) : otherwise; };
    const uint32_t n_cells = number(2, 512), n_block = number(3, 128), n_threads = number(4, 1);
    const char *   kv_type = argc > 5 ? argv[5] : "f16";
    constexpr int  n_turns = 5;

    Times               times;
    const Model         model(argv[1]);
    const edgekv_layout layout = { sizeof(edgekv_layout), n_cells + n_block, n_cells + n_block, 0 };
    const Context       context(model, kv_type, static_cast<int32_t>(n_threads), layout, n_block, time_node, &times);
    const Cache         cache = open_cache(context);

    const int32_t            n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.model));
    std::vector<llama_token> tokens(n_cells + n_block);
    for (size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = static_cast<llama_token>((1009 * i + 17) % n_vocab);
    }
    const auto decode = [&](size_t first, size_t n) {
        char err[512];
        if (edgekv_cache_feed(cache.get(), tokens.data() + first, n, 0, err, sizeof(err)) != EDGEKV_STATUS_OK) {
            std::fprintf(stderr, "%s\n", err);
            std::exit(1);
        }
    };
    for (uint32_t i = 0; i < n_cells; i += n_block) {
        decode(i, std::min(n_block, n_cells - i));
    }
    const edgekv_protection protection = edgekv_protection_default();
    edgekv_policy policy = edgekv_policy_default();
    policy.kernel = 1;
    edgekv_compaction_params params = edgekv_compaction_params_default();
    params.policy     = &policy;
    params.protection = &protection;
    params.budget     = n_cells;
    double whole = 0.0, plain = 0.0;
    for (int turn = 0; turn < n_turns; ++turn) {
        for (const bool counts : { false, true }) {
            times.counts       = counts;
            const double began = now();
            decode(n_cells, n_block);
            whole += counts ? 0.0 : now() - began;
            times.counts = false;
            edgekv_compaction result;
            if (edgekv_cache_compact(cache.get(), &params, &result, nullptr, 0) != EDGEKV_STATUS_OK) {
                std::fprintf(stderr, "the cells of a block do not go\n");
                return 1;
            }
        }
        const double began = now();
        read_plainly(times.weights, n_threads);
        plain += now() - began;
    }
    double all = 0.0;
    std::vector<std::pair<double, std::string>> kinds;
    for (const auto & [kind, seconds] : times.of_kind) {
        kinds.emplace_back(seconds, kind);
        all += seconds;
    }
    std::sort(kinds.rbegin(), kinds.rend());
    std::printf("%u tokens over %u cells, %u threads: %.1f ms of processor time whole, %.1f node by node\n", n_block, n_cells, n_threads,
                1e3 * whole / n_turns, 1e3 * all / n_turns);
    size_t n_bytes = 0;
    for (const auto & [data, n] : times.weights) {
        n_bytes += n;
    }
    const double n_read = 1e-9 * static_cast<double>(n_bytes) * n_turns * n_threads;
    std::printf("%.1f MiB of weights, but for experts: %.1f GB/s, and %.1f GB/s if they are read alone: %.2f\n",
                static_cast<double>(n_bytes) / (1 << 20), n_read / whole, n_read / plain, plain / whole);
    for (const auto & [seconds, kind] : kinds) {
        std::printf("%-24s %5d nodes %8.2f ms %6.3f\n", kind.c_str(), times.n_of_kind[kind] / n_turns, 1e3 * seconds / n_turns, seconds / all);
    }
    return 0;
}
