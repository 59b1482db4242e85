// Weights that go to a device: read from the file and sent piece by piece, so that no weight is ever held whole on the way.
#pragma once

#include "ggml.h"

#include <cstddef>

struct llama_file;

namespace edgekv {

// Send a weight that lies in a file from `begin` on. False, and nothing is sent, where it does not lie on a device as it lies in the
// file, so that parts of it cannot be sent alone. Throws what reading throws, and std::bad_alloc.
bool send_in_pieces(ggml_tensor & weight, llama_file & file, size_t begin);

} // namespace edgekv
