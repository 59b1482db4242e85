#include "plan/settings.h"

#include "hooks/status.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace edgekv {

namespace {

constexpr uint32_t enough_cells    = 512; // docs/memory.md says why
constexpr uint32_t few_cells       = 128; // with fewer, replies are unreliable (docs/results)
constexpr uint32_t blocks[]        = { 128, 64, 32 };
constexpr uint32_t longer_blocks[] = { 512, 256 };
constexpr uint32_t cells_per_spare = 4; // cells kept for each one of a longer block

class Choosing {
  public:
    // full_blocks: blocks of 128 and longer alone
    Choosing(const edgekv_choice & choice, const Fits & fits, int32_t repack, uint32_t n_streamed, bool full_blocks = false)
        : choice_(choice), fits_(fits), repack_(repack), n_streamed_(n_streamed), full_blocks_(full_blocks) {}

    std::optional<edgekv_setting> best() const {
        if (choice_.kv_type != 0) {
            return best_of({ choice_.kv_type });
        }
        const auto found = best_of({ GGML_TYPE_F16, GGML_TYPE_Q8_0 });
        return found ? found : best_of({ GGML_TYPE_Q4_0 });
    }

    std::optional<edgekv_setting> largest() const {
        std::optional<edgekv_setting> largest;
        for (const int32_t type : choice_.kv_type != 0 ? std::vector<int32_t>{ choice_.kv_type } : smallest_types()) {
            for (const uint32_t block : blocks_to_try()) {
                const auto found = fitting(block, type, largest ? largest->budget + 1 : choice_.least_budget);
                largest          = found ? found : largest;
            }
        }
        return largest;
    }

  private:
    static std::vector<int32_t> smallest_types() { return { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_F16 }; }

    std::optional<edgekv_setting> best_of(const std::vector<int32_t> & types) const {
        std::optional<edgekv_setting> best;
        for (const uint32_t block : blocks_to_try()) {
            const uint32_t enough = choice_.budget != 0 ? choice_.budget : std::min(enough_cells, most_cells(block));
            for (const int32_t type : types) {
                const auto found = fitting(block, type, choice_.least_budget);
                if (found && (!best || found->budget > best->budget)) {
                    best = found;
                }
                if (best && best->budget >= enough) {
                    return with_longer_block(*best);
                }
            }
        }
        return best ? with_longer_block(*best) : best;
    }

    std::vector<uint32_t> blocks_to_try() const {
        if (choice_.block != 0) {
            return { choice_.block };
        }
        std::vector<uint32_t> tried;
        std::copy_if(std::begin(blocks), std::end(blocks), std::back_inserter(tried),
                     [&](uint32_t block) { return block >= (full_blocks_ ? blocks[0] : choice_.least_block); });
        return tried;
    }

    // With probes, the longest block that takes few of the cells.
    edgekv_setting with_longer_block(const edgekv_setting & best) const {
        if (choice_.block != 0 || choice_.n_probe == 0 || best.block != blocks[0]) {
            return best;
        }
        for (const uint32_t block : longer_blocks) {
            const uint32_t least = cells_per_spare * block;
            if ((choice_.budget != 0 ? choice_.budget : most_cells(block)) >= least) {
                if (const auto longer = fitting(block, best.kv_type, least)) {
                    return *longer;
                }
            }
        }
        return best;
    }

    // The budget asked for, or else the largest one that fits, which is at least `least`; none where it does not fit.
    std::optional<edgekv_setting> fitting(uint32_t block, int32_t type, uint32_t least) const {
        edgekv_setting best = { choice_.budget != 0 ? choice_.budget : least, block, type, repack_, n_streamed_ };
        if (!does_fit(best)) {
            return std::nullopt;
        }
        if (choice_.budget == 0) {
            uint32_t fails = std::max(best.budget, most_cells(block)) + 1;
            while (fails - best.budget > 1) {
                edgekv_setting tried = best;
                tried.budget         = best.budget + (fails - best.budget) / 2;
                if (does_fit(tried)) {
                    best = tried;
                } else {
                    fails = tried.budget;
                }
            }
        }
        return best;
    }

    bool does_fit(const edgekv_setting & setting) const {
        try {
            return fits_(setting);
        } catch (const Error & error) {
            const int32_t named = choice_.kv_type != 0 ? choice_.kv_type : GGML_TYPE_F16;
            if (error.status != EDGEKV_STATUS_INVALID_ARGUMENT || setting.kv_type == named) {
                throw;
            }
            return false;
        }
    }

    uint32_t most_cells(uint32_t block) const { return edgekv_plan_most_cells(&choice_, block); }

    const edgekv_choice & choice_;
    const Fits &          fits_;
    const int32_t         repack_;
    const uint32_t        n_streamed_;
    const bool            full_blocks_;
};

std::optional<edgekv_setting> best_with(const edgekv_choice & choice, const Fits & fits, uint32_t n_streamed, bool full_blocks) {
    if (choice.repack >= 0) {
        return Choosing(choice, fits, choice.repack, n_streamed, full_blocks).best();
    }
    const auto repacked = Choosing(choice, fits, 1, n_streamed, full_blocks).best();
    return repacked ? repacked : Choosing(choice, fits, 0, n_streamed, full_blocks).best();
}

// Whether a setting has so many cells, or as many as are named, in a type whose rounding does not show.
bool has_cells(const edgekv_choice & choice, const std::optional<edgekv_setting> & found, uint32_t n_cells) {
    return found && (choice.kv_type != 0 || found->kv_type != GGML_TYPE_Q4_0) &&
           found->budget >= (choice.budget != 0 ? choice.budget : std::min(n_cells, edgekv_plan_most_cells(&choice, found->block)));
}

// The setting with the fewest streamed layers that has so many cells, or none.
std::optional<edgekv_setting> least_streamed(const edgekv_choice & choice, const Fits & fits, uint32_t n_cells, bool full_blocks) {
    auto best = best_with(choice, fits, choice.n_layers, full_blocks);
    if (!has_cells(choice, best, n_cells)) {
        return std::nullopt;
    }
    uint32_t too_few = 0;
    while (best->n_streamed - too_few > 1) {
        const uint32_t tried = too_few + (best->n_streamed - too_few) / 2;
        const auto     found = best_with(choice, fits, tried, full_blocks);
        if (has_cells(choice, found, n_cells)) {
            best = found;
        } else {
            too_few = tried;
        }
    }
    return best;
}

} // namespace

std::optional<edgekv_setting> best_setting(const edgekv_choice & choice, const Fits & fits) {
    const auto named = best_with(choice, fits, std::max(choice.n_streamed, 0), false);
    if (choice.n_streamed >= 0 || has_cells(choice, named, few_cells)) {
        return named;
    }
    for (const auto & [n_cells, full_blocks] : { std::pair(enough_cells, true), std::pair(few_cells, true), std::pair(few_cells, false) }) {
        if (const auto found = least_streamed(choice, fits, n_cells, full_blocks)) {
            return found;
        }
    }
    const auto all = best_with(choice, fits, choice.n_layers, false);
    return all && (!named || all->budget > named->budget) ? all : named;
}

std::optional<edgekv_setting> largest_setting(const edgekv_choice & choice, const Fits & fits) {
    edgekv_choice open = choice;
    open.budget        = 0;
    std::optional<edgekv_setting> largest;
    std::vector<uint32_t>         streamed = { static_cast<uint32_t>(std::max(choice.n_streamed, 0)) };
    if (choice.n_streamed < 0) {
        streamed.push_back(choice.n_layers); // which takes the least, but for models of one or two layers
    }
    for (const uint32_t n_streamed : streamed) {
        for (const int32_t repack : { 0, 1 }) {
            if (choice.repack >= 0 && choice.repack != repack) {
                continue;
            }
            open.least_budget = largest ? largest->budget + 1 : choice.least_budget;
            const auto found  = Choosing(open, fits, repack, n_streamed).largest();
            largest           = found ? found : largest;
        }
    }
    return largest;
}

} // namespace edgekv

using namespace edgekv;

namespace {

using Search = std::optional<edgekv_setting> (*)(const edgekv_choice &, const Fits &);

// Search for a setting, with a callback that says which settings fit.
enum edgekv_status search_by(Search search, const edgekv_choice * choice, edgekv_setting_fits fits, void * user_data,
                             edgekv_setting * chosen, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(choice && fits && chosen, "choice, fits or chosen is NULL");
        const auto found = search(*choice, [&](const edgekv_setting & setting) {
            const int32_t answer = fits(user_data, &setting);
            if (answer < 0) {
                throw answer == -1 ? Error(EDGEKV_STATUS_INVALID_ARGUMENT, "the model cannot have the cache type; name another") :
                                     Error(EDGEKV_STATUS_INTERNAL, "the callback gave up");
            }
            return answer != 0;
        });
        if (!found) {
            throw Error(EDGEKV_STATUS_OVER_CEILING, "no setting fits; raise the ceiling");
        }
        *chosen = *found;
    });
}

} // namespace

uint32_t edgekv_plan_most_cells(const struct edgekv_choice * choice, uint32_t block) {
    if (choice == nullptr || choice->repositions == 0) {
        return choice == nullptr ? 0 : choice->n_ctx_train;
    }
    const int64_t room = int64_t(choice->n_ctx_train) - block - choice->n_probe;
    return static_cast<uint32_t>(std::max<int64_t>(0, room) / (choice->ragged != 0 ? EDGEKV_HEAD_LEAST : 1));
}

enum edgekv_status edgekv_plan_choose(const struct edgekv_choice * choice, edgekv_setting_fits fits, void * user_data,
                                      struct edgekv_setting * chosen, char * err, size_t err_size) {
    return search_by(best_setting, choice, fits, user_data, chosen, err, err_size);
}

enum edgekv_status edgekv_plan_largest(const struct edgekv_choice * choice, edgekv_setting_fits fits, void * user_data,
                                       struct edgekv_setting * chosen, char * err, size_t err_size) {
    return search_by(largest_setting, choice, fits, user_data, chosen, err, err_size);
}
