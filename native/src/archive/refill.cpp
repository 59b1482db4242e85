#include "archive/refill.h"

#include "archive/row_transfer.h"
#include "hooks/aborts.h"
#include "hooks/status.h"

#include <algorithm>
#include <vector>

namespace edgekv {

namespace {

// The next n tokens of a cache, all of one segment, on their way from the file to the open rows after the `n_before` next ones.
struct Run {
    edgekv_cache &         cache;
    const edgekv_archive & archive;
    uint32_t               n_before;
    uint32_t               n;
    char *                 room;
    int32_t *              rope_positions; // (n,)

    int32_t position() const { return cache.n_past + static_cast<int32_t>(n_before); }

    void load(uint32_t il, uint32_t g, bool values, RowWriter & writer) const {
        const edgekv_layer & layer = cache.layers()[il];
        const size_t         head  = layer.first_head + g;
        const size_t         size  = values ? archive.file().heads()[head].v : archive.file().heads()[head].k;
        if (size == 0) {
            return;
        }
        char * rows = archive.file().read(head, values, position(), n, room, rope_positions);
        if (!values) {
            turn(il, rows, size);
        }
        const size_t first = cache.first_row(il, g) + cache.cells(il, g).n + n_before;
        for (uint32_t i = 0; i < n; ++i) {
            writer.write(values, first + i, rows + i * size);
        }
    }

    // From the RoPE positions that the keys were fed at to those that they would be fed at now.
    void turn(uint32_t il, char * keys, size_t size) const {
        for (uint32_t i = 0; i < n; ++i) {
            const int32_t delta = cache.rope_past + static_cast<int32_t>(n_before + i) - rope_positions[i];
            if (delta == 0) {
                continue;
            }
            RopeTurn * const by = cache.workspace().turn_of(il);
            if (by == nullptr) {
                fail(EDGEKV_STATUS_ARCHIVE, "the archive is not of this cache: the key of position %d was turned, and this cache turns none",
                     position() + static_cast<int32_t>(i));
            }
            by->turn(keys + i * size, delta);
        }
    }
};

} // namespace

void refill(edgekv_cache & cache, const edgekv_archive & archive, uint32_t n) {
    archive.require_same_rows(cache);
    cache.require_refillable();
    const int64_t end = int64_t(cache.n_past) + n;
    if (cache.n_past < archive.begin() || end > archive.end()) {
        fail(EDGEKV_STATUS_INVALID_STATE, "tokens [%d, %lld) are to be refilled, but those of [%d, %d) are archived; feed the others", cache.n_past,
             static_cast<long long>(end), archive.begin(), archive.end());
    }
    if (n > cache.n_free()) {
        fail(EDGEKV_STATUS_INVALID_STATE, "%u tokens need more than the %u free cells; compact first", n, cache.n_free());
    }
    size_t widest = 0;
    for (const RowBytes & head : archive.file().heads()) {
        widest = std::max({ widest, size_t(head.k), size_t(head.v) });
    }
    std::vector<char>    room(SegmentFile::room(static_cast<uint32_t>(widest)));
    std::vector<int32_t> rope_positions(SegmentFile::n_tokens);
    RowWriter            writer(cache);
    llama_synchronize(cache.ctx);

    // open rows belong to no token until all are there, so a file that cannot be read changes no cell
    const Computing computing;
    for (size_t pool = 0; pool < cache.pools().size(); ++pool) {
        writer.begin(pool);
        for (const bool values : { false, true }) {
            for (uint32_t done = 0; done < n;) {
                const uint32_t left = SegmentFile::n_from(cache.n_past + static_cast<int32_t>(done));
                const Run      run  = { cache, archive, done, std::min(n - done, left), room.data(), rope_positions.data() };
                each_head_of(cache.layers(), pool, [&](uint32_t il, uint32_t g) { run.load(il, g, values, writer); });
                done += run.n;
            }
        }
        writer.finish();
    }
    cache.take_refilled(n);
}

} // namespace edgekv
