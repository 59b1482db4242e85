// Weights that go to a device, and experts that are repacked: read from the file and sent piece by piece, so that none of them is
// ever held whole on the way.
#pragma once

#include "ggml.h"

#include <cstddef>

struct llama_file;

namespace edgekv {

// Send a weight that lies in a file from `begin` on. False, and nothing is sent, where parts of it cannot be sent alone: it neither lies
// on a device as it lies in the file, nor holds experts, each of which can be repacked. Throws what reading throws, and std::bad_alloc.
bool send_in_pieces(ggml_tensor & weight, llama_file & file, size_t begin);

} // namespace edgekv
