// How far RoPE turns each pair of a key's elements from one position to the next.
#pragma once

#include "rope/key_rope.h"

#include <cstdint>
#include <string>
#include <vector>

namespace edgekv {

struct RopeAngles {
    uint32_t            first      = 0;     // element of a key that those which turn begin at
    uint32_t            n_rot      = 0;     // elements that turn; 0 = the key says nothing of its position
    bool                neighbours = false; // pair i is elements 2i, 2i + 1 of them; else i, i + n_rot/2
    std::vector<double> w;                  // (n_rot/2,) radians per position
};

// Measured with ggml's own operation, so with all scaling it knows, and to 1e-7 of what its float32 arithmetic means. YaRN's
// magnitude is no part of an angle. Throws Error(EDGEKV_STATUS_UNSUPPORTED) where a key cannot be turned by an angle that is
// linear in the position.
RopeAngles rope_angles(const KeyRope & rope);

// Throws what rope_angles(rope) does. The factors need not be loaded: they change the angles, and not whether there are any.
void require_turnable(const KeyRope & rope);

// Throw Error(EDGEKV_STATUS_UNSUPPORTED): keys cannot be turned to other positions.
[[noreturn]] void refuse_turns(const std::string & reason);

} // namespace edgekv
