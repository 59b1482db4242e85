// A plan's request, as the planner reads it: what is impossible for any model, what a choice is made within, and what follows from a
// setting without a measurement.
#pragma once

#include "edgekv.h"

#include <vector>

namespace edgekv {

// What a program requests, with the defaults of what it leaves open for any model. Holds the policies and limits that it points to.
class CheckedRequest {
  public:
    // Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT) if no model can have it.
    explicit CheckedRequest(const edgekv_plan_request & of_program);
    CheckedRequest(const CheckedRequest &)             = delete;
    CheckedRequest & operator=(const CheckedRequest &) = delete;

    const edgekv_plan_request & operator*() const { return request_; }
    const edgekv_plan_request * operator->() const { return &request_; }

  private:
    edgekv_plan_request              request_;
    edgekv_policy                    policy_;
    edgekv_policy                    probe_policy_;
    std::vector<edgekv_device_limit> limits_;
};

// Of a cache that is compacted by the request's policies. Throws Error for a policy that no cache can have.
edgekv_cache_params cache_params(const edgekv_plan_request & request, uint32_t block);

// What the request's choice is made within, for a model. Throws Error as cache_params does.
edgekv_choice choice_of(const edgekv_plan_request & request, uint32_t n_layers, uint32_t n_ctx_train);

// Cells that a recall fills in a head, on average.
uint32_t recalled_cells(const edgekv_plan_request & request, uint32_t block);

// The plan of a setting, without parts.
edgekv_plan plan_without_parts(const edgekv_plan_request & request, const edgekv_setting & setting, uint32_t n_ctx_train);

} // namespace edgekv
