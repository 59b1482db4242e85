// Weights that go to a device: read from the file and sent piece by piece, so that no weight is ever held whole on the way.
#pragma once

#include "ggml.h"

#include <cstddef>
#include <functional>

namespace edgekv {

// Whether any part of a weight can be sent alone: it lies on a device as it lies in the file.
bool goes_in_pieces(const ggml_tensor & weight);

// Send a weight whose bytes [offset, offset + n) `read` copies to where it is told. Throws what `read` throws, and std::bad_alloc.
void send_in_pieces(ggml_tensor & weight, const std::function<void(void * to, size_t offset, size_t n)> & read);

} // namespace edgekv
