#include "plan/budget_search.h"

#include <algorithm>

namespace edgekv {

namespace {

constexpr uint32_t most_by_line = 8; // guesses; a range that is still open then is halved by whoever asks

} // namespace

bool BudgetSearch::fits(const edgekv_setting & setting) {
    Range & range = ranges_[{ setting.block, setting.kv_type, setting.repack, setting.n_streamed }];
    while (true) {
        if (range.fits && setting.budget <= range.fits->budget) {
            return true;
        }
        if ((range.fails && setting.budget >= range.fails->budget) || (range.fits && setting.budget > range.fits->most())) {
            return false;
        }
        edgekv_setting tried = setting;
        tried.budget         = next(range, setting);
        const Left left      = spare_(tried);
        (left.bytes >= 0 ? range.fits : range.fails) = Tried{ tried.budget, left };
    }
}

// The budget to estimate next, so that it is soon known if the given one fits.
uint32_t BudgetSearch::next(Range & range, const edgekv_setting & setting) const {
    if (!range.fits) {
        return setting.budget;
    }
    if (!range.fails) {
        return std::max<uint64_t>(setting.budget, std::min<uint64_t>(most_cells_(setting.block), range.fits->most()));
    }
    if (++range.n_guesses > most_by_line) {
        return setting.budget;
    }
    const uint32_t low = range.fits->budget, high = range.fails->budget;
    const auto     left = static_cast<double>(range.fits->left.bytes), lacking = static_cast<double>(-range.fails->left.bytes);
    const auto     guess = low + static_cast<uint32_t>((high - low) * (left / (left + lacking)));
    return std::min(std::max(guess, low + 1), high - 1);
}

} // namespace edgekv
