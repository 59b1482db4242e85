// Products by experts: what each expert's weights give for the columns that chose it, on any number of threads.
#include "check.h"
#include "matmul/mul_mat.h"
#include "products_fixture.h"

using namespace edgekv;
using namespace edgekv::products_fixture;

namespace {

constexpr size_t n_experts = 6, n_chosen = 3, n_rows = 40, depth = 512;

// Experts of each token, no two alike. Most tokens choose the first one, the last one's are few, and none chooses the fourth.
std::vector<int32_t> choices(size_t n_tokens) {
    std::vector<int32_t> ids;
    for (size_t t = 0; t < n_tokens; ++t) {
        const int32_t third = t % 7 == 0 ? 5 : 4;
        ids.insert(ids.end(), { t % 5 == 1 ? 2 : 0, 1, third });
    }
    return ids;
}

// A graph with one product by experts; a token has one column for all its experts, or one for each.
struct Graph {
    ggml_context_ptr     context{ ggml_init({ 16 << 20, nullptr, false }) };
    std::vector<float>   values;
    std::vector<int32_t> ids;
    size_t               n_shared; // products of a column
    ggml_tensor *        product;

    Graph(const Weights & weights, size_t n_tokens, bool is_shared, const Repacked * repacked)
        : values(random_values(n_tokens * (is_shared ? 1 : n_chosen) * depth, 7)), ids(choices(n_tokens)), n_shared(is_shared ? n_chosen : 1) {
        const auto n       = static_cast<int64_t>(n_tokens);
        auto *     columns = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, depth, is_shared ? 1 : n_chosen, n);
        auto *     chosen  = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, n_chosen + 1, n); // a router sorts more than are chosen
        chosen             = ggml_view_2d(context.get(), chosen, n_chosen, n, chosen->nb[1], 0);
        std::memcpy(columns->data, values.data(), values.size() * sizeof(float));
        for (size_t t = 0; t < n_tokens; ++t) {
            std::memcpy(static_cast<char *>(chosen->data) + t * chosen->nb[1], &ids[t * n_chosen], n_chosen * sizeof(int32_t));
        }
        product = ggml_mul_mat_id(context.get(), tensor_of(context.get(), weights, n_experts, repacked), columns, chosen);
    }

    // What each expert gives for its columns: multiply(expert, columns) returns products, column after column.
    template <typename Value, typename Multiply> std::vector<Value> by_expert(const Multiply & multiply) const {
        std::vector<Value> all(ids.size() * n_rows);
        for (size_t expert = 0; expert < n_experts; ++expert) {
            std::vector<size_t> places;
            std::vector<float>  columns;
            for (size_t i = 0; i < ids.size(); ++i) {
                if (ids[i] == static_cast<int32_t>(expert)) {
                    const auto column = values.begin() + static_cast<std::ptrdiff_t>(i / n_shared * depth);
                    places.push_back(i);
                    columns.insert(columns.end(), column, column + depth);
                }
            }
            const std::vector<Value> found = multiply(expert, columns);
            for (size_t c = 0; c < places.size(); ++c) {
                std::copy_n(found.begin() + static_cast<std::ptrdiff_t>(c * n_rows), n_rows, all.begin() + static_cast<std::ptrdiff_t>(places[c] * n_rows));
            }
        }
        return all;
    }
};

// An expert's rows.
Weights rows_of(const Weights & all, size_t expert, edgekv_row_order order) {
    Weights one(all.type, n_rows, depth);
    std::copy_n(all.bytes.begin() + static_cast<std::ptrdiff_t>(expert * one.bytes.size()), one.bytes.size(), one.bytes.begin());
    one.repack(order);
    return one;
}

// Blocks are bit by bit what the kernel gives for each expert, and no further from the truth than ggml's; so are fewer tokens, unless they
// are left to ggml.
void test_experts_of(const TypeProducts & products) {
    const Weights  weights = laid_out(products, n_experts * n_rows, depth);
    const Repacked by_ggml(weights);
    const bool     is_repacked = products.order.n_rows > 1;
    if (is_repacked && !(by_ggml.is_one() && by_ggml.lies_as(weights.repacked))) {
        return;
    }
    const Repacked * repacked = is_repacked ? &by_ggml : nullptr;
    const auto       expert   = [&](size_t i) { return rows_of(weights, i, products.order); };
    for (const bool is_shared : { false, true }) {
        for (const size_t n_tokens : is_sanitized ? std::vector<size_t>{ 9 } : std::vector<size_t>{ 1, 7, 8, 29 }) {
            const Graph graph(weights, n_tokens, is_shared, repacked);
            const bool  is_own = n_tokens >= static_cast<size_t>(products.fewest_columns);
            CHECK(edgekv_takes_mul_mat(graph.product, products.order) == is_own);
            const auto exact = graph.by_expert<float>([&](size_t i, const std::vector<float> & columns) {
                return multiplied(products, expert(i), { products, columns, depth }, columns.size() / depth);
            });
            const auto found = computed(graph.context.get(), graph.product, 3);
            CHECK(!is_own || found == exact);
            for (const int n_threads : { 1, 2 }) { // starting threads takes longer than the products
                CHECK(!is_own || is_shared || computed(graph.context.get(), graph.product, n_threads) == exact);
            }
            if (is_sanitized) {
                continue;
            }
            const auto truth = graph.by_expert<double>([&](size_t i, const std::vector<float> & columns) {
                return reference(expert(i), columns.size() / depth, [&](size_t k) { return static_cast<double>(columns[k]); });
            });
            const auto ggml = graph.by_expert<float>([&](size_t i, const std::vector<float> & columns) { return of_ggml(expert(i), columns); });
            CHECK(error_of(found, truth) < 1.02 * error_of(ggml, truth));
        }
    }
}

// A block that chooses fewer experts than there are counts as one token, which some sets of kernels leave to ggml.
void test_few_choices() {
    constexpr int64_t      n_all = 30, n_tokens = 8;
    const ggml_context_ptr context(ggml_init({ 1 << 20, nullptr, true }));
    for (const int64_t n : { 3, 4 }) {
        ggml_tensor * product = ggml_mul_mat_id(context.get(), ggml_new_tensor_3d(context.get(), GGML_TYPE_Q4_0, depth, n_rows, n_all),
                                                ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, depth, 1, n_tokens),
                                                ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, n, n_tokens));
        const TypeProducts * type = products_of(GGML_TYPE_Q4_0, edgekv_file_order, n_tokens);
        CHECK(edgekv_takes_mul_mat(product, edgekv_file_order) == (type != nullptr && (n * n_tokens >= n_all || type->fewest_columns == 1)));
    }
}

} // namespace

void test_experts() {
    processor().init();
    each_type("experts", test_experts_of);
    test_few_choices();
}
