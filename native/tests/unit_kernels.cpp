// The kernels of every set of instructions that runs here, against the same sums in double.
#include "check.h"
#include "hooks/instructions.h"
#include "kernels/kernels.h"
#include "random_values.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <limits>
#include <vector>

using namespace edgekv;

namespace {

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
    for (const size_t depth : { 3, 64, 80 }) {
        constexpr size_t   n    = 7;
        const auto         rows = random_values(n * depth), vector = random_values(depth), weights = random_values(n);
        std::vector<float> dots(n + 1, 7.0f), squares(n + 1, 7.0f);
        auto               sum = random_values(depth + 1);
        std::vector<double> expected(sum.begin(), sum.end());
        kernel.dots(rows.data(), n, vector.data(), depth, dots.data());
        kernel.squares(rows.data(), n, depth, squares.data());
        kernel.add_weighted(sum.data(), weights.data(), rows.data(), n, depth);
        for (size_t r = 0; r < n; ++r) {
            double dot = 0.0, square = 0.0;
            for (size_t k = 0; k < depth; ++k) {
                const double value = rows[r * depth + k];
                dot += value * vector[k];
                square += value * value;
                expected[k] += value * weights[r];
            }
            CHECK(is_close(dots[r], dot));
            CHECK(is_close(squares[r], square));
        }
        for (size_t k = 0; k <= depth; ++k) {
            CHECK(is_close(sum[k], expected[k]));
        }
        CHECK(dots[n] == 7.0f && squares[n] == 7.0f); // nothing past the end
    }
}

void test_norms(const Kernels & kernel) {
    constexpr size_t depth = 24, stride = 31;
    for (const size_t n_rows : { 1, 5, 12, 29 }) { // whole tiles, and not
        const auto         rows = random_values(n_rows * stride), panel = random_values(depth * n_lanes);
        std::vector<float> norms(n_lanes, 1.0f);
        kernel.add_norm1(rows.data(), stride, n_rows, panel.data(), depth, norms.data());
        for (size_t i = 0; i < n_lanes; ++i) {
            double norm = 1.0;
            for (size_t r = 0; r < n_rows; ++r) {
                double product = 0.0;
                for (size_t k = 0; k < depth; ++k) {
                    product += double(rows[r * stride + k]) * panel[k * n_lanes + i];
                }
                norm += std::fabs(product);
            }
            CHECK(is_close(norms[i], norm));
        }
    }
}

// n cells at positions 0, 3, 6, ...; lane i of the queries sees those up to 12 i - 1, so the first lane sees none
void test_attention(const Kernels & kernel, size_t n, float softcap) {
    constexpr size_t     depth = 24;
    const auto           rows  = random_values(n * depth);
    auto                 panel = random_values(depth * n_lanes);
    std::vector<int32_t> positions(n), limits(n_lanes);
    std::vector<float>   lane_factors(n_lanes);
    std::vector<float>   sinks(n_lanes, -INFINITY);
    for (size_t j = 0; j < n; ++j) {
        positions[j] = static_cast<int32_t>(3 * j);
    }
    for (size_t i = 0; i < n_lanes; ++i) {
        limits[i] = static_cast<int32_t>(12 * i) - 1;
        lane_factors[i] = 0.25f * static_cast<float>(i + 1);
        if (i % 3 == 0) { // the first lane has one too
            sinks[i] = 2.0f * static_cast<float>(i) - 7.0f;
        }
    }
    std::vector<float> logits(n * n_lanes), weights(n * n_lanes + 1, 0.125f), sums(n);
    const auto         attend = [&](const std::vector<float> & keys) {
        return kernel.add_attention(keys.data(), n, panel.data(), depth, positions.data(), limits.data(), softcap, sinks.data(),
                                    lane_factors.data(), logits.data(), weights.data());
    };
    CHECK(attend(rows));
    CHECK(weights.back() == 0.125f); // nothing past the end
    kernel.sum_lanes(weights.data(), n, sums.data());
    std::vector<double> expected(n, 0.125 * n_lanes);
    for (size_t i = 0; i < n_lanes; ++i) {
        const auto weight = [&](size_t j) {
            double logit = 0.0;
            for (size_t k = 0; k < depth; ++k) {
                logit += double(rows[j * depth + k]) * panel[k * n_lanes + i];
            }
            return positions[j] > limits[i] ? 0.0 : std::exp(softcap > 0.0f ? softcap * std::tanh(logit / softcap) : logit);
        };
        double total = std::exp(double(sinks[i]));
        for (size_t j = 0; j < n; ++j) {
            total += weight(j);
        }
        for (size_t j = 0; j < n && total > 0.0; ++j) {
            const double share = lane_factors[i] * weight(j) / total;
            CHECK(is_close(weights[j * n_lanes + i], 0.125 + share));
            expected[j] += share;
        }
    }
    for (size_t j = 0; j < n; ++j) {
        CHECK(is_close(sums[j], expected[j]));
    }
    // what is not finite is told where a lane sees it, and is nothing where none does
    for (const float spoilt : { NAN, -INFINITY, INFINITY }) {
        for (const size_t cell : { size_t(0), n - 1 }) {
            auto keys = rows;
            keys[cell * depth + 5] = spoilt;
            CHECK(attend(keys) == (positions[cell] > limits.back()));
        }
    }
}

// (n, depth) as panels of n_lanes rows, (depth, n_lanes) each, and back; rows that there are not are zeros.
std::vector<float> panels_of(const std::vector<float> & rows, size_t n, size_t depth) {
    std::vector<float> panels((n + n_lanes - 1) / n_lanes * n_lanes * depth);
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < depth; ++k) {
            panels[(i / n_lanes * depth + k) * n_lanes + i % n_lanes] = rows[i * depth + k];
        }
    }
    return panels;
}

std::vector<float> rows_of(const std::vector<float> & panels, size_t n, size_t depth) {
    std::vector<float> rows(n * depth);
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < depth; ++k) {
            rows[i * depth + k] = panels[(i / n_lanes * depth + k) * n_lanes + i % n_lanes];
        }
    }
    return rows;
}

// What queries have attended to, to be compared to the bit.
struct Attended {
    std::vector<float> out, sums, most;

    bool operator==(const Attended & other) const { return out == other.out && sums == other.sums && most == other.most; }
};

// Queries over n cells, read in tiles of 32: each sees fewer than the one before, the last ones none of the later tiles. They are
// rows, or the lanes of panels.
// With `has_gaps` they do not see every third cell of those either, from the second on.
Attended test_tiles(const Kernels & kernel, size_t n, size_t n_queries, float softcap, bool has_sinks, bool has_panels, bool has_gaps) {
    constexpr size_t     dim_k = 48, dim_v = 80, stride_v = 96, n_tile = 32;
    const size_t         n_all_lanes = (n_queries + n_lanes - 1) / n_lanes * n_lanes;
    const auto           queries = random_values(n_queries * dim_k), values = random_values((n + n_tile) * stride_v);
    const auto           panels = panels_of(queries, n_queries, dim_k);
    const auto           sinks = random_values(n_queries);
    auto                 keys  = random_values((n + n_tile) * dim_k);
    std::vector<float>   logits(std::max(n_queries, n_lanes) * n_tile);
    std::vector<int32_t> n_all(n_queries), n_seen(n_all_lanes), hidden(n_all_lanes * n_tile);
    for (size_t q = 0; q < n_queries; ++q) {
        n_all[q] = static_cast<int32_t>(n - std::min(n - 1, 5 * q));
    }
    const auto sees = [&](size_t q, size_t cell) { return cell < static_cast<size_t>(n_all[q]) && !(has_gaps && cell > 0 && (cell + q) % 3 == 2); };
    std::vector<float> most, sums, out;
    const auto         attend = [&] {
        most = has_sinks ? sinks : std::vector<float>(n_queries, -INFINITY);
        most.resize(n_all_lanes, -INFINITY);
        sums.assign(n_all_lanes, has_sinks ? 1.0f : 0.0f);
        out.assign((has_panels ? n_all_lanes : n_queries) * dim_v + 1, 0.0f);
        for (size_t cell = 0; cell < n; cell += n_tile) {
            const size_t  n_read    = std::min(n_tile, n - cell);
            const float * keys_at   = keys.data() + cell * dim_k;
            const float * values_at = values.data() + cell * stride_v;
            const size_t  stride    = (n_read + n_lanes - 1) / n_lanes * n_lanes;
            for (size_t q = 0; q < n_queries; ++q) {
                n_seen[q] = 0;
                for (size_t c = 0; c < n_tile; ++c) {
                    const size_t place = has_panels ? (q / n_lanes * n_tile + c) * n_lanes + q % n_lanes : q * stride + c;
                    hidden[place]      = has_gaps && !sees(q, cell + c);
                    n_seen[q]          = sees(q, cell + c) ? static_cast<int32_t>(c) + 1 : n_seen[q];
                }
            }
            const int32_t * hides = has_gaps ? hidden.data() : nullptr;
            if (!has_panels) {
                kernel.attend_tile({ n_queries, n_read, dim_k, dim_v, queries.data(), keys_at, values_at, stride_v, n_seen.data(), hides, softcap,
                                     logits.data(), most.data(), sums.data(), out.data() });
                continue;
            }
            for (size_t q = 0; q < n_queries; q += n_lanes) {
                kernel.attend_panel({ n_read, dim_k, dim_v, panels.data() + q * dim_k, keys_at, values_at, stride_v, n_seen.data() + q,
                                      has_gaps ? hides + q * n_tile : nullptr, softcap, logits.data(), most.data() + q, sums.data() + q,
                                      out.data() + q * dim_v });
            }
        }
        CHECK(out.back() == 0.0f); // nothing past the end
        out = has_panels ? rows_of(out, n_queries, dim_v) : out;
    };
    attend();
    for (size_t q = 0; q < n_queries; ++q) {
        std::vector<double> expected(dim_v);
        double              total = has_sinks ? std::exp(double(sinks[q])) : 0.0;
        for (size_t j = 0; j < static_cast<size_t>(n_all[q]); ++j) {
            if (!sees(q, j)) {
                continue;
            }
            double logit = 0.0;
            for (size_t k = 0; k < dim_k; ++k) {
                logit += double(queries[q * dim_k + k]) * keys[j * dim_k + k];
            }
            const double weight = std::exp(softcap > 0.0f ? softcap * std::tanh(logit / softcap) : logit);
            total += weight;
            for (size_t k = 0; k < dim_v; ++k) {
                expected[k] += weight * values[j * stride_v + k];
            }
        }
        for (size_t k = 0; k < dim_v; ++k) {
            CHECK(is_close(out[q * dim_v + k] / sums[q], expected[k] / total));
        }
    }
    Attended attended = { out, sums, most };
    attended.sums.resize(n_queries);
    attended.most.resize(n_queries);
    // what is not finite spoils the queries that see it, and no others
    for (const float spoilt : { NAN, -INFINITY, INFINITY }) {
        for (const size_t cell : { size_t(0), n - 1 }) {
            const float kept        = keys[cell * dim_k + 5];
            keys[cell * dim_k + 5] = spoilt;
            attend();
            for (size_t q = 0; q < n_queries; ++q) {
                CHECK(std::isnan(sums[q]) == sees(q, cell));
            }
            keys[cell * dim_k + 5] = kept;
        }
    }
    attended.out.resize(n_queries * dim_v);
    return attended;
}

// A query attends the same whether it is a row or a lane, and beside any others.
void test_rows_and_lanes(const Kernels & kernel, size_t n, float softcap, bool has_sinks, bool has_gaps) {
    for (const size_t n_queries : { 1, 2, 3, 7, 20 }) {
        const auto attended = [&](bool has_panels) {
            return test_tiles(kernel, n, n_queries, softcap, has_sinks, has_panels, has_gaps);
        };
        CHECK(attended(false) == attended(true));
    }
}

// Both passes of a scan, tile by tile; the last key is the first one once more.
void test_scans(const Kernels & kernel, size_t n, size_t n_panels, size_t dim, float softcap, bool has_sinks) {
    constexpr size_t n_tile    = 32;
    const size_t     n_queries = n_panels * n_lanes;
    auto             keys      = random_values(n * dim);
    auto             panels    = random_values(n_queries * dim);
    std::copy_n(keys.begin(), dim, keys.end() - static_cast<std::ptrdiff_t>(dim));
    const auto         sinks = random_values(n_queries);
    std::vector<float> most, sums, log_sums(n_queries), weights(n + n_lanes), scratch(n_tile * 2 * n_lanes);

    const auto each_tile = [&](auto f) {
        for (size_t first = 0; first < n; first += n_tile) {
            const size_t n_keys = std::min(n_tile, n - first);
            f(first, KeyTile{ n_keys, dim, n_panels, keys.data() + first * dim, panels.data(), softcap, scratch.data() });
        }
    };
    const auto add = [&] {
        most.assign(n_queries, -INFINITY);
        most = has_sinks ? sinks : most;
        sums.assign(n_queries, has_sinks ? 1.0f : 0.0f);
        each_tile([&](size_t, const KeyTile & tile) { kernel.add_exponentials(tile, most.data(), sums.data()); });
    };
    add();
    std::vector<double> expected(n);
    for (size_t q = 0; q < n_queries; ++q) {
        std::vector<double> powers(n);
        double              total = has_sinks ? std::exp(double(sinks[q])) : 0.0;
        for (size_t j = 0; j < n; ++j) {
            double logit = 0.0;
            for (size_t k = 0; k < dim; ++k) {
                logit += double(panels[(q / n_lanes * dim + k) * n_lanes + q % n_lanes]) * keys[j * dim + k];
            }
            total += powers[j] = std::exp(softcap > 0.0f ? softcap * std::tanh(logit / softcap) : logit);
        }
        log_sums[q] = most[q] + std::log(sums[q]);
        CHECK(is_close(log_sums[q], std::log(total)));
        for (size_t j = 0; j < n; ++j) {
            expected[j] = std::max(expected[j], powers[j] / total);
        }
    }
    each_tile([&](size_t first, const KeyTile & tile) { kernel.largest_weights(tile, log_sums.data(), weights.data() + first); });
    for (size_t j = 0; j < n; ++j) {
        CHECK(std::fabs(weights[j] - expected[j]) <= 5e-5 * expected[j]);
    }
    CHECK(weights[0] == weights[n - 1]); // what a key gets does not depend on where it lies in a tile

    for (const float spoilt : { NAN, -INFINITY, INFINITY }) {
        keys[n / 2 * dim + 5] = spoilt;
        add();
        CHECK(std::all_of(sums.begin(), sums.end(), [](float sum) { return std::isnan(sum); }));
    }
}

void test_turns(const Kernels & kernel) {
    for (const size_t n_pairs : { 1, 7, 32, 67 }) { // whole runs of pairs, and not
        for (const int32_t position : { 0, 1, 1009, -32003, 8'000'000 }) {
            for (const bool neighbours : { false, true }) {
                const auto          before = random_values(2 * n_pairs + 1);
                auto                row    = before;
                std::vector<double> turns(n_pairs);
                for (size_t i = 0; i < n_pairs; ++i) {
                    turns[i] = std::pow(1e4, -double(i) / double(n_pairs)) / 6.283185307179586;
                }
                kernel.turn_back(row.data(), turns.data(), n_pairs, neighbours, position);
                for (size_t i = 0; i < n_pairs; ++i) {
                    const size_t one = neighbours ? 2 * i : i, other = neighbours ? 2 * i + 1 : i + n_pairs;
                    const double angle = 6.283185307179586 * std::remainder(position * turns[i], 1.0);
                    const double c = std::cos(angle), s = std::sin(angle), a = before[one], b = before[other];
                    CHECK(std::fabs(row[one] - (a * c + b * s)) <= 3e-7 * std::hypot(a, b));
                    CHECK(std::fabs(row[other] - (b * c - a * s)) <= 3e-7 * std::hypot(a, b));
                }
                CHECK(row.back() == before.back());
            }
        }
    }
}

// Element i of a run is the sum of all j times the sign of the bits that i and j have in common.
void test_rotation(const Kernels & kernel) {
    for (const size_t run : { 1, 2, 16, 32, 64, 256 }) { // one vector, two, and several; and less
        const auto before = random_values(2 * run + 1);
        auto       row    = before;
        kernel.rotate(row.data(), 2 * run, run);
        for (size_t i = 0; i < 2 * run; ++i) {
            double expected = 0.0;
            for (size_t j = 0; j < run; ++j) {
                expected += (std::bitset<32>(i % run & j).count() % 2 == 1 ? -1.0 : 1.0) * before[i / run * run + j];
            }
            CHECK(std::fabs(row[i] - expected / std::sqrt(double(run))) < 1e-5);
        }
        CHECK(row.back() == before.back());
    }
}

// A Gram matrix of two rounds of rows, and a system of it whose solution is known.
void test_least_squares(const Kernels & kernel, size_t n) {
    const auto                given = random_values(2 * n_gram_rows * n);
    const std::vector<double> rows(given.begin(), given.end());
    std::vector<double>       gram(n * n), right(n);
    for (size_t i = 0; i < n; ++i) {
        gram[i * n + i] = 1.0;
    }
    kernel.add_gram(rows.data(), n, gram.data());
    kernel.add_gram(rows.data() + n_gram_rows * n, n, gram.data());
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
            double expected = i == j ? 1.0 : 0.0;
            for (size_t r = 0; r < 2 * n_gram_rows; ++r) {
                expected += rows[r * n + i] * rows[r * n + j];
            }
            CHECK(std::fabs(gram[i * n + j] - (i <= j ? expected : 0.0)) < 1e-12);
            right[i] += expected * double(given[j]);
        }
    }
    kernel.solve(gram.data(), n, right.data());
    for (size_t i = 0; i < n; ++i) {
        CHECK(std::fabs(right[i] - double(given[i])) < 1e-10);
    }
}

} // namespace

void test_kernels() {
    size_t n_run = 0;
    for (size_t i = 0; all_kernels[i] != nullptr; ++i) {
        if (runs_here(all_kernels[i]->name)) {
            test_rows(*all_kernels[i]);
            test_norms(*all_kernels[i]);
            test_turns(*all_kernels[i]);
            test_rotation(*all_kernels[i]);
            for (const size_t n : { 1, 5, 64, 96 }) { // whole vectors, and not
                test_least_squares(*all_kernels[i], n);
            }
            for (const size_t n : { 1, 12, 53, 64 }) { // whole tiles, and not; all seen by a lane, and not
                test_attention(*all_kernels[i], n, 0.0f);
                test_attention(*all_kernels[i], n, 2.0f);
            }
            for (const size_t n : { 1, 32, 75, 100 }) { // whole tiles, and not
                for (const bool has_gaps : { false, true }) {
                    test_rows_and_lanes(*all_kernels[i], n, 0.0f, false, has_gaps);
                    test_rows_and_lanes(*all_kernels[i], n, 2.0f, true, has_gaps);
                }
            }
            for (const size_t n : { 1, 12, 53, 64 }) { // whole tiles, and not
                for (const size_t n_panels : { 1, 2, 3 }) {
                    test_scans(*all_kernels[i], n, n_panels, 64, 0.0f, false);
                    test_scans(*all_kernels[i], n, n_panels, 128, 2.0f, true);
                    test_scans(*all_kernels[i], n, n_panels, 33, 0.0f, true);
                }
            }
            ++n_run;
        }
    }
    CHECK(n_run > 0);
    CHECK(runs_here(kernels().name));
}
