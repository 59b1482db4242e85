// The search for the largest budget that fits, with few estimates.
#pragma once

#include "edgekv.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>

namespace edgekv {

// Bytes that a setting leaves under every limit; negative = it does not fit.
struct Left {
    int64_t  bytes;
    uint64_t cell_bytes; // every further cell takes at least so many of them; 0 = that is not known
};

// Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT) if the model cannot have the setting.
using Spare = std::function<Left(const edgekv_setting &)>;

// Tells which settings fit. Bytes grow with the budget, nearly along a straight line. A line through a budget that fits and one that
// does not leads to the last one that fits. If it was estimated, and leaves less than a cell takes, or the next one was estimated and
// does not fit, all other answers about settings that differ in the budget alone follow.
class BudgetSearch {
  public:
    // most_cells: the largest budget that may be asked for beside the first one, with so long a block
    BudgetSearch(Spare spare, std::function<uint32_t(uint32_t block)> most_cells)
        : spare_(std::move(spare)), most_cells_(std::move(most_cells)) {}

    // Throws what `spare` throws.
    bool fits(const edgekv_setting & setting);

  private:
    struct Tried {
        uint32_t budget;
        Left     left;

        // The largest budget that may fit, since this one does.
        uint64_t most() const { return left.cell_bytes == 0 ? UINT32_MAX : budget + static_cast<uint64_t>(left.bytes) / left.cell_bytes; }
    };
    // Settings that differ in the budget alone.
    struct Range {
        std::optional<Tried> fits;  // the largest budget that was seen to fit
        std::optional<Tried> fails; // the smallest one that was seen not to fit
        uint32_t             n_guesses = 0;
    };

    uint32_t next(Range & range, const edgekv_setting & setting) const;

    const Spare                              spare_;
    const std::function<uint32_t(uint32_t)>  most_cells_;
    std::map<std::tuple<uint32_t, int32_t, int32_t, uint32_t>, Range> ranges_; // by block, cache type, repacking, streamed layers
};

} // namespace edgekv
