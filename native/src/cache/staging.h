// Who scores, moves and turns rows.
#pragma once

namespace edgekv {

enum class Staging {
    automatic, // the host, in place, where rows lie in its memory; else the device, as far as it can
    copies,    // the host, in a copy of one head, wherever rows lie
    graphs,    // what computes the model's graphs, wherever rows lie
};

// Automatic, unless EDGEKV_STAGING in the environment is "copies" or "graphs": tests compare the three.
Staging staging();

} // namespace edgekv
