#include "score/traits.h"

#include "hooks/status.h"
#include "score/score.h"

#include <cmath>
#include <iterator>

namespace edgekv {

namespace {

enum class Queries { none, newest, some, every, scorers }; // `some`: policy.rows of them; `scorers`: as many as a scorer wants

// Flags are of policy.flags; 0 = no flag asks for it.
struct Row {
    bool     keys;
    Queries  queries;
    bool     accumulates; // rows are added to what a cell carries
    bool     comparable; // a score, made a weight, means the same in every head
    uint32_t before_rope;
    uint32_t value_prior;
    uint32_t sharpened;
    uint32_t recent; // then policy.rows of queries score
    Formula  formula;
};

constexpr uint32_t prior = EDGEKV_AHAKV_VALUE_PRIOR, gain = EDGEKV_AHAKV_STEP_GAIN, recent = EDGEKV_AHAKV_RECENT_ACCUMULATION;
constexpr uint32_t before = EDGEKV_KEYDIFF_BEFORE_ROPE;

// By enum edgekv_base.
constexpr Row formulas[] = {
    //             keys   queries            accumulates comparable before_rope value_prior sharpened recent formula
    /* SINK     */ { false, Queries::none,    false,      false,     0,      0,     0,    0,      score_sink },
    /* RANDOM   */ { false, Queries::none,    false,      false,     0,      0,     0,    0,      score_random },
    /* KEYDIFF  */ { true,  Queries::none,    false,      true,      before, 0,     0,    0,      score_keydiff },
    /* L2NORM   */ { true,  Queries::none,    false,      true,      0,      0,     0,    0,      score_l2norm },
    /* H2O      */ { true,  Queries::every,   true,       true,      0,      0,     0,    0,      nullptr },
    /* TOVA     */ { true,  Queries::newest,  false,      true,      0,      0,     0,    0,      nullptr },
    /* SNAPKV   */ { true,  Queries::some,    false,      true,      0,      0,     0,    0,      nullptr },
    /* AHAKV    */ { true,  Queries::some,    true,       true,      0,      prior, gain, recent, nullptr },
    /* CUSTOM   */ { false, Queries::scorers, false,      false,     0,      0,     0,    0,      nullptr },
};
static_assert(std::size(formulas) == EDGEKV_BASE_CUSTOM + 1);

// Whether heads compete for cells by their scores.
bool competes(const edgekv_policy & policy) { return policy.spread != EDGEKV_SPREAD_HEAD; }

uint32_t raggedness(const edgekv_policy & policy) {
    const uint32_t layers = policy.pyramid > 0.0 ? EDGEKV_RAGGED_HEADS | EDGEKV_RAGGED_LAYERS : 0;
    if (!competes(policy)) {
        return layers;
    }
    return layers | EDGEKV_RAGGED_HEADS | (policy.softmax ? EDGEKV_RAGGED_SOFTMAX : 0);
}

uint32_t n_rows_of(const Row & row, const edgekv_policy & policy) {
    switch (row.queries) {
        case Queries::newest:  return 1;
        case Queries::some:    return policy.rows;
        case Queries::scorers: return policy.scorer->reads & EDGEKV_READS_QUERIES ? policy.scorer->n_rows : 0;
        default:               return 0;
    }
}

} // namespace

Traits traits_of(const edgekv_policy & policy) {
    const Row & row = formulas[policy.base];
    Traits      traits;
    traits.formula     = row.formula;
    traits.keys        = row.keys;
    traits.queries     = row.queries != Queries::none && row.queries != Queries::scorers;
    traits.value_prior = (policy.flags & row.value_prior) != 0;
    traits.values      = policy.weigh != EDGEKV_WEIGH_NONE || traits.value_prior;
    traits.before_rope = (policy.flags & row.before_rope) != 0;
    traits.sharpened   = (policy.flags & row.sharpened) != 0;
    traits.largest     = policy.base == EDGEKV_BASE_SNAPKV && policy.aggregate == EDGEKV_AGGREGATE_MAX;
    traits.accumulates = row.accumulates;
    traits.starts_anew = (policy.flags & row.recent) != 0;
    traits.every_row   = traits.accumulates && !traits.starts_anew;
    traits.n_rows      = n_rows_of(row, policy);
    traits.ragged      = raggedness(policy);
    return traits;
}

void check(const edgekv_policy & policy) {
    require(policy.base >= 0 && static_cast<size_t>(policy.base) < std::size(formulas), "policy.base is unknown");
    require(policy.anchor >= EDGEKV_ANCHOR_UNIT_MEAN && policy.anchor <= EDGEKV_ANCHOR_PAIRWISE, "policy.anchor is unknown");
    require(policy.metric >= EDGEKV_METRIC_COSINE && policy.metric <= EDGEKV_METRIC_EUCLIDEAN, "policy.metric is unknown");
    require(policy.pool >= EDGEKV_POOL_AVG && policy.pool <= EDGEKV_POOL_MAX, "policy.pool is unknown");
    require(policy.kernel % 2 == 1, "policy.kernel must be odd");
    require(policy.anchor != EDGEKV_ANCHOR_PAIRWISE || policy.metric == EDGEKV_METRIC_COSINE,
            "the pairwise anchor goes with the cosine metric only");
    require(policy.weigh >= EDGEKV_WEIGH_NONE && policy.weigh <= EDGEKV_WEIGH_FASTCAOTE, "policy.weigh is unknown");
    require(policy.alpha >= 0.0 && policy.alpha <= 1.0, "policy.alpha is not in [0, 1]");
    require(!policy.critical || (policy.epsilon >= 0.0 && std::isfinite(policy.epsilon)), "policy.epsilon is not a number from 0 on");
    require(policy.aggregate >= EDGEKV_AGGREGATE_MEAN && policy.aggregate <= EDGEKV_AGGREGATE_MAX, "policy.aggregate is unknown");
    require(policy.spread >= EDGEKV_SPREAD_HEAD && policy.spread <= EDGEKV_SPREAD_LAYER, "policy.spread is unknown");
    require(policy.safeguard >= 0.0 && policy.safeguard <= 1.0, "policy.safeguard is not in [0, 1]");
    require(policy.pyramid == 0.0 || policy.pyramid >= 1.0, "policy.pyramid must be at least 1, or 0 for none");
    require(!competes(policy) || formulas[policy.base].comparable,
            "policy.spread compares the scores of heads: those of SINK, RANDOM and CUSTOM cannot be");
    require(formulas[policy.base].queries != Queries::some || policy.rows > 0, "policy.rows must be at least 1");
    if (policy.base == EDGEKV_BASE_CUSTOM) {
        require(policy.scorer != nullptr && policy.scorer->score != nullptr, "policy.scorer is NULL");
    }
}

} // namespace edgekv
