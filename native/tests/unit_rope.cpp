// RoPE found in graphs, its angles, and rows turned within their bounds.
#include "check.h"
#include "ggml-cpp.h"
#include "hooks/status.h"
#include "rope/rope_turn.h"
#include "rows/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

using namespace edgekv;

namespace {

constexpr int64_t head_dim = 64, n_rot = 48, n_heads = 2, n_tokens = 3;
constexpr float   base = 10000.0f;

template <typename Body> std::string message_of(edgekv_status status, const Body & body) {
    char err[512] = "";
    CHECK(guard(err, sizeof(err), body) == status);
    return err;
}

bool contains(const std::string & text, const char * part) { return text.find(part) != std::string::npos; }

// ---- graphs ----

// What it takes to build keys: nothing is computed.
struct Graph {
    ggml_context_ptr context{ ggml_init({ 256 * ggml_tensor_overhead(), nullptr, true }) };

    ggml_context * get() const { return context.get(); }
    ggml_tensor *  matrix(int64_t a, int64_t b) const { return ggml_new_tensor_2d(get(), GGML_TYPE_F32, a, b); }

    // Keys as a projection gives them, (head_dim, n_heads, n_tokens).
    ggml_tensor * keys() const {
        ggml_tensor * projected = ggml_mul_mat(get(), matrix(96, head_dim * n_heads), matrix(96, n_tokens));
        projected               = ggml_add(get(), projected, ggml_new_tensor_1d(get(), GGML_TYPE_F32, head_dim * n_heads));
        return ggml_reshape_3d(get(), projected, head_dim, n_heads, n_tokens);
    }

    ggml_tensor * rope(ggml_tensor * k, int mode = GGML_ROPE_TYPE_NEOX, ggml_tensor * factors = nullptr) const {
        ggml_tensor * at = ggml_new_tensor_1d(get(), GGML_TYPE_I32, n_tokens);
        return ggml_rope_ext(get(), k, at, factors, n_rot, mode, 0, base, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
    }

    ggml_tensor * norm(ggml_tensor * k) const {
        return ggml_mul(get(), ggml_rms_norm(get(), k, 1e-5f), ggml_new_tensor_1d(get(), GGML_TYPE_F32, head_dim));
    }

    ggml_tensor * hadamard(ggml_tensor * k) const {
        ggml_tensor * runs = ggml_mul_mat(get(), matrix(32, 32), ggml_reshape_2d(get(), k, 32, ggml_nelements(k) / 32));
        ggml_mul_mat_set_hint(runs, GGML_HINT_SRC0_IS_HADAMARD);
        return ggml_reshape_3d(get(), runs, k->ne[0], k->ne[1], k->ne[2]);
    }
};

void test_rope_in_graphs() {
    const Graph   graph;
    ggml_tensor * factors = ggml_new_tensor_1d(graph.get(), GGML_TYPE_F32, n_rot / 2);

    // as RoPE leaves them, and stored as they are, contiguous, or Hadamard-rotated
    ggml_tensor * turned = graph.rope(graph.norm(graph.keys()), GGML_ROPE_TYPE_NEOX, factors);
    for (ggml_tensor * k : { turned, ggml_cont(graph.get(), turned), graph.hadamard(turned) }) {
        const KeyRope rope = rope_of(k);
        CHECK(rope.op == GGML_OP_ROPE);
        CHECK(rope.factors == factors);
        CHECK(std::equal(rope.params.begin(), rope.params.end(), turned->op_params));
    }
    CHECK(rope_of(graph.rope(graph.keys())).factors == nullptr);

    // no RoPE
    CHECK(rope_of(graph.keys()).op == GGML_OP_NONE);
    CHECK(rope_of(graph.hadamard(graph.norm(graph.keys()))).op == GGML_OP_NONE);

    // something else comes after it, or hides it
    CHECK(rope_of(graph.norm(turned)).op == GGML_OP_MUL);
    CHECK(rope_of(ggml_rms_norm(graph.get(), turned, 1e-5f)).op == GGML_OP_RMS_NORM);
    CHECK(rope_of(graph.hadamard(graph.norm(turned))).op == GGML_OP_MUL);
    CHECK(rope_of(ggml_concat(graph.get(), turned, turned, 0)).op == GGML_OP_CONCAT);
    CHECK(rope_of(ggml_concat(graph.get(), graph.keys(), turned, 1)).op == GGML_OP_CONCAT);
    CHECK(rope_of(ggml_concat(graph.get(), graph.keys(), graph.norm(turned), 0)).op == GGML_OP_MUL);
    CHECK(rope_of(graph.norm(ggml_concat(graph.get(), graph.keys(), turned, 0))).op == GGML_OP_MUL);
    CHECK(rope_of(ggml_view_3d(graph.get(), turned, head_dim / 2, n_heads, n_tokens, turned->nb[1], turned->nb[2], 0)).op ==
          GGML_OP_VIEW);

    // a part of the key alone
    const auto begins_at = [&](ggml_tensor * k, uint32_t first) {
        const KeyRope rope = rope_of(k);
        CHECK(rope.op == GGML_OP_ROPE && rope.factors == factors);
        CHECK(rope.first == first);
    };
    ggml_tensor * last   = ggml_concat(graph.get(), graph.keys(), turned, 0);
    ggml_tensor * shared = ggml_view_3d(graph.get(), turned, head_dim, 1, n_tokens, turned->nb[1], turned->nb[2], 0);
    begins_at(last, head_dim);
    begins_at(graph.hadamard(last), head_dim);
    begins_at(ggml_concat(graph.get(), turned, graph.keys(), 0), 0);
    begins_at(ggml_concat(graph.get(), graph.keys(), last, 0), 2 * head_dim);
    begins_at(ggml_concat(graph.get(), graph.norm(graph.keys()), ggml_repeat(graph.get(), shared, turned), 0), head_dim);
    CHECK(rope_of(ggml_concat(graph.get(), graph.keys(), graph.keys(), 0)).op == GGML_OP_NONE);
    CHECK(rope_angles(rope_of(ggml_concat(graph.get(), graph.keys(), graph.rope(graph.keys()), 0))).first == head_dim);
}

// ---- angles ----

void test_angles() {
    const Graph graph;
    for (const int mode : { GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX }) {
        const RopeAngles angles = rope_angles(rope_of(graph.rope(graph.keys(), mode)));
        CHECK(angles.n_rot == n_rot && angles.w.size() == n_rot / 2);
        CHECK(angles.neighbours == (mode == GGML_ROPE_TYPE_NORMAL));
        for (size_t i = 0; i < angles.w.size(); ++i) {
            // ggml's own ratio of neighbouring pairs, without the roundings of its products
            const double expected = std::pow(double(std::pow(base, -2.0f / n_rot)), double(i));
            CHECK(std::fabs(angles.w[i] / expected - 1.0) < 1.5e-7);
        }
    }
    const RopeAngles none = rope_angles(rope_of(graph.keys()));
    CHECK(none.n_rot == 0 && none.w.empty());
}

void test_factors() {
    const Graph      weights, graph;
    ggml_tensor *    factors = ggml_new_tensor_1d(weights.get(), GGML_TYPE_F32, n_rot / 2);
    const KeyRope    rope    = rope_of(graph.rope(graph.keys(), GGML_ROPE_TYPE_NEOX, factors));
    const RopeAngles own     = rope_angles(rope_of(graph.rope(graph.keys())));
    CHECK(contains(message_of(EDGEKV_STATUS_INVALID_STATE, [&] { rope_angles(rope); }), "without its weights"));

    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), ggml_backend_cpu_buffer_type()));
    std::vector<float>            values(n_rot / 2);
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 1.0f + i;
    }
    ggml_backend_tensor_set(factors, values.data(), 0, values.size() * sizeof(float));
    const RopeAngles divided = rope_angles(rope);
    for (size_t i = 0; i < values.size(); ++i) {
        CHECK(std::fabs(divided.w[i] * values[i] / own.w[i] - 1.0) < 1.5e-7);
    }
}

void test_rope_that_cannot_be_turned() {
    const Graph   graph;
    const KeyRope plain = rope_of(graph.rope(graph.keys()));

    const auto refused = [](const KeyRope & rope, const char * reason) {
        CHECK(contains(message_of(EDGEKV_STATUS_UNSUPPORTED, [&] { rope_angles(rope); }), reason));
    };
    const auto of_mode = [&](int32_t mode) {
        KeyRope rope   = plain;
        rope.params[2] = mode;
        return rope;
    };
    refused(of_mode(GGML_ROPE_TYPE_MROPE), "M-RoPE");
    refused(of_mode(GGML_ROPE_TYPE_IMROPE), "M-RoPE");
    refused(of_mode(GGML_ROPE_TYPE_VISION), "vision");
    refused(of_mode(64), "unknown kind 64");
    KeyRope later    = plain;
    later.params[15] = 16;
    refused(later, "begins at element 16");
    refused(rope_of(graph.norm(graph.rope(graph.keys()))), "MUL between RoPE and the cache");

    // a base that is not a number makes an angle that is nothing at all
    KeyRope     wrong = plain;
    const float nan   = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(&wrong.params[5], &nan, sizeof(nan));
    refused(wrong, "not linear in the position");
}

// ---- rows ----

constexpr ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 };

// A row as long as its type makes it, on the heap: reading or writing past it is seen. Values are small whole numbers, one
// of them as large as the scale of a block needs to keep all of them.
struct Row {
    Row(ggml_type type, uint32_t dim) : type(type), dim(dim), values(dim), bytes(ggml_row_size(type, dim)) {
        for (uint32_t i = 0; i < dim; ++i) {
            values[i] = i % 32 == 0 ? -8.0f : static_cast<float>(i * 5 % 15) - 7.0f;
        }
        row_from_float(type)(values.data(), bytes.data(), dim);
    }

    std::vector<float> read() const {
        std::vector<float> found(dim);
        row_to_float(type)(bytes.data(), found.data(), dim);
        return found;
    }

    ggml_type          type;
    uint32_t           dim;
    std::vector<float> values;
    std::vector<char>  bytes;
};

RopeAngles quarter_turns(uint32_t n, bool neighbours, uint32_t first = 0) {
    return { first, n, neighbours, std::vector<double>(n / 2, std::acos(0.0)) };
}

// A quarter turn makes (a, b) to (-b, a), and half a turn to (-a, -b): stored values to others of the same size.
void test_quarter_turns() {
    for (const ggml_type type : types) {
        for (const bool neighbours : { false, true }) {
            // from the turn before by steps, and anew: with a turn of its own, every delta is reached from 0
            for (const bool steps : { false, true }) {
                const uint32_t dim = 160, n = 64, half = n / 2, first_turned = 40;
                RopeTurn       turn(quarter_turns(n, neighbours, first_turned), dim, type, 0);
                for (const int32_t delta : { 1, -1, 2, -2, 7, 8, -8, 25, 4001, -4001 }) {
                    if (!steps) {
                        turn = RopeTurn(quarter_turns(n, neighbours, first_turned), dim, type, 0);
                    }
                    Row                row(type, dim);
                    std::vector<float> expected = row.read();
                    for (uint32_t i = 0; i < half; ++i) {
                        float & a = expected[first_turned + (neighbours ? 2 * i : i)];
                        float & b = expected[first_turned + (neighbours ? 2 * i + 1 : i + half)];
                        for (int32_t quarter = 0; quarter < ((delta % 4) + 4) % 4; ++quarter) {
                            const float first = a;
                            a                 = -b;
                            b                 = first;
                        }
                    }
                    turn.turn(row.bytes.data(), delta);
                    const std::vector<float> found = row.read();
                    // q4_0 has 8 scales of one sign and 7 of the other
                    const float room = type == GGML_TYPE_Q4_0 ? 1.2f : type == GGML_TYPE_Q8_0 ? 0.04f : 1e-5f;
                    for (uint32_t i = 0; i < dim; ++i) {
                        CHECK(std::fabs(found[i] - expected[i]) <= room);
                    }
                }
            }
        }
    }
}

// A key that RoPE turned is turned back, through the rotation that it is stored in.
void test_rotated_rows() {
    for (const ggml_type type : types) {
        for (const uint32_t run : { 64u, 128u }) {
            const uint32_t dim = 128;
            RopeAngles     angles{ 0, 96, true, {} };
            for (uint32_t i = 0; i < 48; ++i) {
                angles.w.push_back(std::pow(10000.0, -double(i) / 48));
            }
            RopeTurn   turn(angles, dim, type, run);
            Row        row(type, dim);
            const auto before = row.read();
            turn.turn(row.bytes.data(), 300);
            CHECK(row.read() != before);
            turn.turn(row.bytes.data(), -300);
            const float room = type == GGML_TYPE_Q4_0 ? 3.5f : type == GGML_TYPE_Q8_0 ? 0.2f : 0.02f;
            const auto  after = row.read();
            for (uint32_t i = 0; i < dim; ++i) {
                CHECK(std::fabs(after[i] - before[i]) <= room);
            }
        }
    }
}

void test_what_stays() {
    for (const ggml_type type : types) {
        for (const uint32_t run : { 0u, 32u, 64u }) {
            const uint32_t dim = 192, n = 40;
            Row            row(type, dim);
            const auto     before = row.bytes;
            RopeTurn       turn(quarter_turns(n, false), dim, type, run);
            turn.turn(row.bytes.data(), 0);
            CHECK(row.bytes == before);
            RopeTurn({}, dim, type, run).turn(row.bytes.data(), 5);
            CHECK(row.bytes == before);

            for (const int32_t delta : { 1, 5, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min() + 1 }) {
                turn.turn(row.bytes.data(), delta);
                const size_t turned = ggml_row_size(type, run > 0 || ggml_is_quantized(type) ? 64 : n);
                CHECK(row.bytes != before);
                CHECK(std::equal(before.begin() + turned, before.end(), row.bytes.begin() + turned));
            }
            turn.turn(row.bytes.data(), std::numeric_limits<int32_t>::min()); // a whole number of turns
        }
    }
}

void test_turns_that_cannot_be() {
    const auto refused = [](const RopeAngles & angles, uint32_t dim, int32_t type, uint32_t rotation, const char * reason) {
        CHECK(contains(message_of(EDGEKV_STATUS_INVALID_ARGUMENT, [&] { RopeTurn(angles, dim, type, rotation); }), reason));
    };
    const RopeAngles good = quarter_turns(64, true);
    refused(good, 32, GGML_TYPE_F16, 0, "n_rot is 64; it must be even, and at most the 32 elements of a row from 0 on");
    refused(quarter_turns(64, true, 2), 64, GGML_TYPE_F16, 0, "at most the 64 elements of a row from 2 on");
    refused({ 0, 63, true, std::vector<double>(31) }, 64, GGML_TYPE_F16, 0, "n_rot is 63");
    refused({ 0, 64, true, std::vector<double>(31) }, 64, GGML_TYPE_F16, 0, "not one angle a pair");
    refused({ 0, 2, true, { INFINITY } }, 64, GGML_TYPE_F16, 0, "NaN or infinite");
    refused(good, 80, GGML_TYPE_Q8_0, 0, "whole blocks");
    refused(good, 96, GGML_TYPE_Q8_0, 64, "power of two that divides");
    refused(good, 96, GGML_TYPE_Q8_0, 48, "power of two that divides");
    refused(good, 64, GGML_TYPE_COUNT, 0, "cannot be read");
    refused(good, 64, GGML_TYPE_Q8_1, 0, "cannot be read");
    refused(good, 256, GGML_TYPE_IQ2_XXS, 0, "cannot be written");
}

} // namespace

void test_rope() {
    test_rope_in_graphs();
    test_angles();
    test_factors();
    test_rope_that_cannot_be_turned();
    test_quarter_turns();
    test_rotated_rows();
    test_what_stays();
    test_turns_that_cannot_be();
}
