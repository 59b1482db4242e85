// Quantised rows side by side, as ggml repacks them: a plain reference, for every order and on every processor.
#pragma once

#include "ggml.h"
#include "matmul/row_order.h"

#include <cstddef>
#include <cstdint>
#include <vector>

std::vector<uint8_t> side_by_side(ggml_type type, const std::vector<uint8_t> & rows, size_t row_bytes, edgekv_row_order order);
