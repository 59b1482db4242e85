// Turning stored keys to other positions.
#pragma once

#include "rope/rope_angles.h"

#include "ggml.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// A key that RoPE turned at position p becomes what RoPE would have made of it at p + delta:
//
//     (a, b) of pair i  ->  (a cos t - b sin t, a sin t + b cos t)      t = delta * w[i]
//
// which, rotated and rounded as the row is stored, costs one more rounding of its type. One thread at a time.
class RopeTurn {
  public:
    // Rows of head_dim elements of `type`, Hadamard-rotated in runs of `rotation` (0 = as they are). Throws Error if these
    // do not fit, and std::bad_alloc.
    RopeTurn(const RopeAngles & angles, uint32_t head_dim, int32_t type, uint32_t rotation);

    // Turn one row in place, stored or as floats. Elements that no block or run shares with turned ones keep their bytes, and
    // with delta 0 all do. Quick where delta is near that of the row before.
    void turn(void * row, int32_t delta);
    void turn_floats(float * row, int32_t delta);

  private:
    void turn_on(int32_t delta);
    void turn_part(float * part, int32_t delta); // elements [begin_, begin_ + n_turned_) of a row

    bool                neighbours_;
    uint32_t            begin_;    // elements that are read and written: from here,
    uint32_t            n_turned_; // so many,
    uint32_t            skipped_;  // of which those that turn begin here
    uint32_t            rotation_;
    int32_t             type_;
    ggml_to_float_t     to_float_;
    ggml_from_float_t   from_float_;
    std::vector<double> w_;
    std::vector<double> one_;       // cosines of all pairs, then sines, of a turn by one position
    std::vector<double> now_;       // the same of a turn by `delta_`
    std::vector<float>  turn_;      // now_, rounded
    std::vector<float>  part_;      // of a row, what is read and written
    int32_t             delta_ = 0;
};

} // namespace edgekv
