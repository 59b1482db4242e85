// Weights, columns and their products, for tests of products: as edgekv's kernels compute them, as ggml does, and in double precision.
#pragma once

#include "hooks/processor.h"
#include "check.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "matmul/products.h"
#include "random_values.h"
#include "side_by_side.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

namespace edgekv {
#ifdef EDGEKV_TESTS_EMULATE
extern const Products products_emulated; // as with `vpdpbusd`, in instructions that every processor with AVX2 has
#endif
} // namespace edgekv

namespace edgekv::products_fixture {

inline std::vector<const Products *> all_that_run() {
    std::vector<const Products *> found;
    for (size_t i = 0; all_products[i] != nullptr; ++i) {
        if (all_products[i]->runs_here()) {
            found.push_back(all_products[i]);
        }
    }
#ifdef EDGEKV_TESTS_EMULATE
    if (products_emulated.runs_here()) {
        found.push_back(&products_emulated);
    }
#endif
    return found;
}

// Blocks that begin with a scale, and are any codes behind it, of 8 numbers or 4 each. To search for the best ones takes ggml long.
inline bool is_of_grids(ggml_type type) {
    return type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_XS || type == GGML_TYPE_IQ2_S || type == GGML_TYPE_IQ3_XXS || type == GGML_TYPE_IQ3_S;
}

inline std::vector<uint8_t> random_blocks(ggml_type type, size_t n_bytes) {
    std::mt19937         engine(1);
    std::vector<uint8_t> bytes(n_bytes);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(engine()); });
    for (size_t at = 0; at < n_bytes; at += ggml_type_size(type)) {
        const ggml_fp16_t scale = ggml_fp32_to_fp16(0.01f * static_cast<float>(1 + engine() % 16));
        std::memcpy(&bytes[at], &scale, sizeof(scale));
    }
    return bytes;
}

// Normal values, some of them large, as a file has them. Every set of kernels is tested with the same ones: ggml takes longer to
// quantise them than all kernels take to multiply them, so each shape is quantised once.
inline const std::vector<uint8_t> & quantised_rows(ggml_type type, size_t n_rows, size_t depth) {
    static std::map<std::tuple<ggml_type, size_t, size_t>, std::vector<uint8_t>> made;
    auto & bytes = made[{ type, n_rows, depth }];
    if (bytes.empty() && is_of_grids(type)) {
        bytes = random_blocks(type, ggml_row_size(type, depth) * n_rows);
    } else if (bytes.empty()) {
        auto values = random_values(n_rows * depth, 1);
        for (size_t i = 0; i < values.size(); i += 37) {
            values[i] *= 5.0f;
        }
        bytes.resize(ggml_row_size(type, depth) * n_rows);
        ggml_quantize_chunk(type, values.data(), bytes.data(), 0, static_cast<int64_t>(n_rows), static_cast<int64_t>(depth), nullptr);
    }
    return bytes;
}

// Quantised weights, and what they stand for.
struct Weights {
    ggml_type            type;
    size_t               n_rows, depth, row_bytes;
    std::vector<uint8_t> bytes;    // as in a file
    std::vector<uint8_t> repacked; // rows side by side, or none

    Weights(ggml_type type, size_t n_rows, size_t depth)
        : type(type), n_rows(n_rows), depth(depth), row_bytes(ggml_row_size(type, depth)), bytes(quantised_rows(type, n_rows, depth)) {}

    void repack(edgekv_row_order order) {
        repacked = order.n_rows > 1 ? side_by_side(type, bytes, row_bytes, order) : std::vector<uint8_t>{};
    }

    std::vector<float> row(size_t i) const {
        std::vector<float> values(depth);
        ggml_get_type_traits(type)->to_float(bytes.data() + i * row_bytes, values.data(), static_cast<int64_t>(depth));
        return values;
    }
};

inline Weights laid_out(const TypeProducts & products, size_t n_rows, size_t depth) {
    Weights weights(products.type, n_rows, depth);
    weights.repack(products.order);
    return weights;
}

// Weights that ggml has repacked, in an order of its own choice: it does so with a tensor in a buffer of a type of its own.
struct Repacked {
    ggml_context_ptr        context{ ggml_init({ ggml_tensor_overhead(), nullptr, true }) };
    ggml_tensor *           tensor;
    ggml_backend_buffer_ptr buffer;

    explicit Repacked(const Weights & weights) {
        const auto lists  = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
            ggml_backend_reg_get_proc_address(processor().reg(), "ggml_backend_dev_get_extra_bufts"));
        const auto device = ggml_backend_reg_dev_get(processor().reg(), 0);
        tensor = ggml_new_tensor_2d(context.get(), weights.type, static_cast<int64_t>(weights.depth), static_cast<int64_t>(weights.n_rows));
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), *lists(device)));
        if (is_one()) {
            ggml_backend_tensor_set(tensor, weights.bytes.data(), 0, weights.bytes.size());
        }
    }

    bool is_one() const { return tensor->extra != nullptr; } // ggml has an order for the type on this processor

    bool lies_as(const std::vector<uint8_t> & bytes) const {
        return bytes.size() == ggml_nbytes(tensor) && std::memcmp(bytes.data(), tensor->data, bytes.size()) == 0;
    }
};

// Columns, quantised as the kernels want them, and what these stand for.
struct Quantised {
    std::vector<int8_t>      codes;
    std::vector<BlockFactor> factors;

    Quantised(const TypeProducts & products, const std::vector<float> & columns, size_t depth)
        : codes(columns.size()), factors(columns.size() / products.block) {
        for (size_t at = 0; at < columns.size(); at += depth) {
            products.quantise(columns.data() + at, depth, codes.data() + at, factors.data() + at / products.block);
        }
    }

    double value(size_t i, size_t block) const { return static_cast<double>(factors[i / block].scale) * codes[i]; }
};

// The products of the rows from `first` on; NAN elsewhere.
inline std::vector<float> multiplied(const TypeProducts & products, const Weights & weights, const Quantised & columns, size_t n_columns,
                              size_t first = 0) {
    std::vector<float>   out(n_columns * weights.n_rows, NAN);
    std::vector<uint8_t> memory(panel_bytes + 64);
    void *               workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    const Product        product   = { reinterpret_cast<const char *>((weights.repacked.empty() ? weights.bytes : weights.repacked).data()), weights.row_bytes,
                                       { columns.codes.data(), columns.factors.data(), weights.depth }, n_columns, out.data(), weights.n_rows };
    products.multiply(product, first, weights.n_rows, workspace);
    return out;
}


// What is left of `found`, over the norm of `expected`.
inline double error_of(const std::vector<float> & found, const std::vector<double> & expected) {
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < found.size(); ++i) {
        error += (found[i] - expected[i]) * (found[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return std::sqrt(error / norm);
}

// Weights as they stand times activations, as they are or as they were quantised.
template <typename At> std::vector<double> reference(const Weights & weights, size_t n_columns, const At & at) {
    std::vector<double> out(n_columns * weights.n_rows);
    for (size_t r = 0; r < weights.n_rows; ++r) {
        const auto row = weights.row(r);
        for (size_t c = 0; c < n_columns; ++c) {
            double sum = 0;
            for (size_t k = 0; k < weights.depth; ++k) {
                sum += static_cast<double>(row[k]) * at(c * weights.depth + k);
            }
            out[c * weights.n_rows + r] = sum;
        }
    }
    return out;
}

inline std::vector<float> of_ggml(const Weights & weights, const std::vector<float> & columns) {
    const auto &         type   = *ggml_get_type_traits_cpu(weights.type);
    const size_t         n      = columns.size() / weights.depth;
    const auto           depth  = static_cast<int64_t>(weights.depth);
    std::vector<uint8_t> column(ggml_row_size(type.vec_dot_type, depth));
    std::vector<float>   out(n * weights.n_rows);
    for (size_t c = 0; c < n; ++c) {
        ggml_get_type_traits_cpu(type.vec_dot_type)->from_float(columns.data() + c * weights.depth, column.data(), depth);
        for (size_t r = 0; r < weights.n_rows; ++r) {
            type.vec_dot(static_cast<int>(depth), &out[c * weights.n_rows + r], 0, weights.bytes.data() + r * weights.row_bytes, 0,
                         column.data(), 0, 1);
        }
    }
    return out;
}

// Weights as a tensor of a graph; repacked ones where ggml has them.
inline ggml_tensor * tensor_of(ggml_context * context, const Weights & weights, int64_t n_matrices, const Repacked * repacked) {
    const auto    n_rows = static_cast<int64_t>(weights.n_rows) / n_matrices;
    ggml_tensor * tensor = ggml_new_tensor_3d(context, weights.type, static_cast<int64_t>(weights.depth), n_rows, n_matrices);
    if (repacked == nullptr) {
        std::memcpy(tensor->data, weights.bytes.data(), weights.bytes.size());
    } else {
        tensor->data   = repacked->tensor->data;
        tensor->buffer = repacked->tensor->buffer;
        tensor->extra  = repacked->tensor->extra;
    }
    return tensor;
}

// A product, computed by ggml's processor backend.
inline std::vector<float> computed(ggml_context * context, ggml_tensor * product, int n_threads) {
    ggml_cgraph * graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, product);
    const auto make = reinterpret_cast<decltype(&ggml_threadpool_new)>(ggml_backend_reg_get_proc_address(processor().reg(), "ggml_threadpool_new"));
    const auto end  = reinterpret_cast<decltype(&ggml_threadpool_free)>(ggml_backend_reg_get_proc_address(processor().reg(), "ggml_threadpool_free"));
    auto       params = ggml_threadpool_params_default(n_threads);
    params.poll       = 0; // threads that begin sleep: those that spin take a fifth of all that these tests take
    const std::unique_ptr<ggml_threadpool, decltype(end)> pool(make(&params), end);
    ggml_cplan           plan = processor().graph_plan(graph, n_threads, pool.get());
    std::vector<uint8_t> work(plan.work_size);
    plan.work_data = work.data();
    CHECK(processor().graph_compute(graph, &plan) == GGML_STATUS_SUCCESS);
    const auto * values = static_cast<const float *>(product->data);
    return { values, values + ggml_nelements(product) };
}

// Call f(products) for every type of weights of all sets that run, each of which is the one in use meanwhile. Says of what a check
// failed.
template <typename F> void each_type(const char * what, F f) {
    const Products * chosen = products();
    for (const Products * set : all_that_run()) {
        use_products(set);
        for (const TypeProducts * type = set->types; type->multiply != nullptr; ++type) {
            const int n_before = n_failed;
            f(*type);
            if (n_failed > n_before) {
                std::fprintf(stderr, "those were of %s in %s with %s\n", what, ggml_type_name(type->type), set->name);
            }
        }
    }
    use_products(chosen);
}

} // namespace edgekv::products_fixture
