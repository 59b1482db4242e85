#include "rope/rope_turn.h"

#include "hooks/status.h"
#include "kernels/row_types.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

#if defined(_MSC_VER)
#    define EDGEKV_RESTRICT __restrict
#else
#    define EDGEKV_RESTRICT __restrict__
#endif

constexpr int64_t max_steps = 16; // positions that are gone one by one, rather than by cosines and sines anew

// Cosines of all pairs, then sines.
void write_turn(const std::vector<double> & w, double delta, std::vector<double> & turn) {
    for (size_t i = 0; i < w.size(); ++i) {
        turn[i]            = std::cos(delta * w[i]);
        turn[i + w.size()] = std::sin(delta * w[i]);
    }
}

// Turn a turn by another one, forth (sign 1) or back (-1).
void add_turn(double * EDGEKV_RESTRICT turn, const double * EDGEKV_RESTRICT other, double sign, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const double c = turn[i], s = turn[i + n];
        const double d = other[i], t = sign * other[i + n];

        turn[i]     = c * d - s * t;
        turn[i + n] = s * d + c * t;
    }
}

void turn_halves(float * EDGEKV_RESTRICT first, float * EDGEKV_RESTRICT second, const float * EDGEKV_RESTRICT cosines,
                 const float * EDGEKV_RESTRICT sines, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const float a = first[i], b = second[i];
        const float c = cosines[i], s = sines[i];

        first[i]  = a * c - b * s;
        second[i] = a * s + b * c;
    }
}

void turn_neighbours(float * EDGEKV_RESTRICT row, const float * EDGEKV_RESTRICT cosines, const float * EDGEKV_RESTRICT sines,
                     size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const float a = row[2 * i], b = row[2 * i + 1];
        const float c = cosines[i], s = sines[i];

        row[2 * i]     = a * c - b * s;
        row[2 * i + 1] = a * s + b * c;
    }
}

} // namespace

RopeTurn::RopeTurn(const RopeAngles & angles, uint32_t head_dim, int32_t type, uint32_t rotation) :
    neighbours_(angles.neighbours), rotation_(rotation), type_(type), to_float_(row_to_float(type)), from_float_(row_from_float(type)),
    w_(angles.w) {
    const auto n_block = static_cast<uint32_t>(ggml_blck_size(static_cast<ggml_type>(type)));
    require(head_dim % n_block == 0, "a row is not whole blocks of its type");
    require(rotation == 0 || ((rotation & (rotation - 1)) == 0 && head_dim % rotation == 0),
            "the rotation is not a power of two that divides a row");
    if (angles.n_rot % 2 != 0 || angles.first > head_dim || angles.n_rot > head_dim - angles.first) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "n_rot is %u; it must be even, and at most the %u elements of a row from %u on",
             angles.n_rot, head_dim, angles.first);
    }
    require(w_.size() == angles.n_rot / 2, "there is not one angle a pair");
    require(std::all_of(w_.begin(), w_.end(), [](double w) { return std::isfinite(w); }), "an angle is NaN or infinite");

    const uint32_t step = std::max(n_block, rotation); // both are powers of two
    begin_    = angles.first / step * step;
    skipped_  = angles.first - begin_;
    n_turned_ = static_cast<uint32_t>(round_up(skipped_ + angles.n_rot, step));
    part_.resize(n_turned_);
    turn_.resize(angles.n_rot);
    one_.resize(angles.n_rot);
    now_.resize(angles.n_rot);
    write_turn(w_, 1.0, one_);
    write_turn(w_, 0.0, now_);
}

// Neighbouring rows differ by few positions, and a turn by one more is much cheaper than cosines and sines.
void RopeTurn::turn_on(int32_t delta) {
    const int64_t steps = int64_t(delta) - delta_;
    if (steps == 0) {
        return;
    }
    if (std::abs(steps) > max_steps) {
        write_turn(w_, delta, now_);
    }
    for (int64_t i = 0; std::abs(steps) <= max_steps && i < std::abs(steps); ++i) {
        add_turn(now_.data(), one_.data(), steps < 0 ? -1.0 : 1.0, w_.size());
    }
    std::transform(now_.begin(), now_.end(), turn_.begin(), [](double value) { return static_cast<float>(value); });
    delta_ = delta;
}

void RopeTurn::turn(void * row, int32_t delta) {
    if (delta == 0 || w_.empty()) {
        return;
    }
    char * part = static_cast<char *>(row) + ggml_row_size(static_cast<ggml_type>(type_), begin_);
    to_float_(part, part_.data(), n_turned_);
    turn_part(part_.data(), delta);
    from_float_(part_.data(), part, n_turned_);
}

void RopeTurn::turn_floats(float * row, int32_t delta) {
    if (delta != 0 && !w_.empty()) {
        turn_part(row + begin_, delta);
    }
}

void RopeTurn::turn_part(float * part, int32_t delta) {
    turn_on(delta);
    const size_t  n_pairs = w_.size();
    const float * cosines = turn_.data();
    const float * sines   = cosines + n_pairs;
    float *       turned  = part + skipped_;
    if (rotation_ > 0) {
        rotate_hadamard(part, n_turned_, rotation_);
    }
    if (neighbours_) {
        turn_neighbours(turned, cosines, sines, n_pairs);
    } else {
        turn_halves(turned, turned + n_pairs, cosines, sines, n_pairs);
    }
    if (rotation_ > 0) {
        rotate_hadamard(part, n_turned_, rotation_);
    }
}

} // namespace edgekv
