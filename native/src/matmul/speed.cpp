#include "matmul/speed.h"

#include "hooks/processor.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>
#include <numeric>
#include <random>

namespace edgekv {

static constexpr int64_t n_drawn_rows = 64; // the other rows repeat them, because quantising takes the time

template <typename F> static double seconds(const F & f) {
    const std::clock_t start = std::clock();
    f();
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

#if defined(__x86_64__) && defined(__GNUC__)

// Ten of an instruction, each on a sum of its own, so that none waits for another.
#    define EDGEKV_TEN(sum) \
        sum "6\n" sum "7\n" sum "8\n" sum "9\n" sum "10\n" sum "11\n" sum "12\n" sum "13\n" sum "14\n" sum "15\n"
#    define EDGEKV_SUMS "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// add: a piece of the loop, of so many operations
template <typename Add> static double rate_of(double operations, const Add & add) {
    const long   n    = static_cast<long>(1e9 / operations);
    const double took = seconds([&] {
        for (long i = 0; i < n; ++i) {
            add();
        }
    });
    return 1e-9 * operations * static_cast<double>(n) / took;
}

double limit_rate(const std::string & instructions) {
    if (instructions == "avx512vnni") {
        return rate_of(10 * 128.0, [] { asm volatile(EDGEKV_TEN("vpdpbusd %%zmm0, %%zmm1, %%zmm")::: EDGEKV_SUMS); });
    }
    if (instructions == "avxvnni") {
        return rate_of(10 * 64.0, [] { asm volatile(EDGEKV_TEN("%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm")::: EDGEKV_SUMS); });
    }
    if (instructions != "avx2") {
        return 0.0;
    }
    return rate_of(8 * 4 * 64.0, [] {
        for (int k = 0; k < 8; ++k) { // eight sums of pairs before they are widened
            asm volatile("vpmaddubsw %%ymm0, %%ymm1, %%ymm2\nvpmaddubsw %%ymm0, %%ymm1, %%ymm3\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm4\nvpmaddubsw %%ymm0, %%ymm1, %%ymm5\n"
                         "vpaddw %%ymm2, %%ymm6, %%ymm6\nvpaddw %%ymm3, %%ymm7, %%ymm7\n"
                         "vpaddw %%ymm4, %%ymm8, %%ymm8\nvpaddw %%ymm5, %%ymm9, %%ymm9\n" ::
                             : "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9");
        }
        asm volatile("vpmaddwd %%ymm0, %%ymm6, %%ymm10\nvpmaddwd %%ymm0, %%ymm7, %%ymm11\n"
                     "vpmaddwd %%ymm0, %%ymm8, %%ymm12\nvpmaddwd %%ymm0, %%ymm9, %%ymm13\n"
                     "vpaddd %%ymm10, %%ymm14, %%ymm14\nvpaddd %%ymm11, %%ymm15, %%ymm15\n"
                     "vpaddd %%ymm12, %%ymm14, %%ymm14\nvpaddd %%ymm13, %%ymm15, %%ymm15\n" ::
                         : "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    });
}

#else

double limit_rate(const std::string &) { return 0.0; }

#endif

// Experts that each of n_columns chooses by chance, none twice.
static ggml_tensor * random_choices(ggml_context * context, int64_t n_columns, int32_t n_experts, int32_t n_chosen, std::mt19937 & engine) {
    ggml_tensor *        ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, n_chosen, n_columns);
    std::vector<int32_t> all(static_cast<size_t>(n_experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < n_columns; ++i) {
        std::shuffle(all.begin(), all.end(), engine);
        std::copy_n(all.begin(), n_chosen, static_cast<int32_t *>(ids->data) + i * n_chosen);
    }
    return ids;
}

MeasuredProduct::MeasuredProduct(ggml_type type, int64_t depth, int64_t n_rows, int64_t n_columns, int32_t n_experts, int32_t n_chosen)
    : operations_(2.0 * static_cast<double>(depth) * static_cast<double>(n_rows) * static_cast<double>(n_columns) * std::max(1, n_chosen)),
      n_repeats_(1 + static_cast<int>(5e8 / operations_)) {
    const int64_t n_matrices = std::max(1, n_experts), n_each = std::max(1, n_chosen);
    context_.reset(ggml_init({ ggml_row_size(type, depth) * n_rows * n_matrices + 4 * static_cast<size_t>((depth + n_rows * n_each) * n_columns) +
                                   (1 << 20), nullptr, false }));
    if (context_ == nullptr) {
        throw std::bad_alloc();
    }
    std::mt19937                    engine(1);
    std::normal_distribution<float> normal;
    auto *                          weights = ggml_new_tensor_3d(context_.get(), type, depth, n_rows, n_matrices);
    auto *                          columns = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, depth, 1, n_columns);
    std::vector<float>              row(static_cast<size_t>(depth));
    const std::vector<float>        importance(row.size(), 1.0f); // without which ggml does not quantise to some types
    auto *                          at = static_cast<char *>(weights->data);
    for (int64_t r = 0; r < n_rows * n_matrices; ++r, at += weights->nb[1]) {
        if (r < n_drawn_rows) {
            std::generate(row.begin(), row.end(), [&] { return normal(engine); });
            ggml_quantize_chunk(type, row.data(), at, 0, 1, depth, importance.data());
        } else {
            std::memcpy(at, at - n_drawn_rows * static_cast<int64_t>(weights->nb[1]), weights->nb[1]);
        }
    }
    std::generate_n(static_cast<float *>(columns->data), depth * n_columns, [&] { return normal(engine); });
    graph_                 = ggml_new_graph(context_.get());
    ggml_tensor * product  = n_experts > 0 ? ggml_mul_mat_id(context_.get(), weights, columns, random_choices(context_.get(), n_columns, n_experts, n_chosen, engine))
                                           : ggml_mul_mat(context_.get(), weights, ggml_reshape_2d(context_.get(), columns, depth, n_columns));
    ggml_build_forward_expand(graph_, product);
}

double MeasuredProduct::rate() {
    ggml_cplan plan = processor().graph_plan(graph_, 1, nullptr);
    work_.resize(std::max(work_.size(), plan.work_size));
    plan.work_data    = work_.data();
    const double took = seconds([&] {
        for (int i = 0; i < n_repeats_; ++i) {
            processor().graph_compute(graph_, &plan);
        }
    });
    return 1e-9 * operations_ * n_repeats_ / took;
}

} // namespace edgekv
