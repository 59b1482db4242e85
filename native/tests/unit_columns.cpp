// A column's products are to the bit what they are alone, beside any other columns: with weights of every type, whoever multiplies them.
#include "check.h"
#include "matmul/mul_mat.h"
#include "products_fixture.h"

using namespace edgekv;
using namespace edgekv::products_fixture;

namespace {

constexpr size_t n_most = 64;

#if defined(__x86_64__)
constexpr ggml_type types[] = {
    GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0,    GGML_TYPE_Q4_1,   GGML_TYPE_Q5_0,  GGML_TYPE_Q5_1,
    GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,    GGML_TYPE_Q5_K,   GGML_TYPE_Q6_K,  GGML_TYPE_IQ4_NL,
    GGML_TYPE_IQ4_XS, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S, GGML_TYPE_MXFP4,
    GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0,
};
#else
constexpr ggml_type types[] = { GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0 }; // of others ggml multiplies one column otherwise than several
#endif

// A column of `n_floats`, the first ones of which count, for each of n_columns from column `first` on.
ggml_tensor * columns_of(ggml_context * context, const std::vector<float> & values, size_t depth, size_t first, size_t n, size_t n_floats) {
    ggml_tensor * columns = ggml_new_tensor_2d(context, GGML_TYPE_F32, static_cast<int64_t>(n_floats), static_cast<int64_t>(n));
    for (size_t i = 0; i < n; ++i) {
        std::memcpy(static_cast<char *>(columns->data) + i * columns->nb[1], &values[(first + i) * depth], depth * sizeof(float));
    }
    return ggml_view_2d(context, columns, static_cast<int64_t>(depth), static_cast<int64_t>(n), columns->nb[1], 0);
}

// repacked: by ggml; NULL where the rows lie as in a file
std::vector<float> products_with(const Weights & weights, const std::vector<float> & values, size_t first, size_t n, size_t gap, int n_threads,
                                 const Repacked * repacked = nullptr) {
    const ggml_context_ptr context(ggml_init({ 16 << 20, nullptr, false }));
    ggml_tensor *          columns = columns_of(context.get(), values, weights.depth, first, n, weights.depth + gap);
    ggml_tensor *          rows    = repacked != nullptr ? repacked->tensor : tensor_of(context.get(), weights, 1, nullptr);
    return computed(context.get(), ggml_mul_mat(context.get(), rows, columns), n_threads);
}

bool are_part(const std::vector<float> & found, const std::vector<float> & all, size_t at) {
    return std::memcmp(found.data(), &all[at], found.size() * sizeof(float)) == 0;
}

// Rows fill whole tiles of ggml's products, or not.
void test_matrices(ggml_type type) {
    for (const size_t n_rows : is_sanitized ? std::vector<size_t>{ 35 } : std::vector<size_t>{ 64, 36, 35 }) {
        const Weights weights(type, n_rows, 512);
        const auto    values = random_values(n_most * weights.depth, 5);
        const auto    all    = products_with(weights, values, 0, n_most, 0, 1);
        for (size_t n = 1; n < 16; n += is_sanitized ? 6 : 1) {
            CHECK(are_part(products_with(weights, values, n, n, 0, 1), all, n * n_rows));
        }
        for (const size_t n : { size_t(1), size_t(2), n_most }) {
            CHECK(are_part(products_with(weights, values, 0, n, 32, 1), all, 0));
            CHECK(are_part(products_with(weights, values, 0, n, 0, 3), all, 0));
        }
    }
}

// Of which ggml multiplies few columns: so many as a draft may have there.
void test_few(ggml_type type) {
    const Weights  weights(type, 64, 512);
    const auto     values = random_values(n_most * weights.depth, 5);
    const Repacked by_ggml(weights);
    for (const Repacked * rows : { static_cast<const Repacked *>(nullptr), by_ggml.is_one() ? &by_ggml : nullptr }) {
        const auto n_alike = std::min<uint64_t>(most_alike(type), 15);
        const auto all     = products_with(weights, values, 0, n_alike, 0, 1, rows);
        for (size_t i = 0; i < n_alike; ++i) {
            CHECK(are_part(products_with(weights, values, i, 1, 0, 1, rows), all, i * weights.n_rows));
        }
    }
}

} // namespace

void test_columns_alone() {
    processor().init();
    for (const ggml_type type : types) {
        const int n_before = n_failed;
        const auto is_own = [&](int64_t n_columns) { return products_of(type, edgekv_file_order, n_columns) != nullptr; };
        if (is_own(1) == is_own(n_most)) { // else few columns are ggml's: those of Q2_K and Q3_K with AVX2 alone
            test_matrices(type);
        }
        test_few(type);
        if (n_failed > n_before) {
            std::fprintf(stderr, "those were of columns beside others in %s\n", ggml_type_name(type));
        }
    }
}
