// A device of ggml's that counts what it is told to do, and has ggml's CPU backend do it.
#pragma once

#include "ggml-backend.h"

#include <cstdint>

namespace counting {

struct Counts {
    uint32_t n_graphs;
    uint32_t n_kernels; // nodes that compute something
    uint32_t n_waits;   // synchronisations of the device
    uint32_t n_uploads; // copies from the host, each of which waits on a GPU as well
    uint32_t n_reads;   // copies to the host, likewise
};

ggml_backend_dev_t device(); // the one that there is

Counts take(); // since the last call

} // namespace counting
