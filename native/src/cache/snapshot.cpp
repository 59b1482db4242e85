// A cache as one flat buffer: a header, numbers that describe the rows, and then, of used cells alone, what they carry, their
// keys and values, and the newest queries.
#include "abi/aborts.h"
#include "abi/status.h"
#include "cache/cache.h"
#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-kv-cache.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <set>
#include <type_traits>
#include <utility>

using namespace edgekv;

namespace {

constexpr char     magic[8] = "edgekvs";
constexpr uint32_t version  = 2;
constexpr int32_t  max_past = 1 << 30; // tokens; room to go on

// What two caches must have in common for the one to take the other's snapshot.
struct Kind {
    edgekv_shape        shape;
    edgekv_cache_params params;
    int32_t             type_k;
    int32_t             type_v;
};

struct Header {
    char     magic[8];
    uint64_t n_bytes; // of the snapshot
    uint32_t version;
    uint32_t n_filled;
    Kind     kind;
    int32_t  n_past;
    int32_t  rope_past;
    int32_t  normed;
    uint32_t n_fresh;
    uint32_t n_queries; // rows
    uint32_t divided;
    uint32_t ring_head;
    uint32_t reserved;
};

static_assert(std::has_unique_object_representations_v<Header>); // without padding it is compared and written as it lies

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

} // namespace

namespace edgekv {

// The numbers of a snapshot; the rest of it lies in the cache.
struct Snapshot {
    // As the cache is now.
    explicit Snapshot(const edgekv_cache & cache) : header{}, kept(cache.flat_.n_heads()) {
        std::copy_n(magic, sizeof(magic), header.magic);
        header.version   = version;
        header.n_filled  = cache.n_filled_;
        header.kind      = kind_of(cache);
        header.n_past    = cache.n_past;
        header.rope_past = cache.rope_past;
        header.normed    = cache.normed_;
        header.n_fresh   = cache.n_fresh_;
        header.divided   = cache.divided_;
        for (size_t h = 0; h < kept.size(); ++h) {
            kept[h] = cache.flat_.head(h).kept;
        }
        if (cache.window_) {
            header.n_queries = cache.window_->n_text(cache.n_past);
            lags             = cache.window_->text_lags(cache.n_past, header.n_queries);
        }
        if (cache.windows_) {
            header.ring_head = cache.windows_->head();
            ring             = cache.windows_->positions();
        }
        header.n_bytes = count(cache);
    }

    // As it was written; throws Error where the cache cannot take it.
    Snapshot(const edgekv_cache & cache, const char * src, size_t size) : header{}, kept(cache.flat_.n_heads()) {
        expect(size >= sizeof(header), "it is cut");
        std::memcpy(&header, src, sizeof(header));
        expect(std::equal(magic, magic + sizeof(magic), header.magic) && header.version == version, "it does not begin as one");
        expect(header.n_bytes == size, "it is cut");
        const Kind kind = kind_of(cache);
        if (std::memcmp(&kind, &header.kind, sizeof(kind)) != 0) {
            throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, "the snapshot is of another model, layout or cache type, or of a cache that "
                                                        "was opened with other params; restore it where it was taken");
        }
        expect(header.n_queries <= cache.params_.n_query_rows && int64_t(header.n_queries) <= header.n_past, "it has too many queries");
        lags.resize(header.n_queries);
        ring.resize(cache.shape.window_cells);
        size_t at = sizeof(header);
        each_number([&](auto & numbers) {
            const size_t n = numbers.size() * sizeof(numbers[0]);
            expect(n <= size - at, "it is cut");
            std::copy_n(src + at, n, reinterpret_cast<char *>(numbers.data()));
            at += n;
        });
        check_numbers(cache);
        expect(count(cache) == size, "its size is not that of its cells");
        check_cells(cache, src + at);
    }

    size_t numbers_end() const {
        return sizeof(header) + kept.size() * sizeof(kept[0]) + lags.size() * sizeof(lags[0]) + ring.size() * sizeof(ring[0]);
    }

    template <typename F> void each_number(F f) {
        f(kept);
        f(lags);
        f(ring);
    }

    // What follows the numbers, in its order: memory(address, bytes) and rows(tensor, first byte, bytes).
    template <typename Memory, typename Rows> void each_part(const edgekv_cache & cache, Memory memory, Rows rows) const {
        for (uint32_t il = 0; il < cache.layers_.size(); ++il) {
            const edgekv_layer & layer = cache.layers_[il];
            for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
                const size_t    first = cache.flat_.head(layer.first_head + g).first;
                const size_t    n     = n_cells(layer.first_head + g);
                const HeadCells head  = cache.cells(il, g);
                for (void * carried : std::initializer_list<void *>{ head.position, head.rope_position, head.order,
                                                                     head.accumulated, head.wo_norm }) {
                    if (carried != nullptr) {
                        memory(static_cast<char *>(carried), n * sizeof(int32_t)); // as wide as a float
                    }
                }
                rows(layer.k, first * layer.k->nb[1], n * layer.k->nb[1]);
                if (!layer.is_latent()) {
                    rows(layer.v, first * layer.v->nb[1], n * layer.v->nb[1]);
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

    // llama.cpp's own cells, as if they had been fed.
    llama_kv_cells own_cells(const edgekv_cache & cache) const {
        llama_kv_cells cells;
        if (cache.kv == nullptr) {
            return cells;
        }
        cells.resize(cache.kv->get_cells(0).size());
        const uint32_t n_used = header.divided + header.n_filled;
        for (uint32_t i = 0; i < n_used; ++i) {
            cells.pos_set(i, header.rope_past - static_cast<int32_t>(n_used - i));
            cells.seq_add(i, 0);
        }
        return cells;
    }

    Header                header;
    std::vector<uint32_t> kept; // of every head
    std::vector<int32_t>  lags; // of every row of queries
    std::vector<int32_t>  ring; // positions in the cells of sliding windows

  private:
    size_t n_cells(size_t head) const { return size_t(kept[head]) + header.n_filled; }

    static Kind kind_of(const edgekv_cache & cache) {
        Kind kind = { cache.shape, cache.params_, -1, -1 };
        if (!cache.layers_.empty()) {
            kind.type_k = cache.layers_.front().k->type;
            kind.type_v = cache.layers_.front().v->type;
        }
        kind.shape.n_threads = 0; // these change nothing of what is stored
        kind.shape.staged    = 0;
        kind.shape.query_row_bytes += kind.shape.device_query_row_bytes;
        kind.shape.device_query_row_bytes = 0;
        kind.shape.state_bytes += kind.shape.device_state_bytes;
        kind.shape.device_state_bytes = 0;
        kind.params.staged   = 0;
        return kind;
    }

    size_t count(const edgekv_cache & cache) const {
        size_t n_bytes = numbers_end();
        each_part(
            cache, [&](char *, size_t n) { n_bytes += n; }, [&](ggml_tensor *, size_t, size_t n) { n_bytes += n; });
        return n_bytes;
    }

    void check_numbers(const edgekv_cache & cache) const {
        const auto & h       = header;
        const bool   is_even = kept.empty() || std::equal(kept.begin() + 1, kept.end(), kept.begin());
        expect(cache.flat_.fits(kept, h.n_filled) && (is_even || cache.params_.ragged != 0), "its heads hold too much");
        expect(h.divided <= 1 && (h.divided != 0 || std::count(kept.begin(), kept.end(), 0u) == int64_t(kept.size())),
               "cells were kept by no eviction");
        const uint32_t n_used = h.divided + h.n_filled;
        expect(cache.kv == nullptr || n_used <= cache.kv->get_cells(0).size(), "its heads hold too much");
        expect(n_used <= int64_t(h.rope_past) && h.rope_past <= h.n_past && h.n_past < max_past && (n_used > 0 || h.n_past == 0),
               "its next position is impossible");
        expect(h.normed >= 0 && h.normed <= h.n_past && int64_t(h.n_fresh) <= h.n_past, "it counts more tokens than it has");
        check_ring();
        expect(std::all_of(lags.begin(), lags.end(), [&](int32_t lag) { return lag >= 0 && lag <= h.n_past; }),
               "its queries have impossible positions");
    }

    // Windows end at the newest token, and hold none twice.
    void check_ring() const {
        std::vector<int32_t> held;
        std::copy_if(ring.begin(), ring.end(), std::back_inserter(held), [](int32_t position) { return position != -1; });
        std::sort(held.begin(), held.end());
        const bool ends = held.empty() ? header.n_past == 0 : held.front() >= 0 && held.back() == header.rope_past - 1;
        expect(ring.empty() || (ends && header.ring_head <= ring.size() && std::adjacent_find(held.begin(), held.end()) == held.end()),
               "its sliding windows hold impossible positions");
    }

    // What is read as an index later is one: orders are permutations, ascending by positions that were fed. `at` is where the
    // first part lies.
    void check_cells(const edgekv_cache & cache, const char * at) const {
        for (const edgekv_layer & layer : cache.layers_) {
            for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
                const size_t n         = n_cells(layer.first_head + g);
                const bool   turned    = cache.params_.repositions != 0;
                const char * position  = at;
                const char * turned_to = at + n * sizeof(int32_t);
                const char * order     = turned_to + (turned ? n * sizeof(int32_t) : 0);
                int32_t      last      = -1;
                for (size_t i = 0; i < n; ++i) {
                    const size_t cell = number<uint32_t>(order, i);
                    expect(cell < n && number<int32_t>(position, cell) > last && number<int32_t>(position, cell) < header.n_past,
                           "its cells are in no order");
                    last = number<int32_t>(position, cell);
                    if (turned) {
                        const auto to = number<int32_t>(turned_to, cell);
                        expect(to >= 0 && to < header.rope_past, "its keys have impossible positions");
                    }
                }
                at = order + n * (sizeof(uint32_t) + ((cache.params_.accumulates != 0) + (cache.params_.wo_norms != 0)) * sizeof(float) +
                                  layer.row_bytes());
            }
        }
    }
};

} // namespace edgekv

uint64_t edgekv_cache::snapshot_bytes() const { return Snapshot(*this).header.n_bytes; }

void edgekv_cache::save(void * dst, size_t dst_size) const {
    Snapshot snapshot(*this);
    if (dst_size < snapshot.header.n_bytes) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "dst holds %zu bytes, but the snapshot takes %llu", dst_size,
             static_cast<unsigned long long>(snapshot.header.n_bytes));
    }
    llama_synchronize(ctx);
    char *     at  = static_cast<char *>(dst);
    const auto put = [&](const void * data, size_t n) { at = std::copy_n(static_cast<const char *>(data), n, at); };
    put(&snapshot.header, sizeof(snapshot.header));
    snapshot.each_number([&](const auto & numbers) { put(numbers.data(), numbers.size() * sizeof(numbers[0])); });
    snapshot.each_part(*this, put, [&](ggml_tensor * rows, size_t first, size_t n) {
        ggml_backend_tensor_get(rows, at, first, n);
        at += n;
    });
}

void edgekv_cache::restore(const void * src, size_t size) {
    const Snapshot snapshot(*this, static_cast<const char *>(src), size);
    const auto &   header = snapshot.header;
    llama_kv_cells own    = snapshot.own_cells(*this);
    llama_kv_cells ring   = Windows::cells_of(snapshot.ring);

    std::set<llama_seq_id> text = { 0 };
    llama_synchronize(ctx);

    // from here on nothing fails, and nothing is allocated
    const Computing computing;
    clear();
    flat_.divide(snapshot.kept);
    n_filled_ = header.n_filled;
    divided_  = header.divided != 0;
    n_past    = header.n_past;
    rope_past = header.rope_past;
    n_fresh_  = header.n_fresh;
    normed_   = header.normed;
    if (window_) {
        window_->restore_text(n_past, snapshot.lags);
    }
    const char * at = static_cast<const char *>(src) + snapshot.numbers_end();
    snapshot.each_part(
        *this,
        [&](char * carried, size_t n) {
            std::copy_n(at, n, carried);
            at += n;
        },
        [&](ggml_tensor * rows, size_t first, size_t n) {
            ggml_backend_tensor_set(rows, at, first, n);
            at += n;
        });
    if (kv != nullptr) {
        kv->take_cells(std::move(own));
    }
    if (windows_) {
        windows_->replaced(std::move(ring), header.ring_head);
    }
    if (state_ && n_past > 0) {
        state_->replaced(std::move(text), rope_past - 1);
    }
}
