// How fast products are.
#include "edgekv_products.h"

#include "hooks/processor.h"
#include "hooks/status.h"
#include "matmul/speed.h"

#include <cstdio>
#include <string>
#include <vector>

using namespace edgekv;

namespace {

void check(int32_t type, uint32_t depth, uint32_t n_rows, uint32_t n_tokens) {
    if (type < 0 || type >= GGML_TYPE_COUNT || ggml_blck_size(static_cast<ggml_type>(type)) == 0) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "type=%d is no type of weights; give one of enum ggml_type", type);
    }
    const auto known = static_cast<ggml_type>(type);
    const auto block = static_cast<uint32_t>(ggml_blck_size(known));
    if (depth == 0 || depth % block != 0 || n_rows == 0 || n_tokens == 0) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT,
             "depth=%u, n_rows=%u and n_tokens=%u are not possible; give at least 1, and a depth that is a multiple of %u", depth, n_rows,
             n_tokens, block);
    }
    if (processor().type_traits(known)->vec_dot == nullptr) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "random weights in %s cannot be had; measure another type", ggml_type_name(known));
    }
}

} // namespace

enum edgekv_status edgekv_product_measure(int32_t type, uint32_t depth, uint32_t n_rows, uint32_t n_tokens,
                                          struct edgekv_product_speed * speed, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(speed, "speed is NULL");
        check(type, depth, n_rows, n_tokens);
        processor().init();
        const bool        own          = products_of(static_cast<ggml_type>(type), edgekv_file_order, n_tokens) != nullptr;
        const std::string instructions = own ? products()->name : "";
        MeasuredProduct   product(static_cast<ggml_type>(type), depth, n_rows, n_tokens);

        std::vector<double> rates, limits;
        for (int turn = 0; turn < n_turns; ++turn) {
            limits.push_back(limit_rate(instructions));
            rates.push_back(product.rate());
        }
        edgekv_product_speed found = { median(rates), median(limits), "" };
        std::snprintf(found.instructions, sizeof(found.instructions), "%s", instructions.c_str());
        *speed = found;
    });
}
