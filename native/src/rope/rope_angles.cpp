#include "rope/rope_angles.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "hooks/processor.h"
#include "hooks/status.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <string>

namespace edgekv {

void refuse_turns(const std::string & reason) {
    throw Error(EDGEKV_STATUS_UNSUPPORTED, "keys cannot be moved to other positions: " + reason + "; choose a model of the llama, "
                "qwen2, qwen3 or gemma family, stay within the trained context, or choose a policy that scores keys as they are stored");
}

namespace {

constexpr double  two_pi     = 6.283185307179586;
constexpr int32_t n_measured = 64; // positions 1, 2, ...: the mean of so many evens out how ggml rounds each

int32_t n_rot_of(const KeyRope & rope) { return rope.params[1]; }

// M-RoPE: each section of the pairs turns by a position of its own.
bool is_sectioned(const KeyRope & rope) { return (rope.params[2] & GGML_ROPE_TYPE_MROPE) != 0; }

// ggml ends the process on sections that are none.
void check_sections(const KeyRope & rope) {
    int64_t n_pairs = 0;
    for (int i = 0; i < GGML_MROPE_SECTIONS; ++i) {
        const int32_t n = rope.params[11 + i];
        if (n < 0) {
            refuse_turns("a section of M-RoPE has " + std::to_string(n) + " pairs");
        }
        n_pairs += n;
    }
    if (n_pairs == rope.params[14] || n_pairs > n_rot_of(rope)) {
        refuse_turns("the sections of M-RoPE have " + std::to_string(n_pairs) + " pairs");
    }
}

// Whether pairs are neighbours, once it is sure that a key is turned by one angle a pair.
bool neighbours_of(const KeyRope & rope) {
    if (rope.params[15] != 0) {
        refuse_turns("RoPE begins at element " + std::to_string(rope.params[15]) + " of a head");
    }
    switch (rope.params[2]) {
        case GGML_ROPE_TYPE_NORMAL: return true;
        case GGML_ROPE_TYPE_NEOX:   return false;
        case GGML_ROPE_TYPE_MROPE:
        case GGML_ROPE_TYPE_IMROPE: check_sections(rope); return false;
        case GGML_ROPE_TYPE_VISION: refuse_turns("the RoPE of vision gives a token two positions");
        default:                    refuse_turns("RoPE is of the unknown kind " + std::to_string(rope.params[2]));
    }
}

// Factors are weights, which may lie on a device.
std::vector<float> read_factors(const KeyRope & rope) {
    std::vector<float> factors(n_rot_of(rope) / 2);
    if (rope.factors->data == nullptr) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the model was loaded without its weights; load it without no_alloc");
    }
    ggml_backend_tensor_get(rope.factors, factors.data(), 0, factors.size() * sizeof(float));
    return factors;
}

// What RoPE makes of the row that is 1 in the first element of every pair and 0 in the second: (n_positions, n_rot), m cos
// where a 1 was and m sin where a 0 was, m > 0. The first three positions of M-RoPE are a token's place in the text, as
// llama.cpp gives them to text; the fourth is 0, so its section does not turn.
std::vector<float> turn_units(const KeyRope & rope, bool neighbours, const std::vector<int32_t> & positions) {
    const int32_t n_rot = n_rot_of(rope);
    const size_t  n     = positions.size();

    const size_t           n_at     = is_sectioned(rope) ? GGML_MROPE_SECTIONS * n : n;
    const size_t           n_values = 2 * n * n_rot + n_at + n_rot / 2; // rows and what becomes of them, positions, factors
    const ggml_init_params memory   = { n_values * sizeof(float) + 8 * (ggml_tensor_overhead() + GGML_MEM_ALIGN) +
                                        ggml_graph_overhead_custom(8, false), nullptr, false };
    const ggml_context_ptr context(ggml_init(memory));
    if (context == nullptr) {
        throw std::bad_alloc();
    }
    ggml_tensor * rows    = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, n_rot, 1, n);
    ggml_tensor * at      = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, n_at);
    ggml_tensor * factors = nullptr;
    for (size_t i = 0; i < n * n_rot; ++i) {
        const size_t k = i % n_rot;
        static_cast<float *>(rows->data)[i] = (neighbours ? k % 2 == 0 : k < size_t(n_rot) / 2) ? 1.0f : 0.0f;
    }
    for (size_t i = 0; i < n_at; ++i) {
        static_cast<int32_t *>(at->data)[i] = i < 3 * n ? positions[i % n] : 0;
    }
    if (rope.factors != nullptr) {
        const std::vector<float> values = read_factors(rope);
        factors = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, values.size());
        std::copy(values.begin(), values.end(), static_cast<float *>(factors->data));
    }
    ggml_tensor * turned =
        ggml_rope_multi(context.get(), rows, at, factors, n_rot, nullptr, rope.params[2], 0, 1.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    std::copy(rope.params.begin(), rope.params.end(), turned->op_params);

    ggml_cgraph * graph = ggml_new_graph_custom(context.get(), 8, false);
    ggml_build_forward_expand(graph, turned);
    ggml_cplan           plan = processor().graph_plan(graph, 1, nullptr);
    std::vector<uint8_t> work(plan.work_size);
    plan.work_data = work.data();
    const ggml_status status = processor().graph_compute(graph, &plan);
    if (status == GGML_STATUS_ALLOC_FAILED) {
        throw std::bad_alloc();
    }
    if (status != GGML_STATUS_SUCCESS) {
        throw Error(EDGEKV_STATUS_INTERNAL, "ggml did not compute RoPE");
    }
    const float * values = static_cast<const float *>(turned->data);
    return { values, values + n * n_rot };
}

// The angle that is a whole number of turns from `angle` and nearest to `expected`.
double unwound(double angle, double expected) { return angle + two_pi * std::round((expected - angle) / two_pi); }

} // namespace

RopeAngles rope_angles(const KeyRope & rope) {
    if (rope.op == GGML_OP_NONE) {
        return {};
    }
    if (rope.op != GGML_OP_ROPE) {
        refuse_turns("the graph computes " + std::string(ggml_op_name(rope.op)) + " between RoPE and the cache");
    }
    RopeAngles angles;
    angles.neighbours = neighbours_of(rope);
    angles.first      = rope.first;
    angles.n_rot      = static_cast<uint32_t>(n_rot_of(rope));

    std::vector<int32_t> positions(n_measured);
    std::iota(positions.begin(), positions.end(), 1);
    positions.insert(positions.end(), { 1009, 32003 }); // far ones, to see that the angle grows evenly
    const std::vector<float> turned = turn_units(rope, angles.neighbours, positions);

    const size_t n_pairs = angles.n_rot / 2;
    for (size_t i = 0; i < n_pairs; ++i) {
        const size_t one  = angles.neighbours ? 2 * i : i;
        const size_t zero = angles.neighbours ? 2 * i + 1 : i + n_pairs;

        const auto angle_at = [&](size_t p) {
            return std::atan2(double(turned[p * angles.n_rot + zero]), double(turned[p * angles.n_rot + one]));
        };
        double w   = angle_at(0);
        double sum = 0.0, weight = 0.0;
        for (size_t p = 0; p < n_measured; ++p) {
            sum += positions[p] * unwound(angle_at(p), positions[p] * w);
            weight += double(positions[p]) * positions[p];
            w = sum / weight;
        }
        for (size_t p = 0; p < positions.size(); ++p) {
            const double expected = positions[p] * w;
            // ggml multiplies i + 8 times in float32 to get to the angle of pair i
            const double rounding = std::ldexp(i + 8.0, -24) * std::fabs(expected) + 1e-6;
            if (!(std::fabs(unwound(angle_at(p), expected) - expected) <= rounding)) {
                refuse_turns("the angle of pair " + std::to_string(i) + " is not linear in the position");
            }
        }
        angles.w.push_back(w);
    }
    return angles;
}

void require_turnable(const KeyRope & rope) {
    KeyRope known = rope;
    if (known.factors != nullptr && known.factors->data == nullptr) {
        known.factors = nullptr;
    }
    rope_angles(known);
}

} // namespace edgekv
