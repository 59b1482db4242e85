// Turning stored keys to other positions.
#pragma once

#include "rope_angles.h"

#include "ggml.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// A key that RoPE turned at position p becomes what RoPE would have made of it at p + delta:
//
//     (a, b) of pair i  ->  (a cos t - b sin t, a sin t + b cos t)      t = delta * w[i]
//
// which, rotated and rounded as the row is stored, costs one more rounding of its type.
class RopeTurn {
  public:
    // Rows of head_dim elements of `type`, Hadamard-rotated in runs of `rotation` (0 = as they are). Turns of up to `reach`
    // positions either way are tabulated. Throws Error where these do not fit, and std::bad_alloc.
    RopeTurn(const RopeAngles & angles, uint32_t head_dim, int32_t type, uint32_t rotation, uint32_t reach = 512);

    // Turn one row in place; scratch (2 * head_dim,). Elements that no block or run shares with turned ones keep their bytes,
    // and with delta 0 all do. Any number of threads, each with a scratch of its own.
    void turn(void * row, int32_t delta, float * scratch) const;

    uint64_t bytes() const { return (table_.size() + w_.size() * 2) * sizeof(float); }

  private:
    std::vector<double> w_;
    bool                neighbours_;
    uint32_t            n_turned_;   // elements that are read and written
    uint32_t            rotation_;
    ggml_to_float_t     to_float_;
    ggml_from_float_t   from_float_;
    std::vector<float>  table_;      // by delta - 1: cosines of all pairs, then sines
    uint32_t            reach_;
};

} // namespace edgekv
