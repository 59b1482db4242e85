// The entry points that work on plain arrays.
#include "edgekv.h"
#include "evict/allot.h"
#include "evict/choose.h"
#include "hooks/given.h"
#include "hooks/status.h"
#include "rope/rope_turn.h"
#include "rows/rows.h"
#include "score/policy_names.h"
#include "score/wo_norm.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

using namespace edgekv;

namespace {

std::vector<uint32_t> order_by_position(const int32_t * positions, size_t n) {
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return positions[a] < positions[b]; });
    return order;
}

// One head as a program describes it, checked, with what it takes to score it.
struct GivenHead {
    GivenHead(const edgekv_policy * of_policy, const edgekv_cells * of_cells, const edgekv_queries * of_queries, uint32_t budget) :
        described(described_by(of_policy, of_cells)), policy(*of_policy), keys(given(*described.keys)),
        values(optional<Rows>(described.values)), queries(optional<edgekv_queries>(of_queries)),
        order(order_by_position(described.positions, keys.n())),
        cells{ keys, values ? &*values : nullptr, described.positions, order.data(), described.accumulated, described.wo_norm,
               nullptr, nullptr, queries ? &*queries : nullptr, described.layer, described.head } {
        check(*policy);
        check(*policy, cells, budget);

        ScratchSize size{ std::max<size_t>(1, keys.n()), std::max(keys.dim(), values ? values->dim() : 0) };
        if (traits_of(*policy).queries) {
            size.n_rows   = queries->n_rows;
            size.n_window = queries->n_head * size.n_rows;
        }
        scratch.reserve(size);
    }

    static edgekv_cells described_by(const edgekv_policy * of_policy, const edgekv_cells * of_cells) {
        require(of_policy && of_cells, "policy or cells is NULL");
        const edgekv_cells cells = given(*of_cells);
        require(cells.keys && cells.positions, "cells.keys or cells.positions is NULL");
        return cells;
    }

    template <typename T, typename Given> static std::optional<T> optional(const Given * of_program) {
        return of_program != nullptr ? std::optional<T>(given(*of_program)) : std::nullopt;
    }

    const edgekv_cells                  described;
    const GivenPolicy                   policy;
    const Rows                          keys;
    const std::optional<Rows>           values;
    const std::optional<edgekv_queries> queries;
    const std::vector<uint32_t>         order;
    const Cells                         cells;
    Scratch                             scratch;
};

size_t write_kept(const std::vector<uint32_t> & order, const std::vector<uint8_t> & keep, uint32_t * kept) {
    return std::copy_if(order.begin(), order.end(), kept, [&](uint32_t cell) { return keep[cell] != 0; }) - kept;
}

} // namespace

enum edgekv_status edgekv_policy_parse(const char * text, struct edgekv_policy * policy, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(text && policy, "text or policy is NULL");
        give_back(policy_named(text), *policy);
    });
}

enum edgekv_status edgekv_score(const struct edgekv_policy * policy, const struct edgekv_cells * cells,
                                const struct edgekv_queries * queries, uint32_t budget, float * scores, char * err,
                                size_t err_size) {
    return guard(err, err_size, [&] {
        require(scores, "scores is NULL");
        GivenHead head(policy, cells, queries, budget);
        score_cells(*head.policy, head.cells, budget, head.scratch, scores);
    });
}

enum edgekv_status edgekv_choose(const struct edgekv_policy * policy, const struct edgekv_cells * cells,
                                 const struct edgekv_queries * queries, const struct edgekv_protection * protection,
                                 uint32_t budget, uint32_t n_keep, uint32_t * kept, size_t * n_kept, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(protection && kept && n_kept, "protection, kept or n_kept is NULL");
        const edgekv_protection protects = given(*protection);
        check(protects);
        GivenHead            head(policy, cells, queries, budget);
        std::vector<uint8_t> keep(head.keys.n());
        float * weights = head.scratch.scores.data();
        score_base(*head.policy, head.cells, budget, head.scratch, weights, nullptr);
        choose(*head.policy, head.cells, weights, protects, n_keep, {}, head.scratch, keep.data());
        *n_kept = write_kept(head.order, keep, kept);
    });
}

enum edgekv_status edgekv_select(const float * scores, const int32_t * positions, size_t n, size_t budget,
                                 const struct edgekv_protection * protection, uint32_t * kept, size_t * n_kept, char * err,
                                 size_t err_size) {
    return guard(err, err_size, [&] {
        require(scores && positions && protection && kept && n_kept, "an argument is NULL");
        const edgekv_protection protects = given(*protection);
        check(protects);
        const auto           order = order_by_position(positions, n);
        std::vector<float>   line(n);
        std::vector<uint8_t> keep(n);
        select({ scores, positions, order.data(), n }, budget, protects, line.data(), keep.data());
        *n_kept = write_kept(order, keep, kept);
    });
}

enum edgekv_status edgekv_allot(const struct edgekv_policy * policy, const struct edgekv_scored * heads, size_t n_heads,
                                const struct edgekv_protection * protection, uint32_t budget, uint32_t largest, uint32_t * budgets,
                                char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(policy && heads && protection && budgets, "policy, heads, protection or budgets is NULL");
        const GivenPolicy       shared(*policy);
        const edgekv_protection protects = given(*protection);
        check(*shared);
        check(protects);
        std::vector<std::vector<uint32_t>> orders;
        std::vector<Ranked>                ranked;
        size_t                             n_cells = 0;
        for (size_t g = 0; g < n_heads; ++g) {
            const edgekv_scored head = given(element(heads, g));
            require((head.scores && head.positions) || head.n == 0, "scores or positions of a head are NULL");
            orders.push_back(order_by_position(head.positions, head.n));
            ranked.push_back({ head.scores, head.positions, orders.back().data(), head.n });
            n_cells += head.n;
        }
        std::vector<float> line(n_cells);
        allot(ranked.data(), n_heads, protects, budget, largest, shared->safeguard, line.data(), budgets);
    });
}

enum edgekv_status edgekv_layer_budgets(const struct edgekv_policy * policy, uint32_t n_layer, uint32_t budget,
                                        uint32_t n_protected, uint32_t largest, uint32_t * budgets, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(policy && budgets, "policy or budgets is NULL");
        const GivenPolicy sloped(*policy);
        check(*sloped);
        layer_budgets(sloped->pyramid, n_layer, budget, n_protected, largest, budgets);
    });
}

enum edgekv_status edgekv_wo_norm(const struct edgekv_rows * values, const struct edgekv_rows * w_o, uint32_t first,
                                  uint32_t n_head, float * norms, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(values && w_o && norms, "values, w_o or norms is NULL");
        const Rows rows(given(*values));
        const Rows outputs(given(*w_o));
        require(n_head > 0, "n_head is 0");
        require((uint64_t(first) + n_head) * rows.dim() <= outputs.dim(), "w_o has fewer columns than the heads need");
        Scratch scratch;
        scratch.reserve(wo_norm_scratch({ 1, rows.dim() }, 1, rows.dim(), outputs.dim()));
        WoNorm norm(rows.dim(), 1, n_head, scratch);
        for (size_t i = 0; i < rows.n(); i += WoNorm::n_at_once) {
            const size_t n = std::min<size_t>(WoNorm::n_at_once, rows.n() - i);
            norm.begin();
            for (size_t k = 0; k < n; ++k) {
                norm.put(0, k, rows, i + k);
            }
            norm.add(outputs, first, n_head, n);
            norm.take(0, n, norms + i);
        }
    });
}

enum edgekv_status edgekv_rope_turn(const struct edgekv_rows * rows, const double * angles, uint32_t first, uint32_t n_rot,
                                    int32_t neighbours, const int32_t * deltas, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(rows && angles && deltas, "rows, angles or deltas is NULL");
        const edgekv_rows described = given(*rows);
        const Rows        checked(described);
        const RopeAngles  turned{ first, n_rot, neighbours != 0, { angles, angles + std::min(n_rot, described.dim) / 2 } };
        RopeTurn          turn(turned, described.dim, described.type, described.rotation);
        auto *            row = static_cast<char *>(const_cast<void *>(described.data)); // described as what is read elsewhere
        for (size_t i = 0; i < checked.n(); ++i) {
            turn.turn(row + i * described.stride_bytes, deltas[i]);
        }
    });
}

uint64_t edgekv_row_bytes(int32_t type, uint32_t dim) {
    switch (type) {
        case GGML_TYPE_F32:
        case GGML_TYPE_F16:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q4_0: break;
        default:             return 0;
    }
    const auto known = static_cast<ggml_type>(type);
    return dim % ggml_blck_size(known) == 0 ? ggml_row_size(known, dim) : 0;
}

enum edgekv_status edgekv_rows_convert(const struct edgekv_rows * rows, int32_t type, uint32_t rotation, void * dst, size_t dst_size,
                                       char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(rows && dst, "rows or dst is NULL");
        convert(Rows(given(*rows)), type, rotation, dst, dst_size);
    });
}
