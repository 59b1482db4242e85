// Rows between a cache and its archive: in place in the host's memory, and on a device many at once.
#pragma once

#include "cache/cache.h"
#include "device/row_packet.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace edgekv {

// What both directions have in common: a pool of rows, and how many of them one copy takes.
class RowTransfer {
  public:
    // Bytes that one takes in the host's memory beside what a reader returns, at most: a copy, the one that a client of RPC makes of it,
    // and the list of its rows.
    static uint64_t bytes(bool copied) { return copied ? 2 * most_bytes + most_rows * sizeof(int32_t) : 0; }

  protected:
    explicit RowTransfer(const edgekv_cache & cache); // throws std::bad_alloc

    void   set_pool(size_t number);
    bool   is_copied() const { return cache_.is_copied(*pool_); }
    bool   fits() const { return packet_.bytes() <= capacity_ && packet_.n_keys + packet_.n_values <= most_rows; }
    size_t n_fitting() const; // rows, keys and values, of which a packet takes as many

    const edgekv_cache &    cache_;
    const FlatCache::Pool * pool_     = nullptr;
    RowGraphs *             graphs_   = nullptr; // that copy its rows; NULL = they are copied run by run
    RowPacket               packet_   = {};
    std::vector<int32_t>    rows_;    // of the pool: those of the packet

    static constexpr size_t most_bytes = 2 << 20; // of a copy

  private:
    static constexpr size_t most_rows = 1 << 14;

    size_t capacity_ = 0; // bytes
};

// Reads adjacent rows of heads, in few copies.
class RowReader : RowTransfer {
  public:
    using Room = std::vector<std::unique_ptr<char[]>>;

    // with_values: of rows that are copied; where they stay, values are there in any case
    RowReader(const edgekv_cache & cache, bool with_values) : RowTransfer(cache), with_values_(with_values) {}

    // Call f(i, keys, values) for every i, with n rows of a pool from row firsts[i] on, n at most a segment's. Latents have no values.
    // If the cache lies on a device, rows are copied to `room`, which grows; else they stay where they are.
    template <typename F> void read(size_t pool, const std::vector<uint32_t> & firsts, uint32_t n, Room & room, F f) {
        set_pool(pool);
        const bool is_copied = cache_.is_copied();
        if (is_copied && !with_values_) {
            packet_.value_bytes = 0;
        }
        const size_t n_at_once = is_copied ? std::max<size_t>(1, n_fitting() / n) : 1;
        for (size_t begin = 0; begin < firsts.size(); begin += n_at_once) {
            const size_t n_runs = std::min(n_at_once, firsts.size() - begin);
            const Rows   rows   = is_copied ? copied(&firsts[begin], n_runs, n, room) : in_place(firsts[begin]);
            for (size_t i = 0; i < n_runs; ++i) {
                f(begin + i, rows.keys + i * n * packet_.key_bytes, rows.values + i * n * packet_.value_bytes);
            }
        }
    }

  private:
    struct Rows {
        const char * keys;
        const char * values;
    };

    Rows copied(const uint32_t * firsts, size_t n_runs, uint32_t n, Room & room);
    Rows in_place(uint32_t row) const;

    bool with_values_;
};

// Writes rows of a pool, in few copies: keys first, then values.
class RowWriter : RowTransfer {
  public:
    explicit RowWriter(const edgekv_cache & cache) : RowTransfer(cache), room_(cache.is_copied() ? most_bytes : 0) {}

    void begin(size_t pool) { set_pool(pool); }
    void write(bool values, size_t row, const char * bytes); // may throw Error, if a device fails
    void finish();                                           // so that all rows are there; likewise

  private:
    void send_runs(ggml_tensor * to, const char * bytes, const int32_t * rows, size_t n) const;

    std::vector<char> room_;
};

} // namespace edgekv
