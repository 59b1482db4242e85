#include "hooks/given.h"

#include "hooks/status.h"

#include <algorithm>
#include <cstring>

namespace edgekv {

namespace {

constexpr size_t most_further_bytes = 1024; // that a newer header has; a struct that claims more was never filled in

struct Kind {
    const char * name;
    size_t       n_required; // bytes up to the first member that has a default
};

template <typename T> constexpr Kind kind = {};
template <> constexpr Kind kind<edgekv_cache_params>      = { "edgekv_cache_params", offsetof(edgekv_cache_params, n_query_rows) };
template <> constexpr Kind kind<edgekv_cells>             = { "edgekv_cells", offsetof(edgekv_cells, accumulated) };
template <> constexpr Kind kind<edgekv_choice>            = { "edgekv_choice", offsetof(edgekv_choice, ragged) };
template <> constexpr Kind kind<edgekv_compaction_params> = { "edgekv_compaction_params", offsetof(edgekv_compaction_params, probed) };
template <> constexpr Kind kind<edgekv_device_limit>      = { "edgekv_device_limit", offsetof(edgekv_device_limit, serving_bytes) };
template <> constexpr Kind kind<edgekv_layout>            = { "edgekv_layout", offsetof(edgekv_layout, n_probe) };
template <> constexpr Kind kind<edgekv_part>              = { "edgekv_part", sizeof(edgekv_part) };
template <> constexpr Kind kind<edgekv_plan>              = { "edgekv_plan", sizeof(edgekv_plan) };
template <> constexpr Kind kind<edgekv_plan_request>      = { "edgekv_plan_request", offsetof(edgekv_plan_request, reserved_bytes) };
template <> constexpr Kind kind<edgekv_policy>            = { "edgekv_policy", offsetof(edgekv_policy, anchor) };
template <> constexpr Kind kind<edgekv_protection>        = { "edgekv_protection", offsetof(edgekv_protection, n_sink) };
template <> constexpr Kind kind<edgekv_queries>           = { "edgekv_queries", offsetof(edgekv_queries, softcap) };
template <> constexpr Kind kind<edgekv_recall_params>     = { "edgekv_recall_params", offsetof(edgekv_recall_params, n_rows) };
template <> constexpr Kind kind<edgekv_rows>              = { "edgekv_rows", offsetof(edgekv_rows, rotation) };
template <> constexpr Kind kind<edgekv_scored>            = { "edgekv_scored", sizeof(edgekv_scored) };
template <> constexpr Kind kind<edgekv_scorer>            = { "edgekv_scorer", offsetof(edgekv_scorer, n_rows) };

template <typename T> T zeros() {
    T value       = {};
    value.n_bytes = sizeof(T);
    return value;
}

// Bytes of a program's struct that this library knows.
size_t known_bytes(const Kind & kind, size_t n_known, const void * of_program, size_t n_bytes) {
    if (n_bytes < kind.n_required || n_bytes > n_known + most_further_bytes) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "n_bytes = %zu is not the size of a struct %s, which has %zu bytes here and at least %zu; set "
             "it to sizeof(struct %s), or begin with %s_default()", n_bytes, kind.name, n_known, kind.n_required, kind.name, kind.name);
    }
    const size_t n     = std::min(n_bytes, n_known);
    const char * bytes = static_cast<const char *>(of_program);
    if (std::any_of(bytes + n, bytes + n_bytes, [](char byte) { return byte != 0; })) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "struct %s has %zu bytes, of which this library knows %zu, and the others are not 0; leave "
             "them at their defaults, or install a newer edgekv", kind.name, n_bytes, n_known);
    }
    return n;
}

template <typename T> void init(T * to, uint32_t n_bytes) {
    if (to != nullptr && n_bytes >= sizeof(to->n_bytes)) {
        const T defaults = default_of<T>();
        std::memset(static_cast<void *>(to), 0, n_bytes);
        std::memcpy(static_cast<void *>(to), &defaults, std::min<size_t>(n_bytes, sizeof(T)));
        to->n_bytes = n_bytes;
    }
}

} // namespace

template <typename T> T default_of() { return zeros<T>(); }

// keydiff
template <> edgekv_policy default_of<edgekv_policy>() {
    edgekv_policy policy = zeros<edgekv_policy>();
    policy.base          = EDGEKV_BASE_KEYDIFF;
    policy.kernel        = 1;
    return policy;
}

template <> edgekv_layout default_of<edgekv_layout>() {
    edgekv_layout layout = zeros<edgekv_layout>();
    layout.n_slots       = 1;
    return layout;
}

template <> edgekv_device_limit default_of<edgekv_device_limit>() {
    edgekv_device_limit limit = zeros<edgekv_device_limit>();
    limit.allowed_bytes       = UINT64_MAX;
    return limit;
}

template <> edgekv_choice default_of<edgekv_choice>() {
    edgekv_choice choice = zeros<edgekv_choice>();
    choice.least_budget  = 1;
    choice.least_block   = 1;
    choice.repack        = -1;
    choice.n_streamed    = -1;
    return choice;
}

template <> edgekv_plan default_of<edgekv_plan>() {
    edgekv_plan plan  = zeros<edgekv_plan>();
    plan.policy       = default_of<edgekv_policy>();
    plan.probe_policy = default_of<edgekv_policy>();
    plan.layout       = default_of<edgekv_layout>();
    plan.cache        = default_of<edgekv_cache_params>();
    return plan;
}

template <> edgekv_plan_request default_of<edgekv_plan_request>() {
    edgekv_plan_request request = zeros<edgekv_plan_request>();
    request.n_probe             = 64;
    request.probe_scores        = 1;
    request.n_sink              = 4;
    request.n_recent            = 32;
    request.least_block         = 1;
    request.repack              = -1;
    request.n_streamed          = -1;
    request.n_ubatch            = 128; // larger ones read no faster, and their activations take memory
    request.n_slots             = 1;
    request.repositions         = 1;
    return request;
}

template <typename T> T given(const T & of_program) {
    T            value = default_of<T>();
    const size_t n     = known_bytes(kind<T>, sizeof(T), &of_program, of_program.n_bytes);
    std::memcpy(static_cast<void *>(&value), &of_program, n);
    value.n_bytes = sizeof(T);
    return value;
}

template <typename T> void give_back(const T & value, T & to) {
    const uint32_t n_bytes = to.n_bytes;
    std::memcpy(static_cast<void *>(&to), &value, known_bytes(kind<T>, sizeof(T), &to, n_bytes));
    to.n_bytes = n_bytes;
}

GivenPolicy::GivenPolicy(const edgekv_policy & of_program) : policy_(given(of_program)), scorer_(default_of<edgekv_scorer>()) {
    if (policy_.scorer != nullptr) {
        scorer_        = given(*policy_.scorer);
        policy_.scorer = &scorer_;
    }
}

} // namespace edgekv

#define EDGEKV_GIVEN(type)                                                                                                             \
    template type edgekv::default_of<type>();                                                                                          \
    template type edgekv::given<type>(const type &);                                                                                   \
    template void edgekv::give_back<type>(const type &, type &);                                                                       \
    void          type##_init(struct type * to, uint32_t n_bytes) { edgekv::init(to, n_bytes); }

EDGEKV_GIVEN(edgekv_cache_params)
EDGEKV_GIVEN(edgekv_cells)
EDGEKV_GIVEN(edgekv_choice)
EDGEKV_GIVEN(edgekv_compaction_params)
EDGEKV_GIVEN(edgekv_device_limit)
EDGEKV_GIVEN(edgekv_layout)
EDGEKV_GIVEN(edgekv_part)
EDGEKV_GIVEN(edgekv_plan)
EDGEKV_GIVEN(edgekv_plan_request)
EDGEKV_GIVEN(edgekv_policy)
EDGEKV_GIVEN(edgekv_protection)
EDGEKV_GIVEN(edgekv_queries)
EDGEKV_GIVEN(edgekv_recall_params)
EDGEKV_GIVEN(edgekv_rows)
EDGEKV_GIVEN(edgekv_scored)
EDGEKV_GIVEN(edgekv_scorer)
