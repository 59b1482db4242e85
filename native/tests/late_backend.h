// A device of ggml's that computes as late as one may: graphs wait until somebody synchronises. It lies in the host's memory, which
// it does not admit, and has ggml's CPU backend compute.
#pragma once

#include "ggml-backend.h"

#include <cstddef>

namespace late {

ggml_backend_dev_t device(); // the one that there is

// Buffers that were freed while a graph was still to read or write there.
size_t n_freed_early();

// Graphs that wait to be computed.
size_t n_waiting();

} // namespace late
