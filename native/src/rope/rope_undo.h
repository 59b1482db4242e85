// Keys as they were before RoPE.
#pragma once

#include "kernels/kernels.h"
#include "rope/rope_angles.h"

#include <cmath>
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

    // Cosines of all pairs, then sines, of the mean of turns by 0, 1, ... n - 1 positions: geometric sums of exp(i w).
    void write_mean_turn(uint32_t n, float * mean) const {
        for (size_t i = 0; i < turns_.size(); ++i) {
            const double half   = turns_[i] * 3.141592653589793;
            const double length = std::sin(half) == 0.0 ? 1.0 : std::sin(half * n) / (n * std::sin(half));

            mean[i]                 = static_cast<float>(length * std::cos(half * (n - 1)));
            mean[i + turns_.size()] = static_cast<float>(length * std::sin(half * (n - 1)));
        }
    }

    // The same row: turned at a position -> what that mean makes of it from `delta` positions further on.
    void turn_ahead(float * row, int32_t delta, const float * mean) const {
        turn_back(row, -delta);
        const size_t n = turns_.size();
        for (size_t i = 0; i < n; ++i) {
            float &     a = row[first_ + (neighbours_ ? 2 * i : i)];
            float &     b = row[first_ + (neighbours_ ? 2 * i + 1 : i + n)];
            const float x = a, y = b;

            a = x * mean[i] - y * mean[i + n];
            b = x * mean[i + n] + y * mean[i];
        }
    }

  private:
    uint32_t            first_; // element of a row that those which turn begin at
    bool                neighbours_;
    std::vector<double> turns_; // of each pair, in full circles per position
};

} // namespace edgekv
