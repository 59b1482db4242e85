// Products of quantised weights with a block's columns: against double precision, against ggml's own, and on several threads.
#include "check.h"
#include "matmul/mul_mat.h"
#include "products_fixture.h"

using namespace edgekv;
using namespace edgekv::products_fixture;

namespace {

// To single precision what the quantised activations give, and no further from the truth than ggml.
void test_errors(const TypeProducts & products) {
    const size_t own = ggml_blck_size(products.type);
    struct Shape { size_t n_rows, depth, n_columns; };
    const std::vector<Shape> shapes = { { 1, own, 1 }, { 37, 768, 3 }, { 33, 1280, 27 }, { 48, 1056 / own * own, 9 },
                                        { 16, 2 * own, 2 }, { 20, 2304, 4 } };
    for (size_t i = 0; i < (is_sanitized ? 2 : shapes.size()); ++i) {
        auto [n_rows, depth, n_columns] = shapes[i];
        n_rows = (n_rows + products.order.n_rows - 1) / products.order.n_rows * products.order.n_rows;
        const Weights   weights = laid_out(products, n_rows, depth);
        const auto      columns = random_values(n_columns * depth, 2);
        const Quantised quantised(products, columns, depth);
        const auto      exact = reference(weights, n_columns, [&](size_t i) { return quantised.value(i, products.block); });
        const auto      truth = reference(weights, n_columns, [&](size_t i) { return static_cast<double>(columns[i]); });
        const auto      check = [&](const std::vector<float> & found) {
            CHECK(error_of(found, exact) < 2e-6);
            if (n_rows * n_columns >= 32) { // enough of them that chance evens out
                CHECK(error_of(found, truth) < 1.02 * error_of(of_ggml(weights, columns), truth));
            }
        };
        check(multiplied(products, weights, quantised, n_columns));
    }
}

// Where the scale of a block lies in it, and its minimum if it has one. If there is none, the first byte is a scale, an exponent.
std::vector<size_t> half_floats(ggml_type type) {
    const size_t last = ggml_type_size(type) - sizeof(ggml_fp16_t);
    switch (type) {
        case GGML_TYPE_MXFP4: return {};
        case GGML_TYPE_Q2_K: return { last - sizeof(ggml_fp16_t), last };
        case GGML_TYPE_Q3_K:
        case GGML_TYPE_Q6_K: return { last };
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: return { 0, sizeof(ggml_fp16_t) };
        default:             return { 0 };
    }
}

// Codes and activations as large as they can be, all of one sign, or of two.
void test_extremes(const TypeProducts & products) {
    constexpr size_t   depth = 1024, n_rows = 16, n_columns = 4;
    std::vector<float> columns(n_columns * depth, 1.0f);
    for (size_t i = depth; i < columns.size(); ++i) {
        columns[i] = i / depth == 1 ? -1.0f : (i % 2 == 0 ? 1.0f : -1.0f) * (i / depth == 2 ? 1.0f : static_cast<float>(i % 32) / 31.0f);
    }
    const Quantised quantised(products, columns, depth);
    for (const int byte : { 0x00, 0x7F, 0x80, 0xFF }) {
        Weights weights(products.type, n_rows, depth);
        std::fill(weights.bytes.begin(), weights.bytes.end(), static_cast<uint8_t>(byte));
        const ggml_fp16_t scale = ggml_fp32_to_fp16(0.25f);
        for (size_t block = 0; block < weights.bytes.size(); block += ggml_type_size(products.type)) {
            for (const size_t at : half_floats(products.type)) {
                std::memcpy(&weights.bytes[block + at], &scale, sizeof(scale));
            }
            if (half_floats(products.type).empty()) {
                weights.bytes[block] = 126;
            }
        }
        weights.repack(products.order);
        const auto exact = reference(weights, n_columns, [&](size_t i) { return quantised.value(i, products.block); });
        double     largest = 1.0;
        for (const double value : exact) {
            largest = std::max(largest, std::fabs(value));
        }
        const auto check = [&](const std::vector<float> & found) {
            for (size_t i = 0; i < found.size(); ++i) {
                CHECK(std::fabs(found[i] - exact[i]) < 1e-5 * largest);
            }
        };
        check(multiplied(products, weights, quantised, n_columns));
    }
}

// Of one tile of columns, and of several: x86 multiplies them in turn with unpacking, and after it.
constexpr size_t n_few = 4, n_many = 10;

// What every row gives for few columns, and for many.
template <typename Check>
void each_product(const TypeProducts & products, const Weights & weights, const std::vector<float> & columns, const Check & check) {
    const Quantised quantised(products, columns, weights.depth);
    check(multiplied(products, weights, quantised, n_few));
    check(multiplied(products, weights, quantised, n_many));
}

// A number that is not finite stays visible: in a column, wherever it lies in a vector or a block, for every row, and in no other column.
void test_columns_not_finite(const TypeProducts & products) {
    constexpr size_t depth = 512, damaged = 2;
    const Weights    weights = laid_out(products, 48, depth);
    const auto       whole   = random_values(n_many * depth, 7);
    for (const float value : { NAN, -NAN, INFINITY, -INFINITY }) {
        for (const size_t at : { 0, 3, 8, 30, 31, 255, 300, 511 }) {
            auto columns = whole;
            columns[damaged * depth + at] = value;
            each_product(products, weights, columns, [&](const std::vector<float> & found) {
                for (size_t i = 0; i < found.size(); ++i) {
                    CHECK(std::isfinite(found[i]) == (i / weights.n_rows != damaged));
                }
            });
        }
    }
}

// So does one among the scales and minima of a row, for every column, and in no other row.
void test_weights_not_finite(const TypeProducts & products) {
    constexpr size_t depth = 512, damaged = 19;
    const auto       columns = random_values(n_many * depth, 8);
    const auto       test    = [&](size_t at, const auto & value) { // in the last block of the row
        Weights weights(products.type, 48, depth);
        std::memcpy(&weights.bytes[(damaged + 1) * weights.row_bytes - ggml_type_size(products.type) + at], &value, sizeof(value));
        weights.repack(products.order);
        each_product(products, weights, columns, [&](const std::vector<float> & found) {
            for (size_t i = 0; i < found.size(); ++i) {
                CHECK(std::isfinite(found[i]) == (i % weights.n_rows != damaged));
            }
        });
    };
    for (const float value : { NAN, INFINITY, -INFINITY }) {
        for (const size_t at : half_floats(products.type)) {
            test(at, ggml_fp32_to_fp16(value));
        }
    }
    if (half_floats(products.type).empty()) {
        test(0, uint8_t{ 255 }); // an exponent that stands for NaN
    }
}

// Rows from one in the middle on are what they are among all, and nothing is written before them.
void test_parts(const TypeProducts & products) {
    const Weights   weights = laid_out(products, 40, 512);
    const auto      columns = random_values(6 * 512, 3);
    const Quantised quantised(products, columns, 512);
    const auto      all = multiplied(products, weights, quantised, 6), part = multiplied(products, weights, quantised, 6, 16);
    for (size_t i = 0; i < all.size(); ++i) {
        CHECK(i % 40 < 16 ? std::isnan(part[i]) : part[i] == all[i]);
    }
}

// Each column of any number is what it is alone, bit by bit: a token rounds alike in a draft, in a block, and beside other sessions' tokens.
// Some rows fill no panel, and a row is longer than one.
void test_any_number_of_columns(const TypeProducts & products) {
    constexpr size_t          most    = is_sanitized ? 13 : 64;
    const size_t              depth   = ggml_blck_size(products.type) == 32 ? 1120 : 1280;
    const std::vector<size_t> numbers = is_sanitized ? std::vector<size_t>{ 3, 13 } : std::vector<size_t>{ 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 31, 33, 64 };
    for (const size_t n_rows : { products.order.n_rows == 1 ? 5 : 8, products.order.n_rows == 1 ? 67 : 72 }) {
        const Weights      weights = laid_out(products, n_rows, depth);
        const auto         columns = random_values(most * depth, 5);
        std::vector<float> alone;
        for (auto one = columns.begin(); one != columns.end(); one += static_cast<std::ptrdiff_t>(depth)) {
            const auto found = multiplied(products, weights, { products, { one, one + static_cast<std::ptrdiff_t>(depth) }, depth }, 1);
            alone.insert(alone.end(), found.begin(), found.end());
        }
        const Quantised quantised(products, columns, depth);
        for (const size_t n : numbers) {
            const auto found = multiplied(products, weights, quantised, n);
            CHECK(std::equal(found.begin(), found.end(), alone.begin()));
        }
    }
}

// A graph with one product, computed by ggml's processor backend; columns in two planes, one after the other or with a gap.
struct Graph {
    ggml_context_ptr context{ ggml_init({ 16 << 20, nullptr, false }) };
    ggml_tensor *    columns;
    ggml_tensor *    product;

    Graph(const Weights & weights, const std::vector<float> & values, bool with_gaps, const Repacked * repacked = nullptr) {
        const auto depth = static_cast<int64_t>(weights.depth), n = static_cast<int64_t>(values.size() / weights.depth);
        auto *     w     = tensor_of(context.get(), weights, 1, repacked);
        columns = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, depth + (with_gaps ? 32 : 0), n / 2, 2);
        columns = ggml_view_3d(context.get(), columns, depth, n / 2, 2, columns->nb[1], columns->nb[2], 0);
        for (int64_t i = 0; i < n; ++i) {
            std::memcpy(static_cast<char *>(columns->data) + i * columns->nb[1], &values[i * depth], depth * sizeof(float));
        }
        product = ggml_mul_mat(context.get(), w, columns);
    }

    std::vector<float> computed(int n_threads) const { return products_fixture::computed(context.get(), product, n_threads); }
};

// In a graph they are the same, bit by bit, on any number of threads. Another order than ggml's is in no graph.
void test_graphs_of(const TypeProducts & products) {
    const Weights  weights = laid_out(products, 200, 512);
    const Repacked by_ggml(weights);
    const bool     is_repacked = products.order.n_rows > 1;
    if (is_repacked && !(by_ggml.is_one() && by_ggml.lies_as(weights.repacked))) {
        return;
    }
    const auto      values = random_values(10 * 512, 4);
    const Quantised quantised(products, values, 512);
    const auto      expected = multiplied(products, weights, quantised, 10);
    for (const bool with_gaps : { false, true }) {
        Graph graph(weights, values, with_gaps, is_repacked ? &by_ggml : nullptr);
        CHECK(edgekv_takes_mul_mat(graph.product, products.order));
        for (const int n_threads : with_gaps ? std::vector{ 3 } : std::vector{ 1, 2, 3 }) { // starting threads takes longer than the products
            CHECK(graph.computed(n_threads) == expected);
        }
    }
    const std::vector<float> first(values.begin(), values.begin() + 2 * 512);
    Graph                    few(weights, first, false, is_repacked ? &by_ggml : nullptr);
    const bool               is_own = edgekv_takes_mul_mat(few.product, products.order);
    CHECK(is_own == (products.fewest_columns <= 2)); // else they are ggml's
    CHECK(is_own || most_alike(products.type) < static_cast<uint64_t>(products.fewest_columns));
    if (is_own) {
        const std::vector<float> expected_few(expected.begin(), expected.begin() + 2 * 200);
        for (const int n_threads : { 1, 3 }) { // rows are shared out as those of a block are
            CHECK(few.computed(n_threads) == expected_few);
        }
    }
}

// Whatever order ggml has chosen, weights are read as they lie.
void test_repacked(ggml_type type) {
    const Weights  weights(type, 48, 512);
    const Repacked by_ggml(weights);
    if (by_ggml.is_one()) {
        const auto columns = random_values(10 * 512, 6);
        const auto truth   = reference(weights, 10, [&](size_t i) { return static_cast<double>(columns[i]); });
        Graph      graph(weights, columns, false, &by_ggml);
        CHECK(!edgekv_takes_mul_mat(graph.product, edgekv_file_order));
        CHECK(error_of(graph.computed(2), truth) < 1.1 * error_of(of_ggml(weights, columns), truth));
    }
}

} // namespace

void test_products() {
    processor().init();
    each_type("matrices", [](const TypeProducts & type) {
        test_errors(type);
        test_extremes(type);
        if (!is_sanitized) { // the same reads of other values
            test_columns_not_finite(type);
            test_weights_not_finite(type);
        }
        test_parts(type);
        test_any_number_of_columns(type);
        test_graphs_of(type);
    });
    const Products * chosen = products();
    for (const Products * set : all_that_run()) {
        use_products(set);
        for (const ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL,
                                      GGML_TYPE_MXFP4, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
                                      GGML_TYPE_IQ4_XS, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS,
                                      GGML_TYPE_IQ3_S }) {
            CHECK(products_of(type, edgekv_file_order, n_many) != nullptr);
        }
        for (const ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL, GGML_TYPE_Q2_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                      GGML_TYPE_Q6_K, GGML_TYPE_MXFP4 }) {
            test_repacked(type);
        }
    }
    use_products(nullptr);
    const Weights weights(GGML_TYPE_Q4_1, 16, 256);
    const Graph   graph(weights, random_values(16 * 256, 5), false);
    CHECK(!edgekv_takes_mul_mat(graph.product, edgekv_file_order));
    use_products(chosen);

    const ggml_context_ptr context(ggml_init({ 1 << 20, nullptr, true })); // rows of one head among others are ggml's
    ggml_tensor * heads = ggml_new_tensor_2d(context.get(), GGML_TYPE_Q8_0, 128, 64);
    ggml_tensor * head  = ggml_view_2d(context.get(), heads, 64, 64, heads->nb[1], 0);
    CHECK(!edgekv_takes_mul_mat(ggml_mul_mat(context.get(), head, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 64, 16)), edgekv_file_order));
}
