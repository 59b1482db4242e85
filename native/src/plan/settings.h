// The setting that serves best, of all that fit.
#pragma once

#include "edgekv.h"

#include <functional>
#include <optional>

namespace edgekv {

// Whether a setting fits. Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT) where the model cannot have it.
using Fits = std::function<bool(const edgekv_setting &)>;

// None where nothing fits. Throws what `fits` throws; but a type of cache that the model cannot have, and nobody named, does
// not fit.
//
// More cells matter most until there are enough of them; from then on, exact and fast cells matter more. So the first setting
// with enough cells is taken, in this order: F16 before Q8_0, and both at block 128 before both at 64 and at 32. If no setting
// has enough cells, the one with the most is taken. The rounding of Q4_0 shows in the output, so it is taken only if nothing
// else fits. All that is done with repacked weights first, which are faster and take the bytes of mapped ones.
//
// Streamed weights cost speed, few cells cost answers. So layers are streamed only if fewer than 128 cells fit beside all weights
// (or fewer than are named), and then as few layers as leave 512 cells: one layer more costs little where some are streamed, and
// its bytes are those of many cells. What is left over goes to cells, too. Where all layers do not leave so many, 128 must do.
// Streamed layers are read for every block, so short blocks are taken only if too few cells fit beside one of 128.
//
// A probe is fed after each block, or every 160 to 256 tokens where blocks have 128 or fewer. Longer blocks need fewer probes,
// so they are taken where cells abound.
std::optional<edgekv_setting> best_setting(const edgekv_choice & choice, const Fits & fits);

// The setting with the largest budget of all that fit, whatever its type of cache and block. Throws what best_setting throws.
std::optional<edgekv_setting> largest_setting(const edgekv_choice & choice, const Fits & fits);

} // namespace edgekv
