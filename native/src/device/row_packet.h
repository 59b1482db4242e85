// Rows of a pool as one copy takes them between the host and a device.
#pragma once

#include "device/graph.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

// Keys, then values, then which rows of the pool these keys are, and which these values, each an I32. Each part begins where a device
// reads.
struct RowPacket {
    size_t key_bytes; // of a row
    size_t value_bytes;
    size_t n_keys;
    size_t n_values;

    size_t values() const { return Graph::rounded(n_keys * key_bytes); }
    size_t key_rows() const { return values() + Graph::rounded(n_values * value_bytes); }
    size_t value_rows() const { return key_rows() + Graph::rounded(n_keys * sizeof(int32_t)); }
    size_t bytes() const { return value_rows() + Graph::rounded(n_values * sizeof(int32_t)); }
};

} // namespace edgekv
