// A cache as one run of bytes, which edgekv.h describes: numbers, what cells carry, and rows.
#include "cache/cache.h"
#include "ggml-backend.h"
#include "hooks/aborts.h"
#include "hooks/given.h"
#include "hooks/status.h"
#include "llama-context.h"
#include "llama-kv-cache.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <type_traits>
#include <utility>

using namespace edgekv;

namespace {

constexpr char    magic[8] = "edgekvs";
constexpr int32_t max_past = 1 << 30; // tokens; room to go on

// without padding they are compared and written as they lie
static_assert(std::has_unique_object_representations_v<edgekv_snapshot_kind>);
static_assert(std::has_unique_object_representations_v<edgekv_snapshot>);

void expect(bool sound, const char * what) {
    if (!sound) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "the snapshot is damaged: %s; take another", what);
    }
}

// The i-th number of an array that may begin anywhere.
template <typename T> T number(const char * array, size_t i) {
    T value;
    std::memcpy(&value, array + i * sizeof(T), sizeof(T));
    return value;
}

// The bytes [first, first + n) of a snapshot, which the caller has at `data`.
template <typename Byte> class Excerpt {
  public:
    Excerpt(uint64_t first, Byte * data, size_t n) : first_(first), end_(first + n), data_(data) {}

    // The next `size` bytes of the snapshot: f(where in `data`, how many of these bytes come before, how many are there).
    template <typename F> void next(size_t size, F f) {
        const uint64_t begin = std::max(at_, first_);
        const uint64_t end   = std::min(at_ + size, end_);
        if (begin < end) {
            f(data_ + (begin - first_), static_cast<size_t>(begin - at_), static_cast<size_t>(end - begin));
        }
        at_ += size;
    }

  private:
    uint64_t first_;
    uint64_t end_;
    Byte *   data_;
    uint64_t at_ = 0;
};

} // namespace

namespace edgekv {

// The numbers of a snapshot; the rest of it lies in the cache.
struct Snapshot {
    // As the cache is now.
    explicit Snapshot(const edgekv_cache & cache) : header{}, kept(cache.flat_.n_heads()), added(kept.size()) {
        std::copy_n(magic, sizeof(magic), header.magic);
        header.version   = EDGEKV_SNAPSHOT_VERSION;
        header.n_filled  = cache.n_filled_;
        header.kind      = kind_of(cache);
        header.n_past    = cache.n_past;
        header.rope_past = cache.rope_past;
        header.normed    = cache.normed_;
        header.n_fresh   = cache.n_fresh_;
        for (size_t h = 0; h < kept.size(); ++h) {
            kept[h]  = cache.flat_.head(h).kept;
            added[h] = cache.flat_.head(h).added;
        }
        if (cache.window_) {
            header.n_queries = cache.window_->n_text(cache.n_past);
            lags             = cache.window_->text_lags(cache.n_past, header.n_queries);
        }
        if (cache.windows_) {
            header.ring_head = cache.windows_->head();
            ring             = cache.windows_->positions();
        }
        count(cache);
    }

    // As it was written, with its rows or without; throws Error where the cache cannot take it.
    Snapshot(const edgekv_cache & cache, const char * src, size_t size, bool with_rows) : header{}, kept(cache.flat_.n_heads()), added(kept.size()) {
        expect(size >= sizeof(header), "it is cut");
        std::memcpy(&header, src, sizeof(header));
        expect(std::equal(magic, magic + sizeof(magic), header.magic), "it does not begin as one");
        if (header.version != EDGEKV_SNAPSHOT_VERSION) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT, "the snapshot has version %u, but this library takes version %u; take another",
                 header.version, EDGEKV_SNAPSHOT_VERSION);
        }
        const edgekv_snapshot_kind kind = kind_of(cache);
        if (std::memcmp(&kind, &header.kind, sizeof(kind)) != 0) {
            throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, "the snapshot is of another model, layout or cache type, or of a cache that "
                                                        "was opened with other params; restore it where it was taken");
        }
        expect(header.n_queries <= cache.params_.n_query_rows && int64_t(header.n_queries) <= header.n_past, "it has too many queries");
        lags.resize(header.n_queries);
        ring.resize(kind.n_ring);
        size_t at = sizeof(header);
        each_number([&](auto & numbers) {
            const size_t n = numbers.size() * sizeof(numbers[0]);
            expect(n <= size - at, "it is cut");
            std::copy_n(src + at, n, reinterpret_cast<char *>(numbers.data()));
            at += n;
        });
        check_numbers(cache);
        const edgekv_snapshot given = header;
        count(cache);
        expect(std::memcmp(&given, &header, sizeof(header)) == 0 && size == (with_rows ? header.n_bytes : header.rows_begin),
               "its size is not that of its cells");
        check_cells(src + at);
    }

    // Rows of every head before its open ones.
    std::vector<uint32_t> before_open() const {
        std::vector<uint32_t> n(kept.size());
        std::transform(kept.begin(), kept.end(), added.begin(), n.begin(), std::plus<>());
        return n;
    }

    // Bytes without the rows that a file has.
    uint64_t end(const edgekv_cache & cache, const FiledRows & filed) const {
        uint64_t n_bytes = header.rows_begin;
        each_row(cache, filed, [&](ggml_tensor *, size_t, size_t n) { n_bytes += n; });
        return n_bytes;
    }

    size_t numbers_end() const {
        return sizeof(header) + kept.size() * (sizeof(kept[0]) + sizeof(added[0])) + lags.size() * sizeof(lags[0]) + ring.size() * sizeof(ring[0]);
    }

    template <typename F> void each_number(F f) {
        f(kept);
        f(added);
        f(lags);
        f(ring);
    }

    // What follows the numbers, in its order: memory(address, bytes) of what cells carry ...
    template <typename Cache, typename Memory> void each_carried(Cache & cache, Memory memory) const {
        const auto each_head = [&](auto array) {
            for (uint32_t il = 0; il < cache.layers_.size(); ++il) {
                const edgekv_layer & layer = cache.layers_[il];
                for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
                    auto * carried = array(cache.cells(il, g));
                    if (carried != nullptr) {
                        memory(carried, n_cells(layer.first_head + g) * sizeof(*carried));
                    }
                }
            }
        };
        each_head([](const auto & head) { return head.position; });
        each_head([](const auto & head) { return head.rope_position; });
        each_head([](const auto & head) { return head.order; });
        each_head([](const auto & head) { return head.accumulated; });
        each_head([](const auto & head) { return head.wo_norm; });
    }

    // ... and rows(tensor, first byte, bytes) of those that no file has. If one has some, the cells are this snapshot's.
    template <typename Rows> void each_row(const edgekv_cache & cache, const FiledRows & filed, Rows rows) const {
        for (uint32_t il = 0; il < cache.layers_.size(); ++il) {
            const edgekv_layer & layer = cache.layers_[il];
            for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
                each_run(cache, il, g, filed, false, rows);
                if (!layer.is_latent()) {
                    each_run(cache, il, g, filed, true, rows);
                }
            }
        }
        if (cache.window_) {
            cache.window_->each_text_row(header.n_past, header.n_queries, rows);
        }
        if (cache.state_ && header.n_past > 0) {
            cache.state_->each_part(rows);
        }
        if (cache.windows_) {
            cache.windows_->each_part(ring, rows);
        }
    }

    edgekv_snapshot       header;
    std::vector<uint32_t> kept;  // of every head
    std::vector<uint32_t> added; // likewise
    std::vector<int32_t>  lags; // of every row of queries
    std::vector<int32_t>  ring; // positions in the cells of sliding windows

  private:
    size_t n_cells(size_t head) const { return size_t(kept[head]) + added[head] + header.n_filled; }

    // The keys or the values of one head: as one run, or as the runs between those that a file has.
    template <typename Rows>
    void each_run(const edgekv_cache & cache, uint32_t il, uint32_t g, const FiledRows & filed, bool values, Rows rows) const {
        const edgekv_layer & layer  = cache.layers_[il];
        ggml_tensor * const  tensor = values ? layer.v : layer.k;
        const size_t         size   = tensor->nb[1];
        const size_t         first  = cache.flat_.head(layer.first_head + g).first;
        const size_t         n      = n_cells(layer.first_head + g);
        size_t               begin  = 0;
        if (filed.begin < filed.end) {
            const HeadView cells = cache.cells(il, g);
            for (uint32_t cell = 0; cell < n; ++cell) {
                if (filed.has(cells, cell, values)) {
                    rows(tensor, (first + begin) * size, (cell - begin) * size);
                    begin = cell + 1;
                }
            }
        }
        rows(tensor, (first + begin) * size, (n - begin) * size);
    }

    static edgekv_snapshot_kind kind_of(const edgekv_cache & cache) {
        const edgekv_shape & shape = cache.shape;
        const bool           empty = cache.layers_.empty();
        return { shape.cell_bytes,
                 shape.query_row_bytes + shape.device_query_row_bytes,
                 shape.state_bytes + shape.device_state_bytes,
                 shape.n_layer,
                 shape.n_head_total,
                 shape.head_dim_k,
                 shape.head_dim_v,
                 empty ? -1 : int32_t(cache.layers_.front().k->type),
                 empty ? -1 : int32_t(cache.layers_.front().v->type),
                 cache.rotation_,
                 cache.value_rotation_,
                 cache.params_.repositions != 0,
                 cache.params_.accumulates != 0,
                 cache.params_.wo_norms != 0,
                 shape.window_cells };
    }

    // Note where its rows begin and it ends, which follows from the rest.
    void count(const edgekv_cache & cache) {
        header.rows_begin = numbers_end();
        each_carried(cache, [&](const void *, size_t n) { header.rows_begin += n; });
        header.n_bytes = end(cache, {});
    }

    void check_room(const edgekv_cache & cache) const {
        const auto n_most = [&](const std::vector<uint32_t> & counts) { return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end()); };
        const uint64_t most = uint64_t(n_most(kept)) + n_most(added) + header.n_filled;
        if (most > UINT32_MAX || !cache.flat_.fits(before_open(), header.n_filled)) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT,
                 "the snapshot has up to %" PRIu64 " cells of a head, which find no room; restore it with a larger budget or under a "
                 "higher ceiling, or take another",
                 most);
        }
    }

    void check_numbers(const edgekv_cache & cache) const {
        const auto & h = header;
        check_room(cache);
        expect(cache.takes_unlike_heads() || (are_alike(kept) && are_alike(added)), "its heads hold different numbers of cells");
        const bool was_evicted = int64_t(h.n_filled) < h.n_past;
        expect(was_evicted || std::count(kept.begin(), kept.end(), 0u) == int64_t(kept.size()), "cells were kept by no eviction");
        const uint32_t n_used = uint32_t(was_evicted) + h.n_filled;
        expect(n_used <= int64_t(h.rope_past) && h.rope_past <= h.n_past && h.n_past < max_past && (n_used > 0 || h.n_past == 0) &&
                   (h.kind.repositions != 0 || h.rope_past == h.n_past),
               "its next position is impossible");
        expect(h.normed >= 0 && h.normed <= h.n_past && int64_t(h.n_fresh) <= h.n_past, "it counts more tokens than it has");
        check_ring(cache);
        expect(std::all_of(lags.begin(), lags.end(), [&](int32_t lag) { return lag >= 0 && lag <= h.n_past; }),
               "its queries have impossible positions");
    }

    // Windows hold every position that the next token sees, and the newest, once each; cells without rows hold none of these.
    void check_ring(const edgekv_cache & cache) const {
        const int32_t        newest = header.rope_past - 1;
        std::vector<int32_t> held;
        std::copy_if(ring.begin(), ring.end(), std::back_inserter(held), [](int32_t position) { return position >= 0; });
        std::sort(held.begin(), held.end());
        const auto is_unseen = [&](int32_t position) {
            const int32_t hidden = Windows::hidden(position); // of a cell without rows
            return position >= -1 || (hidden < newest && !cache.windows_->sees(hidden, newest));
        };
        const auto is_next = [](int32_t position, int32_t next) { return next - position != 1; };
        const bool is_whole =
            held.empty() ? header.n_past == 0
                         : held.back() == newest && std::adjacent_find(held.begin(), held.end(), is_next) == held.end() &&
                               cache.windows_->sees(held.front(), newest) &&
                               (held.front() == 0 || !cache.windows_->sees(held.front() - 1, newest));
        expect(ring.empty() || (is_whole && header.ring_head <= ring.size() && std::all_of(ring.begin(), ring.end(), is_unseen)),
               "its sliding windows do not hold the positions that the next token sees, once each");
    }

    // What is read as an index later is one: orders are permutations, ascending by positions that were fed. `position` is where
    // the first array of what cells carry lies.
    void check_cells(const char * position) const {
        size_t       n_all     = 0;
        for (size_t h = 0; h < kept.size(); ++h) {
            n_all += n_cells(h);
        }
        const bool   turned    = header.kind.repositions != 0;
        const char * turned_to = position + n_all * sizeof(int32_t);
        const char * order     = turned_to + (turned ? n_all * sizeof(int32_t) : 0);
        size_t       first     = 0;
        for (size_t h = 0; h < kept.size(); ++h) {
            const size_t n    = n_cells(h);
            int32_t      last = rest_position - 1;
            for (size_t i = 0; i < n; ++i) {
                const size_t cell = number<uint32_t>(order, first + i);
                expect(cell < n && number<int32_t>(position, first + cell) > last &&
                           number<int32_t>(position, first + cell) < header.n_past,
                       "its cells are in no order");
                last = number<int32_t>(position, first + cell);
                if (turned) {
                    const auto to = number<int32_t>(turned_to, first + cell);
                    expect((to >= 0 || last == rest_position) && to >= rest_position && to < header.rope_past, "its keys have impossible positions");
                }
            }
            first += n;
        }
    }
};

} // namespace edgekv

uint64_t edgekv_snapshot_estimate_bytes(const struct edgekv_shape * shape, const struct edgekv_cache_params * params, uint32_t n_cells,
                                        uint64_t * numbers_bytes) {
    uint64_t n_bytes = 0;
    guard(nullptr, 0, [&] {
        require(shape && params && numbers_bytes, "shape, params or numbers_bytes is NULL");
        const edgekv_cache_params needs = given(*params);

        const uint64_t n_carried = 2 + (needs.repositions != 0) + (needs.accumulates != 0) + (needs.wo_norms != 0); // as each_carried has them
        const uint64_t n_numbers = shape->n_head_total * (2 + n_carried * n_cells) + needs.n_query_rows + shape->window_cells;
        *numbers_bytes           = sizeof(edgekv_snapshot) + n_numbers * sizeof(uint32_t);
        n_bytes                  = *numbers_bytes + n_cells * shape->cell_bytes +
                  needs.n_query_rows * (shape->query_row_bytes + shape->device_query_row_bytes);
    });
    return n_bytes;
}

uint64_t edgekv_cache::snapshot_bytes(const FiledRows & filed) const { return Snapshot(*this).end(*this, filed); }

void edgekv_cache::save(const FiledRows & filed, uint64_t first, void * dst, size_t n) const {
    Snapshot       snapshot(*this);
    const uint64_t end = snapshot.end(*this, filed);
    if (first > end || n > end - first) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "the snapshot has %llu bytes, and not %zu from byte %llu on",
             static_cast<unsigned long long>(end), n, static_cast<unsigned long long>(first));
    }
    llama_synchronize(ctx);
    Excerpt<char> out(first, static_cast<char *>(dst), n);
    const auto    put = [&](const void * data, size_t size) {
        out.next(size, [&](char * to, size_t skipped, size_t there) {
            std::copy_n(static_cast<const char *>(data) + skipped, there, to);
        });
    };
    put(&snapshot.header, sizeof(snapshot.header));
    snapshot.each_number([&](const auto & numbers) { put(numbers.data(), numbers.size() * sizeof(numbers[0])); });
    snapshot.each_carried(*this, put);
    snapshot.each_row(*this, filed, [&](ggml_tensor * rows, size_t begin, size_t size) {
        out.next(size, [&](char * to, size_t skipped, size_t there) { ggml_backend_tensor_get(rows, to, begin + skipped, there); });
    });
}

void edgekv_cache::restore(const void * src, size_t size, bool with_rows) {
    const Snapshot snapshot(*this, static_cast<const char *>(src), size, with_rows);
    const auto &   header = snapshot.header;
    llama_kv_cells own    = own_cells(header.n_past, header.rope_past);
    llama_kv_cells ring   = Windows::cells_of(snapshot.ring);
    const std::vector<uint32_t> before_open = snapshot.before_open();

    std::set<llama_seq_id> text = { 0 };
    llama_synchronize(ctx);

    // from here on nothing fails, and nothing is allocated
    const Computing computing;
    clear();
    flat_.lay_out(snapshot.kept);
    flat_.lay_out_before_open(before_open);
    n_filled_ = header.n_filled;
    n_past    = header.n_past;
    rope_past = header.rope_past;
    n_fresh_  = header.n_fresh;
    n_missed_ = n_fresh_ - std::min(n_fresh_, params_.n_query_rows);
    normed_   = header.normed;
    if (window_) {
        window_->restore_text(n_past, snapshot.lags);
    }
    const char * at = static_cast<const char *>(src) + snapshot.numbers_end();
    snapshot.each_carried(*this, [&](void * carried, size_t n) {
        std::memcpy(carried, at, n);
        at += n;
    });
    if (with_rows) {
        snapshot.each_row(*this, {}, [&](ggml_tensor * rows, size_t first, size_t n) {
            ggml_backend_tensor_set(rows, at, first, n);
            at += n;
        });
    }
    if (kv != nullptr && !is_shared()) {
        kv->take_cells(std::move(own));
    }
    if (windows_) {
        windows_->replaced(std::move(ring), header.ring_head);
    }
    if (state_ && n_past > 0) {
        state_->replaced(std::move(text), rope_past - 1);
    }
}

void edgekv_cache::restore_rows(const FiledRows & filed, uint64_t first, const void * src, size_t n) {
    const Snapshot snapshot(*this);
    const auto &   header = snapshot.header;
    const uint64_t end    = snapshot.end(*this, filed);
    if (first < header.rows_begin || first > end || n > end - first) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "the rows of the snapshot are bytes %llu to %llu, and not %zu from byte %llu on",
             static_cast<unsigned long long>(header.rows_begin), static_cast<unsigned long long>(end), n,
             static_cast<unsigned long long>(first));
    }
    llama_synchronize(ctx);
    const Computing     computing;
    Excerpt<const char> in(first - header.rows_begin, static_cast<const char *>(src), n);
    snapshot.each_row(*this, filed, [&](ggml_tensor * rows, size_t begin, size_t size) {
        in.next(size, [&](const char * from, size_t skipped, size_t there) {
            ggml_backend_tensor_set(rows, from, begin + skipped, there);
        });
    });
}
