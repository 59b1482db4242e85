// RoPE of a layer's keys, as llama.cpp's graph applies it.
#pragma once

#include "ggml.h"

#include <array>
#include <cstdint>

namespace edgekv {

// Read off the graph, because hyperparameters do not say it: some models leave out layers, take factors of their own, or
// change the key again once it is turned.
struct KeyRope {
    // GGML_OP_ROPE: keys are stored as RoPE leaves them; GGML_OP_NONE: there is no RoPE; else the operation that either
    // changes turned keys or hides what came before it.
    ggml_op                                                  op = GGML_OP_NONE;
    std::array<int32_t, GGML_MAX_OP_PARAMS / sizeof(int32_t)> params{};          // of GGML_OP_ROPE
    const ggml_tensor *                                      factors = nullptr; // a weight (n_rot / 2, ...), or NULL
    uint32_t                                                 first   = 0;       // element of a key that turned ones begin at
};

// k (head_dim, ...) as it is about to be stored, Hadamard-rotated or not.
KeyRope rope_of(const ggml_tensor * k);

// The run of the Hadamard rotation of keys or values that are about to be stored; 0 = they are as they are.
uint32_t rotation_of(const ggml_tensor * rows);

} // namespace edgekv
