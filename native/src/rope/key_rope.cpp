#include "rope/key_rope.h"

#include <algorithm>

namespace edgekv {

static bool is_hadamard(const ggml_tensor * product) { return product->op_params[1] == GGML_HINT_SRC0_IS_HADAMARD; }

uint32_t rotation_of(const ggml_tensor * rows) {
    const ggml_tensor * tensor = rows;
    while (tensor->op == GGML_OP_RESHAPE || tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_CONT) {
        tensor = tensor->src[0];
    }
    return tensor->op == GGML_OP_MUL_MAT && is_hadamard(tensor) ? static_cast<uint32_t>(tensor->src[0]->ne[0]) : 0;
}

// Of a key that is two parts side by side, one of which turns.
static KeyRope rope_of_parts(const ggml_tensor * key) {
    const bool side_by_side = key->op_params[0] == 0;
    KeyRope    left = rope_of(key->src[0]), right = rope_of(key->src[1]);
    if (side_by_side && right.op == GGML_OP_NONE) {
        return left;
    }
    if (side_by_side && left.op == GGML_OP_NONE) {
        right.first += static_cast<uint32_t>(key->src[0]->ne[0]);
        return right;
    }
    KeyRope rope;
    rope.op = GGML_OP_CONCAT;
    return rope;
}

KeyRope rope_of(const ggml_tensor * k) {
    KeyRope rope;
    ggml_op change = GGML_OP_NONE; // the last one before keys are stored
    for (const ggml_tensor * tensor = k; tensor != nullptr; tensor = tensor->src[0]) {
        while (tensor->op == GGML_OP_MUL_MAT && is_hadamard(tensor)) {
            tensor = tensor->src[1];
        }
        switch (tensor->op) {
            case GGML_OP_RESHAPE:
            case GGML_OP_CONT:
            case GGML_OP_VIEW:
            case GGML_OP_REPEAT: // one turned part that all heads share
                break;
            case GGML_OP_CONCAT:
                if (change == GGML_OP_NONE && tensor->ne[0] == k->ne[0]) {
                    return rope_of_parts(tensor);
                }
                rope.op = change == GGML_OP_NONE ? GGML_OP_VIEW : change;
                return rope;
            case GGML_OP_ADD: // biases and norms of keys come before RoPE, if all is well
            case GGML_OP_MUL:
            case GGML_OP_NORM:
            case GGML_OP_RMS_NORM:
            case GGML_OP_SCALE:
            case GGML_OP_CLAMP:
                change = change == GGML_OP_NONE ? tensor->op : change;
                break;
            case GGML_OP_ROPE:
                // a view of less or more than a head would move the pairs
                rope.op = change != GGML_OP_NONE ? change : tensor->ne[0] == k->ne[0] ? GGML_OP_ROPE : GGML_OP_VIEW;
                std::copy_n(tensor->op_params, rope.params.size(), rope.params.begin());
                rope.factors = tensor->src[2];
                return rope;
            case GGML_OP_NONE:
            case GGML_OP_MUL_MAT: // the projection to keys
                return rope;
            default:
                rope.op = tensor->op;
                return rope;
        }
    }
    return rope;
}

} // namespace edgekv
