#include "plan/settings.h"

#include "hooks/given.h"
#include "hooks/status.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace edgekv {

namespace {

constexpr uint32_t enough_cells = 2048; // docs/memory.md says why
constexpr uint32_t few_cells    = 512;  // likewise
constexpr uint32_t full_block   = 128;
constexpr uint32_t blocks[]     = { full_block, 64, 32 };
constexpr uint32_t long_block   = 512; // where each block is followed by a probe

using Setting = std::optional<edgekv_setting>;

// The largest budget that has positions in the trained context.
uint32_t most_cells(const edgekv_choice & choice, uint32_t block) {
    if (choice.repositions == 0) {
        return choice.n_ctx_train;
    }
    const int64_t room = int64_t(choice.n_ctx_train) - block - choice.n_probe;
    return static_cast<uint32_t>(std::max<int64_t>(0, room) / (choice.ragged != 0 ? EDGEKV_HEAD_LEAST : 1));
}

// Settings with weights repacked, or not.
class Search {
  public:
    Search(const edgekv_choice & choice, BudgetSearch & budgets, int32_t repack)
        : choice_(choice), budgets_(budgets), repack_(repack),
          enough_(is_named() ? choice.budget : std::max(choice.least_budget, std::min(enough_cells, most_cells(usual_block())))),
          levels_(levels_to_try()), blocks_(blocks_to_try()) {}

    Setting best() const {
        for (const uint32_t enough : levels_) {
            if (const Setting found = in_memory(enough)) {
                return found;
            }
            if (const Setting found = least_streamed(enough, std::min(full_block, usual_block()))) {
                return found;
            }
        }
        if (const Setting found = least_streamed(levels_.back(), 0)) {
            return found;
        }
        return is_named() ? std::nullopt : largest();
    }

    Setting largest() const {
        Setting largest;
        for (const uint32_t n_streamed : may_stream() ? std::vector<uint32_t>{ 0, choice_.n_layers } : std::vector<uint32_t>{ n_named() }) {
            for (const uint32_t block : blocks_) {
                const Setting found = largest_of(block, n_streamed, largest ? largest->budget + 1 : choice_.least_budget);
                largest             = found ? found : largest;
            }
        }
        return largest;
    }

  private:
    bool     is_named() const { return choice_.budget != 0; }
    uint32_t usual_block() const { return choice_.block != 0 ? choice_.block : full_block; }
    bool     may_stream() const { return choice_.n_streamed < 0 && choice_.n_layers > 0; }
    uint32_t n_named() const { return std::max(choice_.n_streamed, 0); }
    uint32_t most_cells(uint32_t block) const { return edgekv::most_cells(choice_, block); }

    // Streamed layers are read again for each block, so fewer cells are enough before a block is shorter, if evicted tokens may come back.
    std::vector<uint32_t> levels_to_try() const {
        std::vector<uint32_t> tried = { enough_ };
        while (may_stream() && choice_.recalls != 0 && !is_named() && tried.back() / 2 >= std::max(few_cells, choice_.least_budget)) {
            tried.push_back(tried.back() / 2);
        }
        return tried;
    }

    std::vector<uint32_t> blocks_to_try() const {
        if (choice_.block != 0) {
            return { choice_.block };
        }
        std::vector<uint32_t> tried;
        if (choice_.n_ubatch > full_block) {
            tried = { 2 * choice_.n_ubatch, choice_.n_ubatch };
            tried.erase(std::remove_if(tried.begin(), tried.end(), [&](uint32_t block) { return most_cells(block) < enough_; }), tried.end());
        } else if (choice_.n_probe > 0 && (is_named() ? choice_.budget : most_cells(long_block)) >= enough_cells) {
            tried.push_back(long_block);
        }
        std::copy_if(std::begin(blocks), std::end(blocks), std::back_inserter(tried),
                     [&](uint32_t block) { return block >= choice_.least_block; });
        return tried;
    }

    // The most exact first.
    std::vector<int32_t> types() const {
        return choice_.kv_type != 0 ? std::vector<int32_t>{ choice_.kv_type } : std::vector<int32_t>{ GGML_TYPE_F16, GGML_TYPE_Q8_0 };
    }

    // Enough cells and no more.
    Setting with_enough(uint32_t enough, uint32_t block, uint32_t n_streamed) const {
        for (const int32_t type : types()) {
            const edgekv_setting setting = { enough, block, type, repack_, n_streamed };
            if (does_fit(setting)) {
                return setting;
            }
        }
        return std::nullopt;
    }

    // Those of a length at least. A long block has as many spare cells, so it comes with all cells that are enough alone.
    std::vector<uint32_t> blocks_for(uint32_t enough, uint32_t shortest) const {
        const uint32_t        longest = enough < enough_ ? std::max(full_block, choice_.block) : blocks_.front();
        std::vector<uint32_t> found;
        std::copy_if(blocks_.begin(), blocks_.end(), std::back_inserter(found),
                     [&](uint32_t block) { return block >= shortest && block <= longest; });
        return found;
    }

    // Enough cells, with no more streamed layers than are named.
    Setting in_memory(uint32_t enough) const {
        for (const uint32_t block : blocks_for(enough, 0)) {
            if (const Setting found = with_enough(enough, block, n_named())) {
                return is_named() || block != blocks_.front() ? found : largest_of(block, n_named(), enough);
            }
        }
        return std::nullopt;
    }

    // Enough cells beside the fewest streamed layers.
    Setting least_streamed(uint32_t enough, uint32_t shortest) const {
        if (!may_stream()) {
            return std::nullopt;
        }
        const auto tried_blocks = blocks_for(enough, shortest);
        const auto found_with   = [&](uint32_t n_streamed) {
            Setting found;
            for (auto block = tried_blocks.begin(); block != tried_blocks.end() && !found; ++block) {
                found = with_enough(enough, *block, n_streamed);
            }
            return found;
        };
        Setting best = found_with(choice_.n_layers);
        for (uint32_t too_few = 0; best && best->n_streamed - too_few > 1;) {
            const uint32_t tried = too_few + (best->n_streamed - too_few) / 2;
            if (const Setting found = found_with(tried)) {
                best = found;
            } else {
                too_few = tried;
            }
        }
        return best;
    }

    // The most cells, which are at least `least`: in F16 if they are as many as in Q8_0.
    Setting largest_of(uint32_t block, uint32_t n_streamed, uint32_t least) const {
        Setting    largest;
        const auto tried = types();
        for (auto type = tried.rbegin(); type != tried.rend(); ++type) {
            const Setting found = grown({ largest ? largest->budget : least, block, *type, repack_, n_streamed });
            largest             = found ? found : largest;
        }
        return largest;
    }

    // A setting with the most cells that fit; none if it does not fit itself.
    Setting grown(edgekv_setting best) const {
        if (!does_fit(best)) {
            return std::nullopt;
        }
        uint32_t fails = std::max(best.budget, most_cells(best.block)) + 1;
        while (fails - best.budget > 1) {
            edgekv_setting tried = best;
            tried.budget         = best.budget + (fails - best.budget) / 2;
            if (does_fit(tried)) {
                best = tried;
            } else {
                fails = tried.budget;
            }
        }
        return best;
    }

    bool does_fit(const edgekv_setting & setting) const {
        try {
            return budgets_.fits(setting);
        } catch (const Error & error) {
            const int32_t named = choice_.kv_type != 0 ? choice_.kv_type : GGML_TYPE_F16;
            if (error.status != EDGEKV_STATUS_INVALID_ARGUMENT || setting.kv_type == named) {
                throw;
            }
            return false;
        }
    }

    const edgekv_choice &       choice_;
    BudgetSearch &              budgets_;
    const int32_t               repack_;
    const uint32_t              enough_; // cells
    const std::vector<uint32_t> levels_; // cells that are enough, the most first
    const std::vector<uint32_t> blocks_; // the fastest first
};

std::vector<int32_t> repacking_to_try(const edgekv_choice & choice) {
    return choice.repack >= 0 ? std::vector<int32_t>{ choice.repack } : std::vector<int32_t>{ 1, 0 };
}

// The first setting that a search with weights repacked, or not, finds.
Setting found_by(Setting (Search::*search)() const, const edgekv_choice & choice, const Spare & spare) {
    BudgetSearch budgets(spare, [&](uint32_t block) { return most_cells(choice, block); });
    for (const int32_t repack : repacking_to_try(choice)) {
        if (const Setting found = (Search(choice, budgets, repack).*search)()) {
            return found;
        }
    }
    return std::nullopt;
}

} // namespace

std::optional<edgekv_setting> best_setting(const edgekv_choice & choice, const Spare & spare) {
    return found_by(&Search::best, choice, spare);
}

std::optional<edgekv_setting> largest_setting(const edgekv_choice & choice, const Spare & spare) {
    edgekv_choice open = choice;
    open.budget        = 0;
    return found_by(&Search::largest, open, spare);
}

} // namespace edgekv

using namespace edgekv;

namespace {

// Search for a setting, with a callback that says what a setting leaves.
enum edgekv_status search_by(std::optional<edgekv_setting> (*search)(const edgekv_choice &, const Spare &), const edgekv_choice * choice,
                             edgekv_setting_spare spare, void * user_data, edgekv_setting * chosen, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(choice && spare && chosen, "choice, spare or chosen is NULL");
        const auto found = search(given(*choice), [&](const edgekv_setting & setting) {
            const int64_t answer = spare(user_data, &setting);
            if (answer == EDGEKV_SETTING_IMPOSSIBLE) {
                throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, "the model cannot have the cache type; name another");
            }
            if (answer == EDGEKV_SETTING_GIVE_UP) {
                throw Error(EDGEKV_STATUS_INTERNAL, "the callback gave up");
            }
            return Left{ answer, 0 };
        });
        if (!found) {
            throw Error(EDGEKV_STATUS_OVER_CEILING, "no setting fits; raise the ceiling");
        }
        *chosen = *found;
    });
}

} // namespace

uint32_t edgekv_plan_most_cells(const struct edgekv_choice * choice, uint32_t block) {
    uint32_t n_cells = 0;
    guard(nullptr, 0, [&] {
        require(choice, "choice is NULL");
        n_cells = most_cells(given(*choice), block);
    });
    return n_cells;
}

enum edgekv_status edgekv_plan_choose(const struct edgekv_choice * choice, edgekv_setting_spare spare, void * user_data,
                                      struct edgekv_setting * chosen, char * err, size_t err_size) {
    return search_by(best_setting, choice, spare, user_data, chosen, err, err_size);
}

enum edgekv_status edgekv_plan_largest(const struct edgekv_choice * choice, edgekv_setting_spare spare, void * user_data,
                                       struct edgekv_setting * chosen, char * err, size_t err_size) {
    return search_by(largest_setting, choice, spare, user_data, chosen, err, err_size);
}
