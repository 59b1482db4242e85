// Budgets that are not the same everywhere: shared by heads, or falling from layer to layer.
#pragma once

#include "evict/select.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

// Split n_layer * budget cells over layers (PyramidKV, arXiv:2406.02069): budgets (n_layer,). Beyond the protected cells the
// last layer gets 1/beta of the mean, the first as much more, those between fall linearly; none gets more than `largest`.
// beta >= 1, or 0 = all alike. The paper's observation window is here all that is protected, so that no layer gets less.
// Throws Error if the protected cells exceed the budget, or the budget `largest`.
void layer_budgets(double beta, size_t n_layer, uint32_t budget, uint32_t n_protected, uint32_t largest, uint32_t * budgets);

// Split n_heads * budget cells over heads (Ada-KV, arXiv:2407.11550, Algorithms 1 and 2): budgets (n_heads,). The best
// scores of all heads together, beside the protected cells, say what each should have; the share `safeguard` is split
// evenly. No head gets more than it holds, more than `largest`, or less than its protected cells; what a head cannot take
// the others get. What a head keeps beside its budget is added. `line` is scratch for the scores of all cells. Throws Error as
// layer_budgets, and for scores that are not finite.
void allot(const Ranked * heads, size_t n_heads, const edgekv_protection & protection, uint32_t budget, uint32_t largest,
           double safeguard, float * line, uint32_t * budgets);

} // namespace edgekv
