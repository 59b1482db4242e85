// The entry points that work on plain arrays.
#include "edgekv.h"
#include "rows.h"
#include "score.h"
#include "select.h"
#include "status.h"

#include <algorithm>
#include <numeric>

using namespace edgekv;

static std::vector<uint32_t> order_by_position(const int32_t * positions, size_t n) {
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return positions[a] < positions[b]; });
    return order;
}

enum edgekv_status edgekv_score(const struct edgekv_policy * policy, const struct edgekv_rows * keys, const int32_t * positions,
                                uint32_t layer, uint32_t head, float * scores, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(policy && keys && positions && scores, "policy, keys, positions or scores is NULL");
        check(*policy);
        const Rows rows(*keys);
        const auto order = order_by_position(positions, rows.n());
        Scratch    scratch;
        scratch.reserve(rows.n(), rows.dim());
        score(*policy, {rows, positions, order.data(), layer, head}, scratch, scores);
    });
}

enum edgekv_status edgekv_select(const float * scores, const int32_t * positions, size_t n, size_t budget,
                                 const struct edgekv_protection * protection, uint32_t * kept, size_t * n_kept, char * err,
                                 size_t err_size) {
    return guard(err, err_size, [&] {
        require(scores && positions && protection && kept && n_kept, "an argument is NULL");
        check(*protection);
        const auto           order = order_by_position(positions, n);
        std::vector<float>   line(n);
        std::vector<uint8_t> keep(n);
        select(scores, positions, order.data(), n, budget, *protection, line.data(), keep.data());
        *n_kept = std::copy_if(order.begin(), order.end(), kept, [&](uint32_t cell) { return keep[cell] != 0; }) - kept;
    });
}
