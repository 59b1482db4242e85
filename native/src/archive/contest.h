// Which of the positions that heads could be given they get.
#pragma once

#include "cache/cache.h"

#include <cstddef>
#include <vector>

namespace edgekv {

// Leave the n best positions of some heads, which share rows, and their scores; of equal scores those of earlier heads, and earlier ones.
// scores: (n_heads of all, found.most), of found.positions
void keep_best(edgekv_recalled & found, std::vector<float> & scores, const std::vector<size_t> & heads, size_t n);

} // namespace edgekv
