#include "score/score.h"

#include "hooks/status.h"
#include "kernels/kernels.h"
#include "score/attention.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

constexpr uint32_t most_rounds = 64; // each goes over all cells of a head

// Whether a score, made a weight, means the same in every head.
static bool is_comparable(int32_t base) {
    return base == EDGEKV_BASE_KEYDIFF || base == EDGEKV_BASE_L2NORM ||
           (base >= EDGEKV_BASE_H2O && base <= EDGEKV_BASE_AHAKV) || base == EDGEKV_BASE_EXPECTED;
}

void check(const edgekv_policy & policy) {
    require(policy.base >= EDGEKV_BASE_SINK && policy.base <= EDGEKV_BASE_EXPECTED, "policy.base is unknown");
    require(policy.anchor >= EDGEKV_ANCHOR_UNIT_MEAN && policy.anchor <= EDGEKV_ANCHOR_PAIRWISE, "policy.anchor is unknown");
    require(policy.metric >= EDGEKV_METRIC_COSINE && policy.metric <= EDGEKV_METRIC_EUCLIDEAN, "policy.metric is unknown");
    require(policy.pool >= EDGEKV_POOL_AVG && policy.pool <= EDGEKV_POOL_MAX, "policy.pool is unknown");
    require(policy.kernel % 2 == 1, "policy.kernel must be odd");
    require(policy.anchor != EDGEKV_ANCHOR_PAIRWISE || policy.metric == EDGEKV_METRIC_COSINE,
            "the pairwise anchor goes with the cosine metric only");
    require(policy.weigh >= EDGEKV_WEIGH_NONE && policy.weigh <= EDGEKV_WEIGH_FASTCAOTE, "policy.weigh is unknown");
    if (policy.rounds < 1 || policy.rounds > most_rounds) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "policy.rounds = %u is not in [1, %u]; give 1, or the steps in which to evict",
             policy.rounds, most_rounds);
    }
    require(policy.rounds == 1 || (policy.weigh != EDGEKV_WEIGH_NONE && !policy.critical),
            "policy.rounds goes with policy.weigh, and not with policy.critical");
    require(policy.alpha >= 0.0 && policy.alpha <= 1.0, "policy.alpha is not in [0, 1]");
    require(policy.mass >= 0.0 && policy.mass <= 1.0, "policy.mass is not in [0, 1]");
    require(policy.critical >= EDGEKV_CRITICAL_NONE && policy.critical <= EDGEKV_CRITICAL_RELATIVE, "policy.critical is unknown");
    require(!policy.critical || (policy.epsilon >= 0.0 && std::isfinite(policy.epsilon)), "policy.epsilon is not a number from 0 on");
    require(policy.aggregate >= EDGEKV_AGGREGATE_MEAN && policy.aggregate <= EDGEKV_AGGREGATE_MAX, "policy.aggregate is unknown");
    require(policy.carry >= 0.0 && policy.carry <= 1.0, "policy.carry is not in [0, 1]");
    require(policy.spread >= EDGEKV_SPREAD_HEAD && policy.spread <= EDGEKV_SPREAD_GIVEN, "policy.spread is unknown");
    require(policy.safeguard >= 0.0 && policy.safeguard <= 1.0, "policy.safeguard is not in [0, 1]");
    require(policy.pyramid == 0.0 || policy.pyramid >= 1.0, "policy.pyramid must be at least 1, or 0 for none");
    require(!heads_compete(policy) || is_comparable(policy.base),
            "policy.spread compares the scores of heads: those of SINK, RANDOM and CUSTOM cannot be");
    require((policy.spread != EDGEKV_SPREAD_MODEL && policy.spread != EDGEKV_SPREAD_GIVEN) || policy.pyramid == 0.0,
            "policy.pyramid gives every layer a budget of its own, and policy.spread MODEL and GIVEN none");
    require(!looks_ahead(policy) || policy.n_ahead > 0, "policy.n_ahead must be at least 1");
    if (policy.base == EDGEKV_BASE_SNAPKV || policy.base == EDGEKV_BASE_AHAKV || looks_ahead(policy)) {
        require(policy.rows > 0, "policy.rows must be at least 1");
    }
    if (policy.base == EDGEKV_BASE_CUSTOM) {
        require(policy.scorer != nullptr && policy.scorer->score != nullptr, "policy.scorer is NULL");
    }
}

bool reads_keys(const edgekv_policy & policy) {
    return policy.base != EDGEKV_BASE_SINK && policy.base != EDGEKV_BASE_RANDOM && policy.base != EDGEKV_BASE_CUSTOM;
}

bool reads_queries(const edgekv_policy & policy) {
    return (policy.base >= EDGEKV_BASE_H2O && policy.base <= EDGEKV_BASE_AHAKV) || looks_ahead(policy);
}

bool sharpens(const edgekv_policy & policy) { return policy.base == EDGEKV_BASE_AHAKV && policy.flags & EDGEKV_AHAKV_STEP_GAIN; }

bool takes_largest(const edgekv_policy & policy) {
    return policy.base == EDGEKV_BASE_SNAPKV && policy.aggregate == EDGEKV_AGGREGATE_MAX;
}

bool has_value_prior(const edgekv_policy & policy) {
    return policy.base == EDGEKV_BASE_AHAKV && policy.flags & EDGEKV_AHAKV_VALUE_PRIOR;
}

bool reads_values(const edgekv_policy & policy) { return policy.weigh != EDGEKV_WEIGH_NONE || has_value_prior(policy); }

bool reads_before_rope(const edgekv_policy & policy) {
    return policy.base == EDGEKV_BASE_KEYDIFF && policy.flags & EDGEKV_KEYDIFF_BEFORE_ROPE;
}

bool looks_ahead(const edgekv_policy & policy) { return policy.base == EDGEKV_BASE_EXPECTED; }

bool accumulates(const edgekv_policy & policy) {
    return policy.base == EDGEKV_BASE_H2O || policy.base == EDGEKV_BASE_AHAKV ||
           (policy.base == EDGEKV_BASE_SNAPKV && policy.carry > 0.0);
}

// AhaKV with its recent accumulation starts anew with every block of a prompt.
static bool is_recent(const edgekv_policy & policy) {
    return policy.base == EDGEKV_BASE_AHAKV && policy.flags & EDGEKV_AHAKV_RECENT_ACCUMULATION;
}

bool carries_on(const edgekv_policy & policy, bool generating) {
    return accumulates(policy) && (generating || !is_recent(policy));
}

bool scores_every_row(const edgekv_policy & policy) {
    return accumulates(policy) && policy.base != EDGEKV_BASE_SNAPKV && !is_recent(policy);
}

bool heads_compete(const edgekv_policy & policy) {
    return policy.spread == EDGEKV_SPREAD_LAYER || policy.spread == EDGEKV_SPREAD_MODEL;
}

uint32_t raggedness(const edgekv_policy & policy) {
    const uint32_t layers = policy.pyramid > 0.0 ? EDGEKV_RAGGED_HEADS | EDGEKV_RAGGED_LAYERS : 0;
    if (!heads_compete(policy)) {
        return layers | (policy.spread == EDGEKV_SPREAD_GIVEN ? EDGEKV_RAGGED_HEADS : 0);
    }
    return layers | EDGEKV_RAGGED_HEADS | (policy.spread == EDGEKV_SPREAD_MODEL ? EDGEKV_RAGGED_MODEL : 0) |
           (policy.softmax ? EDGEKV_RAGGED_SOFTMAX : 0);
}

uint32_t rows_read(const edgekv_policy & policy, uint32_t block) {
    if (policy.base == EDGEKV_BASE_CUSTOM) {
        return policy.scorer->reads & EDGEKV_READS_QUERIES ? policy.scorer->n_rows : 0;
    }
    if (!reads_queries(policy)) {
        return 0;
    }
    return scores_every_row(policy) ? block : policy.base == EDGEKV_BASE_TOVA ? 1 : policy.rows;
}

// SplitMix64's finaliser: a bijection that spreads every bit.
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static void score_random(const edgekv_policy & policy, const Cells & cells, float * scores) {
    const uint64_t stream = mix(policy.seed ^ (uint64_t(cells.layer) << 32 | cells.head));
    for (size_t i = 0; i < cells.keys.n(); ++i) {
        scores[i] = static_cast<float>(mix(stream ^ uint64_t(cells.positions[i])) >> 40) * 0x1p-24f;
    }
}

static void score_l2norm(const Cells & cells, Scratch & scratch, float * scores) {
    each_few(cells.keys, scratch, [&](size_t first, size_t n, const float * keys) {
        kernels().squares(keys, n, cells.keys.dim(), scores + first);
    });
    std::transform(scores, scores + cells.keys.n(), scores, [](float square) { return -std::sqrt(square); });
}

void score_base(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores,
                float * accumulated) {
    const size_t n = cells.keys.n();
    if (reads_queries(policy) && !looks_ahead(policy)) {
        score_attention(policy, cells, budget, scratch, scores, accumulated);
        return;
    }
    if (cells.given != nullptr) {
        std::copy_n(cells.given, n, scores);
    } else {
        switch (policy.base) {
            case EDGEKV_BASE_SINK:    std::copy_n(cells.positions, n, scores); break;
            case EDGEKV_BASE_RANDOM:  score_random(policy, cells, scores); break;
            case EDGEKV_BASE_KEYDIFF: score_keydiff(policy, cells, scratch, scores); break;
            case EDGEKV_BASE_L2NORM:  score_l2norm(cells, scratch, scores); break;
            case EDGEKV_BASE_EXPECTED: score_expected(policy, cells, scratch, scores); break;
        }
    }
    if (policy.kernel > 1) {
        pool(policy.pool, policy.kernel, cells.order, n, scratch, scores);
    }
}

void normalise(const edgekv_policy & policy, size_t n, float * scores) {
    if (!policy.softmax || n == 0) {
        return;
    }
    if (!std::all_of(scores, scores + n, [](float score) { return std::isfinite(score); })) {
        std::fill_n(scores, n, NAN); // the softmax of -inf would be a silent 0
        return;
    }
    const float most = *std::max_element(scores, scores + n);
    double      sum  = 0.0;
    for (size_t i = 0; i < n; ++i) {
        scores[i] = std::exp(scores[i] - most);
        sum += scores[i];
    }
    for (size_t i = 0; i < n; ++i) {
        scores[i] = static_cast<float>(scores[i] / sum);
    }
}

} // namespace edgekv
