// The kernels of every set of instructions that runs here, against the same sums in double.
#include "check.h"
#include "score/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace edgekv;

namespace {

std::vector<float> random_values(size_t n) {
    std::mt19937                    engine(static_cast<uint32_t>(n));
    std::normal_distribution<float> normal;
    std::vector<float>              values(n);
    std::generate(values.begin(), values.end(), [&] { return normal(engine); });
    return values;
}

bool is_close(double a, double b) { return std::fabs(a - b) <= 1e-5 * std::max(1.0, std::fabs(b)); }

void test_rows(const Kernels & kernel) {
    for (const size_t n : { 1, 15, 64, 67 }) { // whole vectors, and not
        const auto a = random_values(n), b = random_values(n + 1);
        double     dot = 0.0, distance = 0.0;
        auto       sum = b;
        for (size_t i = 0; i < n; ++i) {
            dot += double(a[i]) * b[i];
            distance += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
        }
        CHECK(is_close(kernel.dot(a.data(), b.data(), n), dot));
        CHECK(is_close(kernel.squared_distance(a.data(), b.data(), n), distance));
        kernel.add_scaled(sum.data(), 0.5f, a.data(), n);
        for (size_t i = 0; i < n; ++i) {
            CHECK(is_close(sum[i], b[i] + 0.5 * a[i]));
        }
        CHECK(sum[n] == b[n]);
    }
}

void test_products(const Kernels & kernel) {
    constexpr size_t depth = 24, stride = 31;
    for (const size_t n_rows : { 1, 5, 12, 29 }) { // whole tiles, and not
        const auto         rows = random_values(n_rows * stride), panel = random_values(depth * n_lanes);
        std::vector<float> products(n_rows * n_lanes + 1, 7.0f);
        std::vector<float> norms(n_lanes, 1.0f);
        kernel.multiply(rows.data(), stride, n_rows, panel.data(), depth, products.data());
        kernel.add_norm1(rows.data(), stride, n_rows, panel.data(), depth, norms.data());
        for (size_t i = 0; i < n_lanes; ++i) {
            double norm = 1.0;
            for (size_t r = 0; r < n_rows; ++r) {
                double product = 0.0;
                for (size_t k = 0; k < depth; ++k) {
                    product += double(rows[r * stride + k]) * panel[k * n_lanes + i];
                }
                CHECK(is_close(products[r * n_lanes + i], product));
                norm += std::fabs(product);
            }
            CHECK(is_close(norms[i], norm));
        }
        CHECK(products.back() == 7.0f); // nothing past the end
    }
}

void test_softmax(const Kernels & kernel) {
    constexpr size_t     n = 53;
    std::vector<int32_t> positions(n), limits(n_lanes);
    std::vector<float>   shares(n_lanes);
    for (size_t j = 0; j < n; ++j) {
        positions[j] = static_cast<int32_t>(3 * j);
    }
    for (size_t i = 0; i < n_lanes; ++i) {
        limits[i] = static_cast<int32_t>(12 * i) - 1; // the first lane sees no cell
        shares[i] = 0.25f * static_cast<float>(i + 1);
    }
    for (const float softcap : { 0.0f, 2.0f }) {
        auto logits = random_values(n * n_lanes);
        std::for_each(logits.begin(), logits.end(), [](float & logit) { logit *= 9.0f; });
        auto               used = logits;
        std::vector<float> weights(n * n_lanes, 0.125f), sums(n);
        CHECK(kernel.add_softmax(used.data(), n, positions.data(), limits.data(), softcap, shares.data(), weights.data()));
        kernel.sum_lanes(weights.data(), n, sums.data());
        std::vector<double> expected(n, 0.125 * n_lanes);
        for (size_t i = 0; i < n_lanes; ++i) {
            const auto weight = [&](size_t j) {
                const double logit = logits[j * n_lanes + i];
                return positions[j] > limits[i] ? 0.0 : std::exp(softcap > 0.0f ? softcap * std::tanh(logit / softcap) : logit);
            };
            double total = 0.0;
            for (size_t j = 0; j < n; ++j) {
                total += weight(j);
            }
            for (size_t j = 0; j < n && total > 0.0; ++j) {
                const double share = shares[i] * weight(j) / total;
                CHECK(is_close(weights[j * n_lanes + i], 0.125 + share));
                expected[j] += share;
            }
        }
        for (size_t j = 0; j < n; ++j) {
            CHECK(is_close(sums[j], expected[j]));
        }
        // what is not finite is told where a lane sees it, and is nothing where none does
        for (const float spoilt : { NAN, -INFINITY, INFINITY }) {
            auto unseen = logits;
            unseen[0 * n_lanes + 0] = spoilt;
            CHECK(kernel.add_softmax(unseen.data(), n, positions.data(), limits.data(), softcap, shares.data(), weights.data()));
            auto seen = logits;
            seen[2 * n_lanes + 5] = spoilt;
            CHECK(!kernel.add_softmax(seen.data(), n, positions.data(), limits.data(), softcap, shares.data(), weights.data()));
        }
    }
}

} // namespace

void test_kernels() {
    size_t n_run = 0;
    for (size_t i = 0; all_kernels[i] != nullptr; ++i) {
        if (all_kernels[i]->runs_here()) {
            test_rows(*all_kernels[i]);
            test_products(*all_kernels[i]);
            test_softmax(*all_kernels[i]);
            ++n_run;
        }
    }
    CHECK(n_run > 0);
    CHECK(kernels().runs_here());
}
