// How fast products of quantised weights with a block are: edgekv's, and ggml's for the same operation, on one thread.
//   cmake --build BUILD --target edgekv_bench_products && BUILD/tests/edgekv_bench_products [TYPE [DEPTH [ROWS]]]
// Numbers are G operations a second of processor time (two for each weight and column), medians of turns that alternate. Below the
// name of the instructions stands what a loop on registers does, which is a limit for four bits: sums of products of bytes.
#include "hooks/processor.h"
#include "ggml-cpp.h"
#include "matmul/products.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

using namespace edgekv;

namespace {

constexpr int n_turns = 9;

template <typename F> double seconds(const F & f) {
    const std::clock_t start = std::clock();
    f();
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

#if defined(__x86_64__) && defined(__GNUC__)

// Six of an instruction, each on a sum of its own.
#    define EDGEKV_SIX(sum) sum "6\n" sum "7\n" sum "8\n" sum "9\n" sum "10\n" sum "11\n"

// G operations a second of as many sums of products of bytes as a loop on registers can do.
double limit(const std::string & name) {
    constexpr long n = 4000000;
    double         operations = 0.0; // of a turn
    const auto     turn       = [&] {
        if (name == "avx512vnni") {
            operations = 6.0 * 128;
            for (long i = 0; i < n; ++i) {
                asm volatile(EDGEKV_SIX("vpdpbusd %%zmm0, %%zmm1, %%zmm")::: "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
            }
        } else if (name == "avxvnni") {
            operations = 6.0 * 64;
            for (long i = 0; i < n; ++i) {
                asm volatile(EDGEKV_SIX("%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm")::: "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
            }
        } else { // eight sums of pairs before they are widened
            operations = 8 * 4.0 * 64;
            for (long i = 0; i < n; ++i) {
                for (int k = 0; k < 8; ++k) {
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
            }
        }
    };
    std::vector<double> rates;
    for (int i = 0; i < n_turns; ++i) {
        const double took = seconds(turn);
        rates.push_back(1e-9 * operations * n / took);
    }
    return median(rates);
}

#else

double limit(const std::string &) { return 0.0; }

#endif

// One product, computed as a graph of ggml's.
struct Case {
    ggml_context_ptr     context;
    ggml_cgraph *        graph;
    std::vector<uint8_t> work;
    double               operations;
    int                  n_repeats;

    Case(ggml_type type, int64_t depth, int64_t n_rows, int64_t n_columns)
        : context(ggml_init({ ggml_row_size(type, depth) * n_rows + 4 * static_cast<size_t>((depth + n_rows) * n_columns) + (1 << 20),
                              nullptr, false })),
          operations(2.0 * static_cast<double>(depth) * static_cast<double>(n_rows) * static_cast<double>(n_columns)),
          n_repeats(1 + static_cast<int>(5e8 / operations)) {
        std::mt19937                    engine(1);
        std::normal_distribution<float> normal;
        auto * weights = ggml_new_tensor_2d(context.get(), type, depth, n_rows);
        auto * columns = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, depth, n_columns);
        std::vector<float> row(static_cast<size_t>(depth));
        for (int64_t r = 0; r < n_rows; ++r) {
            if (r < 64) {
                std::generate(row.begin(), row.end(), [&] { return normal(engine); });
                ggml_quantize_chunk(type, row.data(), static_cast<char *>(weights->data) + r * weights->nb[1], 0, 1, depth, nullptr);
            } else {
                std::memcpy(static_cast<char *>(weights->data) + r * weights->nb[1],
                            static_cast<char *>(weights->data) + r % 64 * weights->nb[1], weights->nb[1]);
            }
        }
        std::generate_n(static_cast<float *>(columns->data), depth * n_columns, [&] { return normal(engine); });
        graph = ggml_new_graph(context.get());
        ggml_build_forward_expand(graph, ggml_mul_mat(context.get(), weights, columns));
    }

    // G operations a second with edgekv's products, or without.
    double rate(const Products * products) {
        use_products(products);
        ggml_cplan plan = processor().graph_plan(graph, 1, nullptr);
        work.resize(std::max(work.size(), plan.work_size));
        plan.work_data = work.data();
        const double took = seconds([&] {
            for (int i = 0; i < n_repeats; ++i) {
                processor().graph_compute(graph, &plan);
            }
        });
        return 1e-9 * operations * n_repeats / took;
    }
};

} // namespace

int main(int argc, char ** argv) {
    processor().init();
    const int64_t depth = argc > 2 ? std::atoi(argv[2]) : 1536, n_rows = argc > 3 ? std::atoi(argv[3]) : 1536;
    for (size_t k = 0; all_products[k] != nullptr; ++k) {
        const Products & set = *all_products[k];
        if (!set.runs_here()) {
            continue;
        }
        const double of_registers = limit(set.name);
        std::printf("%s\nlimit %.0f\n%-7s %8s %8s %8s %6s %6s\n", set.name, of_registers, "type", "columns", "ggml", "edgekv", "times", "share");
        for (const TypeProducts * type = set.types; type->multiply != nullptr; ++type) {
            if (type->interleaved) {
                continue; // unpacked otherwise, multiplied alike
            }
            if (argc > 1 && std::strcmp(argv[1], "all") != 0 && std::strcmp(argv[1], ggml_type_name(type->type)) != 0) {
                continue;
            }
            for (const int64_t n_columns : { 512, 128, 32, 27, 8 }) {
                Case                one(type->type, depth, n_rows, n_columns);
                std::vector<double> before, after;
                for (int turn = 0; turn < n_turns; ++turn) {
                    before.push_back(one.rate(nullptr));
                    after.push_back(one.rate(&set));
                }
                std::printf("%-7s %8lld %8.1f %8.1f %6.2f %6.2f\n", ggml_type_name(type->type), static_cast<long long>(n_columns),
                            median(before), median(after), median(after) / median(before), median(after) / of_registers);
                std::fflush(stdout);
            }
        }
    }
}
