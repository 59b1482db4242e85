#include "rows/cache_request.h"

#include "hooks/status.h"

#include <algorithm>

namespace edgekv {

namespace {

thread_local const edgekv_layout * request      = nullptr;
thread_local bool                  is_reachable = false;
thread_local bool                  was_refused  = false;

} // namespace

CacheRequest::CacheRequest(const edgekv_layout & layout) {
    request     = &layout;
    was_refused = false;
}
CacheRequest::~CacheRequest() { request = nullptr; }

bool CacheRequest::refused() const { return was_refused; }

CacheRequest::Reachable::Reachable(bool reachable) { is_reachable = reachable; }
CacheRequest::Reachable::~Reachable() { is_reachable = false; }

std::unique_ptr<FlatCache> CacheRequest::granted() {
    return request != nullptr && is_reachable ? std::make_unique<FlatCache>(*request) : nullptr;
}

uint32_t CacheRequest::window_cells(uint32_t n_own, uint32_t window, uint32_t n_batch) {
    return request != nullptr && is_reachable ? window + std::max(n_batch, request->n_probe) : n_own;
}

void CacheRequest::refuse(const char * call) {
    was_refused = true;
    fail(EDGEKV_STATUS_UNSUPPORTED, "llama.cpp called %s of a cache that edgekv lays out by head: its graph of this model attends in a way "
         "that edgekv does not know; choose another model", call);
}

} // namespace edgekv
