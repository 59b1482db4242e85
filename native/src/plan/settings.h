// The setting that serves best, of all that fit.
#pragma once

#include "edgekv.h"
#include "plan/budget_search.h"

#include <optional>

namespace edgekv {

// None if nothing fits. Throws what `spare` throws; but a type of cache that the model cannot have, and nobody named, does not fit.
//
// Cells decide until there are enough of them, then speed, then cells again. Enough are 2048, the cells of a trained context
// that is shorter, or those that are named. From the fastest on, settings come in this order:
//   1. all weights in memory; blocks of 512 if a probe follows each block, then of 128, 64 and 32. If more than 128 tokens are decoded
//      at once, as on a GPU, where an eviction takes as long as many tokens, blocks of twice as many come first, then of as many
//   2. the fewest streamed layers, with a block of 128 or longer
//   3. if evicted tokens may come back, the same for half the cells, and half of those, while they are 512 or more
//   4. the fewest streamed layers, with any block
// The first setting with enough cells is taken. Only the fastest of all takes more of them than are enough; what another one leaves
// free goes to F16. If none has enough, the one with the most cells is taken. So more memory never gives fewer cells: if it makes
// room for a faster setting, the slower one had no more than enough.
//
// Q8_0 holds nearly twice the cells of F16, so F16 is taken if it has as many cells. The rounding of Q4_0 shows in the output, so
// it has to be named. All that is done with repacked weights first, which are faster and take the bytes of mapped ones.
std::optional<edgekv_setting> best_setting(const edgekv_choice & choice, const Spare & spare);

// The setting with the largest budget of all that fit, of those that are chosen from. Throws what best_setting throws.
std::optional<edgekv_setting> largest_setting(const edgekv_choice & choice, const Spare & spare);

} // namespace edgekv
