// Keys as they were before RoPE.
#pragma once

#include "kernels/kernels.h"
#include "rope/rope_angles.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// Unlike RopeTurn it has no state that goes from row to row: threads share it, and rows may come in any order of positions.
class RopeUndo {
  public:
    explicit RopeUndo(const RopeAngles & angles) : first_(angles.first), neighbours_(angles.neighbours) {
        for (const double w : angles.w) {
            turns_.push_back(w / 6.283185307179586);
        }
    }

    bool turns() const { return !turns_.empty(); } // else keys say nothing of their positions

    // row, as floats and not rotated: turned at `position` -> at position 0
    void turn_back(float * row, int32_t position) const {
        kernels().turn_back(row + first_, turns_.data(), turns_.size(), neighbours_, position);
    }

  private:
    uint32_t            first_; // element of a row that those which turn begin at
    bool                neighbours_;
    std::vector<double> turns_; // of each pair, in full circles per position
};

} // namespace edgekv
