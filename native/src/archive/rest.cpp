#include "archive/rest.h"

#include "archive/segment_file.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace edgekv {

namespace {

// Of the mean square of a query. A tenth and ten times as much answer no more and no fewer questions.
constexpr double ridge = 0.003;

void write_mean(const std::vector<double> & sums, uint32_t n, float * row) {
    std::transform(sums.begin(), sums.end(), row, [n](double sum) { return static_cast<float>(sum / n); });
}

} // namespace

Rest::Rest(uint32_t dim_k, uint32_t dim_v) : keys_(dim_k), values_(dim_v), change_(dim_k) {}

void Rest::begin(int32_t begin, int32_t end, const std::vector<int32_t> & held, uint32_t n_most) {
    constexpr int32_t n_tokens = SegmentFile::n_tokens;
    every_                     = std::max(1u, static_cast<uint32_t>((end - 1) / n_tokens - begin / n_tokens + 1) / n_sampled);
    int64_t n_taken            = 0;
    for (int32_t p = begin, n; p < end; p += n) {
        n = std::min<int32_t>(end - p, SegmentFile::n_from(p));
        n_taken += takes(p) ? n : 0;
    }
    n_taken -= std::count_if(held.begin(), held.end(), [&](int32_t p) { return p >= begin && p < end && takes(p); });
    every_ = n_taken > n_most ? every_ : 1;
}

// A few elements of all rows go together, so that their sums stay in registers.
void Rest::add(bool values, const float * rows, size_t n) {
    n_keys_ += values ? 0 : static_cast<uint32_t>(n);
    constexpr size_t      n_lanes = 8;
    std::vector<double> & sums    = values ? values_ : keys_;
    const size_t          dim     = sums.size();
    for (size_t first = 0; first < dim; first += n_lanes) {
        const size_t n_left = std::min(n_lanes, dim - first);
        double       few[n_lanes] = {};
        const auto   add_few = [&](auto n_few) {
            for (size_t i = 0; i < n; ++i) {
                for (size_t k = 0; k < n_few; ++k) {
                    few[k] += rows[i * dim + first + k];
                }
            }
        };
        if (n_left == n_lanes) {
            add_few(std::integral_constant<size_t, n_lanes>());
        } else {
            add_few(n_left);
        }
        for (size_t k = 0; k < n_left; ++k) {
            sums[first + k] += few[k];
        }
    }
}

void Rest::remove(bool values, const float * row) {
    n_keys_ -= values ? 0 : 1;
    std::vector<double> & sums = values ? values_ : keys_;
    std::transform(sums.begin(), sums.end(), row, sums.begin(), [](double sum, float x) { return sum - x; });
}

// With A the scaled queries: (A' A + lambda I) change = A' 1, which is A' (A A' + lambda I)^-1 1 whatever the number of queries.
void Rest::fit(const edgekv_queries & queries, std::vector<double> & gram) {
    const size_t   n       = size_t(queries.n_head) * queries.n_rows;
    const size_t   dim     = change_.size();
    double * const few     = gram.data() + dim * dim;
    double         squares = 0.0;
    std::fill_n(gram.begin(), dim * dim, 0.0);
    std::fill(change_.begin(), change_.end(), 0.0);
    for (size_t q = 0; q < n; q += n_gram_rows) {
        std::fill_n(few, n_gram_rows * dim, 0.0);
        for (size_t i = 0; i < std::min(n_gram_rows, n - q) * dim; ++i) {
            few[i] = double(queries.scale) * queries.data[q * dim + i];
            change_[i % dim] += few[i];
        }
        kernels().add_gram(few, dim, gram.data());
    }
    for (size_t i = 0; i < dim; ++i) {
        squares += gram[i * dim + i];
    }
    if (!(squares > 0.0)) { // no query can tell keys apart
        std::fill(change_.begin(), change_.end(), 0.0);
        return;
    }
    for (size_t i = 0; i < dim; ++i) {
        gram[i * dim + i] += ridge * squares / static_cast<double>(n);
    }
    kernels().solve(gram.data(), dim, change_.data());
}

void Rest::write_key(uint32_t n, float * row) const {
    const double more = std::log(static_cast<double>(n));
    for (size_t i = 0; i < keys_.size(); ++i) {
        row[i] = static_cast<float>(keys_[i] / n_keys_ + more * change_[i]);
    }
}

void Rest::write_mean_key(float * row) const { write_mean(keys_, n_keys_, row); }
void Rest::write_value(float * row) const { write_mean(values_, n_keys_, row); }

} // namespace edgekv
