// How fast the loops of scoring and attention run, in GFLOP a second of processor time, for every set of instructions that this processor has.
//   cmake --build BUILD --target edgekv_bench_kernels && BUILD/tests/edgekv_bench_kernels
#include "hooks/instructions.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <vector>

using namespace edgekv;

// The median of 15 runs' GFLOP/s.
template <typename F> static double gflops(double flop, F f) {
    std::vector<double> rates;
    for (int run = 0; run < 15; ++run) {
        const std::clock_t start = std::clock();
        f();
        rates.push_back(flop * 1e-9 * CLOCKS_PER_SEC / static_cast<double>(std::clock() - start));
    }
    std::nth_element(rates.begin(), rates.begin() + 7, rates.end());
    return rates[7];
}

int main() {
    constexpr size_t n_cells = 2176, dim = 64, n_repeats = 60;

    std::vector<float>   keys(n_cells * dim), panel(dim * n_lanes), logits(n_cells * n_lanes), weights(n_cells * n_lanes);
    std::vector<int32_t> positions(n_cells), limits(n_lanes, n_cells);
    std::vector<float>   lane_factors(n_lanes, 1.0f), sums(n_lanes), no_sinks(n_lanes, -INFINITY);
    uint32_t             state = 1;
    const auto           draw  = [&] { return static_cast<float>((state = state * 1664525 + 1013904223) >> 8) * 0x1p-24f - 0.5f; };
    std::generate(keys.begin(), keys.end(), draw);
    std::generate(panel.begin(), panel.end(), draw);
    for (size_t i = 0; i < n_cells; ++i) {
        positions[i] = static_cast<int32_t>(i);
    }
    constexpr size_t           n_tile = 64, n_queries = 7; // as of a token where seven heads share keys
    std::vector<float>         most(n_lanes), attended(n_lanes), out(n_lanes * dim);
    const std::vector<int32_t> n_seen(n_lanes, n_tile);

    constexpr size_t   n_panels = 12, n_scanned = 128; // as of a probe of 32 tokens where six heads share keys
    std::vector<float> panels(n_panels * dim * n_lanes), scratch(n_scanned * 2 * n_lanes);
    std::vector<float> most_of_all(n_panels * n_lanes, -INFINITY), sums_of_all(n_panels * n_lanes);
    std::generate(panels.begin(), panels.end(), draw);

    const double products = 2.0 * n_cells * dim * n_lanes * n_repeats;
    const double rows     = 2.0 * n_cells * dim * n_repeats;

    const double attention = 4.0 * n_cells * dim * n_queries * n_repeats;
    const double of_panel  = 4.0 * n_cells * dim * n_lanes * n_repeats;

    const double scanned   = products * n_panels;
    const auto   each_tile = [&](auto f) {
        for (size_t cell = 0; cell < n_cells; cell += n_scanned) {
            f(KeyTile{ n_scanned, dim, n_panels, keys.data() + cell * dim, panels.data(), 0.0f, scratch.data() });
        }
    };

    std::printf("%-10s %10s %10s %10s %10s %10s %10s %10s %10s %10s\n", "", "weights", "norm1", "dots", "squares", "weighted", "attend",
                "of panels", "scan sums", "scan most");
    for (size_t k = 0; all_kernels[k] != nullptr; ++k) {
        const Kernels & kernel = *all_kernels[k];
        if (!runs_here(kernel.name)) {
            continue;
        }
        const auto repeat = [&](auto f) { return [&, f] { for (size_t i = 0; i < n_repeats; ++i) { f(); } }; };
        std::printf(
            "%-10s %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", kernel.name,
            gflops(products, repeat([&] {
                kernel.add_attention(keys.data(), n_cells, panel.data(), dim, positions.data(), limits.data(), 0.0f, no_sinks.data(),
                                     lane_factors.data(), logits.data(), weights.data());
            })),
            gflops(products, repeat([&] { kernel.add_norm1(keys.data(), dim, n_cells, panel.data(), dim, sums.data()); })),
            gflops(rows, repeat([&] { kernel.dots(keys.data(), n_cells, panel.data(), dim, logits.data()); })),
            gflops(rows, repeat([&] { kernel.squares(keys.data(), n_cells, dim, logits.data()); })),
            gflops(rows, repeat([&] { kernel.add_weighted(panel.data(), weights.data(), keys.data(), n_cells, dim); })),
            gflops(attention, repeat([&] {
                for (size_t cell = 0; cell < n_cells; cell += n_tile) {
                    kernel.attend_tile({ n_queries, n_tile, dim, dim, panel.data(), keys.data() + cell * dim, keys.data() + cell * dim, dim,
                                    n_seen.data(), nullptr, 0.0f, nullptr, logits.data(), most.data(), attended.data(), out.data() });
                }
            })),
            gflops(of_panel, repeat([&] {
                for (size_t cell = 0; cell < n_cells; cell += n_tile) {
                    kernel.attend_panel({ n_tile, dim, dim, panel.data(), keys.data() + cell * dim, keys.data() + cell * dim, dim,
                                          n_seen.data(), nullptr, 0.0f, nullptr, logits.data(), most.data(), attended.data(), out.data() });
                }
            })),
            gflops(scanned, repeat([&] {
                each_tile([&](const KeyTile & tile) { kernel.add_exponentials(tile, most_of_all.data(), sums_of_all.data()); });
            })),
            gflops(scanned, repeat([&] {
                each_tile([&](const KeyTile & tile) { kernel.largest_weights(tile, most_of_all.data(), weights.data()); });
            })));
    }
}
