#include "archive/scan.h"

#include "hooks/status.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace edgekv {

BestPositions::BestPositions(uint32_t n, uint32_t n_needed, uint32_t before, uint32_t after, uint32_t n_sink) :
    most_(n), most_needed_(n_needed), n_sink_(static_cast<int32_t>(n_sink)), n_newest_(n_newest(after)), fading_(std::exp2(-1.0 / before)), earlier_(n_newest_), weights_(2 * size_t(n_newest_)),
    up_to_(n_newest_) {
    best_.reserve(n);
    needed_.reserve(n_needed);
    for (uint32_t i = 0; i < n_newest_; ++i) {
        earlier_[i] = std::exp2(-1.0 / after * i);
    }
}

void BestPositions::begin(int32_t first, const std::vector<int32_t> * held, uint32_t most) {
    most_    = most;
    first_ = next_ = first;
    held_          = held;
    n_passed_      = 0;
    best_.clear();
    needed_.clear();
}

void BestPositions::add(float weight) {
    const uint32_t i      = place(next_);
    weight                = next_ < n_sink_ ? 0.0f : weight;
    const double   before = next_ > first_ ? up_to_[place(next_ - 1)] : 0.0;
    weights_[i] = weights_[i + n_newest_] = weight;
    up_to_[i]                             = before * fading_ + weight;
    ++next_;
    if (next_ - first_ >= static_cast<int32_t>(n_newest_)) {
        consider(next_ - static_cast<int32_t>(n_newest_));
    }
}

void BestPositions::finish() {
    for (int32_t p = std::max(first_, next_ + 1 - static_cast<int32_t>(n_newest_)); p < next_; ++p) {
        consider(p);
    }
    for (auto * heap : { &best_, &needed_ }) {
        std::sort(heap->begin(), heap->end(), [](const Scored & a, const Scored & b) { return a.position < b.position; });
    }
}

// Positions come in ascending order.
void BestPositions::consider(int32_t position) {
    while (n_passed_ < held_->size() && (*held_)[n_passed_] < position) {
        ++n_passed_;
    }
    const bool is_held = n_passed_ < held_->size() && (*held_)[n_passed_] == position;
    if ((is_held ? most_needed_ : most_) == 0) {
        return;
    }
    const float * run = weights_.data() + place(position);
    double        sum = up_to_[place(position)];
    for (int32_t i = 1; i < next_ - position; ++i) {
        sum += earlier_[i] * run[i];
    }
    const Scored found = { static_cast<float>(sum), position };
    if (is_held) {
        keep(found, most_needed_, needed_);
    } else {
        keep(found, most_, best_);
    }
}

void BestPositions::keep(const Scored & found, uint32_t most, std::vector<Scored> & heap) {
    if (heap.size() == most) {
        if (!(found > heap.front())) {
            return;
        }
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        heap.pop_back();
    }
    heap.push_back(found);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

void BestPositions::write(const std::vector<Scored> & some, int32_t * positions, float * scores) {
    std::transform(some.begin(), some.end(), positions, [](const Scored & scored) { return scored.position; });
    std::transform(some.begin(), some.end(), scores, [](const Scored & scored) { return scored.score; });
}

void BestPositions::write(int32_t * positions, float * scores) const { write(best_, positions, scores); }

void BestPositions::write_needed(int32_t * positions, float * scores) const { write(needed_, positions, scores); }

namespace {

float capped(float logit, float softcap) { return softcap > 0.0f ? softcap * std::tanh(logit / softcap) : logit; }

// Bring the largest logit, and the sum of exp(logit - most), up to date.
void add_exponential(float logit, float & most, float & sum) {
    if (logit > most) {
        sum *= std::exp(most - logit);
        most = logit;
    }
    sum += std::exp(logit - most);
}

} // namespace

template <typename F> void Scan::each(Scan * scan, const ScanSize & size, F f) {
    const size_t n_tokens = SegmentFile::n_tokens;
    const size_t n_panels = (size_t(size.n_group) * size.n_probe + n_lanes - 1) / n_lanes;
    const auto   array    = [&](auto Scan::* member, size_t n) { f(scan != nullptr ? &(scan->*member) : nullptr, member, n); };
    array(&Scan::room_, SegmentFile::room(size.row_bytes));
    array(&Scan::keys_, n_tokens * size.dim);
    array(&Scan::queries_, size_t(size.n_group) * size.n_probe * size.dim);
    array(&Scan::positions_, size.n_probe);
    array(&Scan::rope_, n_tokens);
    array(&Scan::panels_, n_panels * size.dim * n_lanes);
    array(&Scan::most_, n_panels * n_lanes);
    array(&Scan::sums_, n_panels * n_lanes);
    array(&Scan::log_sums_, n_panels * n_lanes);
    array(&Scan::scratch_, n_tokens * 2 * n_lanes);
    array(&Scan::weights_, n_tokens);
    array(&Scan::gram_, Rest::gram_size(size.dim_rest));
}

Scan::Scan(const ScanSize & size) {
    each(this, size, [](auto * vector, auto, size_t n) { vector->resize(n); });
}

size_t Scan::bytes(const ScanSize & size) {
    size_t sum = 0;
    each(nullptr, size, [&](auto * vector, auto, size_t n) { sum += n * sizeof((*vector)[0]); });
    return sum;
}

// Lay the queries out as the columns of panels, times their scale. The last panel is filled up with the last query.
void Scan::fill_panels(const edgekv_queries & queries) {
    const size_t n_all = size_t(queries.n_head) * queries.n_rows;
    n_panels_          = (n_all + n_lanes - 1) / n_lanes;
    for (size_t i = 0; i < n_panels_ * n_lanes; ++i) {
        const size_t  flat  = std::min(i, n_all - 1);
        const float * query = queries.data + flat * queries.dim;
        float *       panel = panels_.data() + i / n_lanes * queries.dim * n_lanes + i % n_lanes;
        for (size_t k = 0; k < queries.dim; ++k) {
            panel[k * n_lanes] = queries.scale * query[k];
        }
        most_[i] = queries.sinks != nullptr ? queries.sinks[flat / queries.n_rows] : -INFINITY;
        sums_[i] = queries.sinks != nullptr ? 1.0f : 0.0f;
    }
}

// A query sees the keys of its probe's tokens up to its own. All lanes of a panel have a query.
void Scan::add_own(const ArchivedHead & head, const edgekv_queries & queries) {
    for (uint32_t begin = 0; begin < head.n_own; begin += SegmentFile::n_tokens) {
        const uint32_t n    = std::min<uint32_t>(SegmentFile::n_tokens, head.n_own - begin);
        edgekv_rows    rows = head.format;
        rows.data           = head.own + begin * rows.stride_bytes;
        rows.n              = n;
        Rows(rows).read(0, n, keys_.data());
        if (head.undo != nullptr && head.format.rotation > 0) { // as the queries are then
            rotate_hadamard(keys_.data(), n * queries.dim, head.format.rotation);
        }
        const size_t n_all = size_t(queries.n_head) * queries.n_rows;
        for (size_t i = 0; i < n_panels_ * n_lanes; ++i) {
            const size_t   flat   = std::min(i, n_all - 1);
            const uint32_t n_seen = head.n_own - queries.n_rows + static_cast<uint32_t>(flat % queries.n_rows) + 1; // by the query
            const uint32_t n_keys = std::min(n, n_seen - std::min(n_seen, begin));
            kernels().dots(keys_.data(), n_keys, queries.data + flat * queries.dim, queries.dim, scratch_.data());
            for (uint32_t key = 0; key < n_keys; ++key) {
                add_exponential(capped(queries.scale * scratch_[key], queries.softcap), most_[i], sums_[i]);
            }
        }
    }
}

// Call f(p, n) for each segment's n keys of a head, or values that its rest takes, from position p on, which then lie in keys_.
template <typename F>
void Scan::each_tile(const edgekv_archive & archive, const ArchivedHead & head, bool values, bool first, F f) {
    uint32_t n;
    for (int32_t p = archive.begin(); p < archive.end(); p += static_cast<int32_t>(n)) {
        n = std::min(SegmentFile::n_from(p), static_cast<uint32_t>(archive.end() - p));
        if (values && !head.rest->takes(p)) {
            continue;
        }
        edgekv_rows rows = values ? head.values : head.format;
        rows.data        = archive.file().read(head.index, values, p, n, room_.data(), rope_.data(), first);
        rows.n           = n;
        Rows(rows, values ? nullptr : head.undo, rope_.data()).read(0, n, keys_.data());
        f(p, n);
    }
}

// Add those of n tokens from position p on, whose rows lie in keys_, that a head does not hold.
void Scan::add_lacking(const std::vector<int32_t> & held, int32_t p, uint32_t n, bool values, uint32_t dim, Rest & rest) {
    auto next = std::lower_bound(held.begin(), held.end(), p);
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t end = next != held.end() ? std::min(n, static_cast<uint32_t>(*next++ - p)) : n; // the next one that it holds
        rest.add(values, keys_.data() + size_t(i) * dim, end - i);
        i = end;
    }
}

void Scan::run(const edgekv_archive & archive, const ArchivedHead & head, const edgekv_queries & queries, const std::vector<int32_t> & held,
               BestPositions & best) {
    fill_panels(queries);
    const auto tile = [&](uint32_t n) {
        return KeyTile{ n, queries.dim, n_panels_, keys_.data(), panels_.data(), queries.softcap, scratch_.data() };
    };
    add_own(head, queries);
    each_tile(archive, head, false, true, [&](int32_t, uint32_t n) { kernels().add_exponentials(tile(n), most_.data(), sums_.data()); });
    for (size_t i = 0; i < n_panels_ * n_lanes; ++i) {
        if (!std::isfinite(sums_[i])) {
            throw Error(EDGEKV_STATUS_NOT_FINITE, "a product of a query and an archived key is NaN or infinite; the model's weights may be "
                                                  "damaged");
        }
        log_sums_[i] = most_[i] + std::log(sums_[i]);
    }
    each_tile(archive, head, false, false, [&](int32_t p, uint32_t n) {
        kernels().largest_weights(tile(n), log_sums_.data(), weights_.data());
        std::for_each(weights_.begin(), weights_.begin() + n, [&](float weight) { best.add(weight); });
        if (head.rest != nullptr && head.rest->takes(p)) {
            add_lacking(held, p, n, false, queries.dim, *head.rest);
        }
    });
    best.finish();
    if (head.rest != nullptr) {
        each_tile(archive, head, true, true, [&](int32_t p, uint32_t n) { add_lacking(held, p, n, true, head.values.dim, *head.rest); });
        head.rest->fit(queries, gram_);
    }
}

} // namespace edgekv
