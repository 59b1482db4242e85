// How fast products of quantised weights with a block are: edgekv's, and ggml's for the same operation, on one thread.
//   cmake --build BUILD --target edgekv_bench_products && BUILD/tests/edgekv_bench_products [TYPE [DEPTH [ROWS [EXPERTS CHOSEN]]]]
// With EXPERTS, each has ROWS, and each column chooses CHOSEN of them.
// Numbers are G operations a second of processor time (two for each weight and column), medians of turns that alternate. The
// limit is what a loop on registers does that adds up products of bytes. Weights with more than four bits need more without VNNI.
#include "hooks/processor.h"
#include "matmul/speed.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace edgekv;

int main(int argc, char ** argv) {
    processor().init();
    const int64_t depth = argc > 2 ? std::atoi(argv[2]) : 1536, n_rows = argc > 3 ? std::atoi(argv[3]) : 1536;
    const int32_t n_experts = argc > 5 ? std::atoi(argv[4]) : 0, n_chosen = argc > 5 ? std::atoi(argv[5]) : 0;
    for (size_t k = 0; all_products[k] != nullptr; ++k) {
        const Products & set = *all_products[k];
        if (!set.runs_here()) {
            continue;
        }
        std::printf("%s\n%-7s %8s %8s %8s %8s %6s %6s\n", set.name, "type", "columns", "ggml", "edgekv", "limit", "times", "share");
        for (const TypeProducts * type = set.types; type->multiply != nullptr; ++type) {
            if (type->order.n_rows > 1) {
                continue; // unpacked otherwise, multiplied alike
            }
            if (argc > 1 && std::strcmp(argv[1], "all") != 0 && std::strcmp(argv[1], ggml_type_name(type->type)) != 0) {
                continue;
            }
            for (const int64_t n_columns : { 512, 128, 32, 27, 8, 4, 3, 2, 1 }) {
                MeasuredProduct     product(type->type, depth, n_rows, n_columns, n_experts, n_chosen);
                std::vector<double> before, after, limits;
                for (int turn = 0; turn < n_turns; ++turn) {
                    limits.push_back(limit_rate(set.name));
                    use_products(nullptr);
                    before.push_back(product.rate());
                    use_products(&set);
                    after.push_back(product.rate());
                }
                std::printf("%-7s %8lld %8.1f %8.1f %8.1f %6.2f %6.2f\n", ggml_type_name(type->type), static_cast<long long>(n_columns),
                            median(before), median(after), median(limits), median(after) / median(before),
                            median(after) / median(limits));
                std::fflush(stdout);
            }
        }
    }
}
