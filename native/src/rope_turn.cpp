#include "rope_turn.h"

#include "rows.h"
#include "scratch.h"
#include "status.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

#if defined(_MSC_VER)
#    define EDGEKV_RESTRICT __restrict
#else
#    define EDGEKV_RESTRICT __restrict__
#endif

// Cosines of all pairs, then sines.
void write_turn(const std::vector<double> & w, double delta, float * turn) {
    for (size_t i = 0; i < w.size(); ++i) {
        turn[i]            = static_cast<float>(std::cos(delta * w[i]));
        turn[i + w.size()] = static_cast<float>(std::sin(delta * w[i]));
    }
}

void turn_halves(float * EDGEKV_RESTRICT first, float * EDGEKV_RESTRICT second, const float * EDGEKV_RESTRICT cosines,
                 const float * EDGEKV_RESTRICT sines, float sign, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const float a = first[i], b = second[i];
        const float c = cosines[i], s = sign * sines[i];

        first[i]  = a * c - b * s;
        second[i] = a * s + b * c;
    }
}

void turn_neighbours(float * EDGEKV_RESTRICT row, const float * EDGEKV_RESTRICT cosines, const float * EDGEKV_RESTRICT sines,
                     float sign, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const float a = row[2 * i], b = row[2 * i + 1];
        const float c = cosines[i], s = sign * sines[i];

        row[2 * i]     = a * c - b * s;
        row[2 * i + 1] = a * s + b * c;
    }
}

} // namespace

RopeTurn::RopeTurn(const RopeAngles & angles, uint32_t head_dim, int32_t type, uint32_t rotation, uint32_t reach) :
    w_(angles.w), neighbours_(angles.neighbours), rotation_(rotation), to_float_(row_to_float(type)),
    from_float_(row_from_float(type)), reach_(reach) {
    const auto n_block = static_cast<uint32_t>(ggml_blck_size(static_cast<ggml_type>(type)));
    require(head_dim % n_block == 0, "a row is not whole blocks of its type");
    require(rotation == 0 || ((rotation & (rotation - 1)) == 0 && head_dim % rotation == 0),
            "the rotation is not a power of two that divides a row");
    if (angles.n_rot % 2 != 0 || angles.n_rot > head_dim) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "n_rot is %u; it must be even, and at most the %u elements of a row", angles.n_rot,
             head_dim);
    }
    require(w_.size() == angles.n_rot / 2, "there is not one angle a pair");
    require(std::all_of(w_.begin(), w_.end(), [](double w) { return std::isfinite(w); }), "an angle is NaN or infinite");

    n_turned_ = static_cast<uint32_t>(round_up(angles.n_rot, std::max(n_block, rotation)));
    table_.resize(size_t(reach) * angles.n_rot);
    for (uint32_t delta = 1; delta <= reach; ++delta) {
        write_turn(w_, delta, table_.data() + (delta - 1) * size_t(angles.n_rot));
    }
}

void RopeTurn::turn(void * row, int32_t delta, float * scratch) const {
    const size_t n_pairs = w_.size();
    if (delta == 0 || n_pairs == 0) {
        return;
    }
    const uint32_t distance = delta < 0 ? 0u - static_cast<uint32_t>(delta) : static_cast<uint32_t>(delta);
    const float *  cosines  = scratch + n_turned_;
    if (distance <= reach_) {
        cosines = table_.data() + (distance - 1) * 2 * n_pairs;
    } else {
        write_turn(w_, distance, scratch + n_turned_);
    }
    const float * sines = cosines + n_pairs;
    const float   sign  = delta < 0 ? -1.0f : 1.0f;

    to_float_(row, scratch, n_turned_);
    if (rotation_ > 0) {
        rotate_hadamard(scratch, n_turned_, rotation_);
    }
    if (neighbours_) {
        turn_neighbours(scratch, cosines, sines, sign, n_pairs);
    } else {
        turn_halves(scratch, scratch + n_pairs, cosines, sines, sign, n_pairs);
    }
    if (rotation_ > 0) {
        rotate_hadamard(scratch, n_turned_, rotation_);
    }
    from_float_(scratch, row, n_turned_);
}

} // namespace edgekv
