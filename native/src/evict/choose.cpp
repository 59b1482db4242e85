#include "evict/choose.h"

#include "hooks/status.h"
#include "score/attention.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

// CriticalKV, Algorithm 1: how much a cell can move the layer's output.
void second_stage(const edgekv_policy & policy, const Cells & cells, const float * weights, float * scores) {
    const auto epsilon = static_cast<float>(policy.epsilon);
    for (size_t i = 0; i < cells.keys.n(); ++i) {
        scores[i] = (weights[i] + epsilon) * cells.wo_norm[i];
    }
}

} // namespace

void check(const edgekv_policy & policy, const Cells & cells, uint32_t budget) {
    const Traits traits = traits_of(policy);
    require(policy.base != EDGEKV_BASE_CUSTOM || cells.given != nullptr, "a scorer of one's own works in a cache only");
    require(!traits.values || cells.values != nullptr, "the policy reads values, but cells.values is NULL");
    require(!policy.critical || cells.wo_norm != nullptr, "critical reads cells.wo_norm, but it is NULL");
    require(cells.values == nullptr || cells.values->n() == cells.keys.n(), "cells.values and cells.keys differ in number");
    if (traits.queries) {
        require(cells.queries != nullptr, "the policy reads queries, but queries is NULL");
        check(*cells.queries, cells.keys);
        require(!traits.sharpened || budget > 0, "ahakv needs the budget");
    }
}

void score_cells(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores) {
    if (policy.weigh == EDGEKV_WEIGH_NONE) {
        score_base(policy, cells, budget, scratch, scores, nullptr);
        normalise(policy, cells.keys.n(), scores);
    } else {
        float * weights = scratch.scores.data();
        score_base(policy, cells, budget, scratch, weights, nullptr);
        normalise(policy, cells.keys.n(), weights);
        score_caote(policy, cells, weights, scratch, scores);
    }
    if (policy.critical) {
        second_stage(policy, cells, scores, scores);
    }
}

void choose(const edgekv_policy & policy, const Cells & cells, float * weights, const edgekv_protection & protection,
            uint32_t n_keep, const Staying & staying, Scratch & scratch, uint8_t * keep) {
    const size_t n      = cells.keys.n();
    float *      line   = scratch.line.data();
    Ranked       ranked = tokens_of(weights, cells.positions, cells.order, n, staying);
    if (ranked.n < n) {
        keep[cells.order[0]] = staying.rest;
        n_keep -= staying.rest;
    }
    if (policy.weigh != EDGEKV_WEIGH_NONE || policy.critical) { // others only rank, and a softmax of floats may end in ties
        normalise(policy, n, weights);
    }
    if (policy.weigh != EDGEKV_WEIGH_NONE) {
        score_caote(policy, cells, weights, scratch, scratch.prior.data());
        ranked.scores = scratch.prior.data();
    }
    if (!policy.critical) {
        select(ranked, n_keep, protection, line, keep);
        return;
    }
    float * second = scratch.norms.data();
    second_stage(policy, cells, ranked.scores, second);
    select_in_stages(ranked, second, policy, n_keep, protection, line, keep);
}

} // namespace edgekv
