// The planner: what it measures, and how often it makes a context or loads a vocabulary.
#include "check.h"
#include "edgekv.h"
#include "plan/process.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using namespace edgekv;

namespace {

// Counts what llama.cpp says that it makes.
class Log {
  public:
    Log() {
        llama_log_get(&before_, &data_before_);
        llama_log_set(take, this);
    }
    ~Log() { llama_log_set(before_, data_before_); }
    Log(const Log &)             = delete;
    Log & operator=(const Log &) = delete;

    int n_contexts = 0;
    int n_models   = 0;

  private:
    static void take(ggml_log_level, const char * text, void * log) {
        auto & counts = *static_cast<Log *>(log);
        counts.n_contexts += std::strstr(text, "constructing llama_context") != nullptr;
        counts.n_models += std::strstr(text, "loaded meta data") != nullptr;
    }

    ggml_log_callback before_      = nullptr;
    void *            data_before_ = nullptr;
};

edgekv_plan_request request_of(uint64_t ceiling_bytes) {
    edgekv_plan_request request = edgekv_plan_request_default();
    request.ceiling_bytes       = ceiling_bytes;
    request.n_threads           = 1;
    request.n_probe             = 0;
    request.vocabulary_bytes    = 1 << 20;
    request.graph_bytes         = 1 << 20;
    return request;
}

void test_what_is_made_once(const char * path) {
    const Log           log;
    edgekv_plan_request request = request_of(uint64_t(4) << 30);
    edgekv_planner *    planner = nullptr;
    edgekv_plan         named   = edgekv_plan_default();
    edgekv_plan         chosen  = edgekv_plan_default();
    edgekv_plan         again   = edgekv_plan_default();
    request.budget     = 64;
    request.block      = 32;
    request.kv_type    = GGML_TYPE_F16;
    request.repack     = 0;
    request.n_streamed = 0;
    CHECK(edgekv_planner_new(path, &request, &planner, nullptr, 0) == EDGEKV_STATUS_OK && log.n_models == 1);
    CHECK(edgekv_planner_estimate(planner, &request, &named, nullptr, 0) == EDGEKV_STATUS_OK);
    const int n_first = log.n_contexts; // small ones, whose graphs are measured, and that of the plan
    CHECK(n_first > 0 && n_first <= 4);
    request.ceiling_bytes = 1 << 20;
    CHECK(edgekv_planner_estimate(planner, &request, &again, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(log.n_contexts == n_first && again.peak_bytes == named.peak_bytes && again.ceiling_bytes == request.ceiling_bytes);
    CHECK(edgekv_planner_choose(planner, &request, &again, nullptr, 0) == EDGEKV_STATUS_OVER_CEILING);
    CHECK(again.peak_bytes == named.peak_bytes && again.remedies.budget == 0);

    request.ceiling_bytes = named.peak_bytes; // and as many cells as fit
    request.budget        = 0;
    const int n_before    = log.n_contexts;
    CHECK(edgekv_planner_choose(planner, &request, &chosen, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(chosen.setting.budget >= 64 && log.n_contexts - n_before <= 5);
    const int n_after = log.n_contexts;
    CHECK(edgekv_planner_choose(planner, &request, &again, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(again.setting.budget == chosen.setting.budget && log.n_contexts == n_after);
    CHECK(log.n_models == 1);
    edgekv_planner_free(planner);
}

void test_remedies(const char * path) {
    edgekv_plan_request request = request_of(uint64_t(4) << 30);
    edgekv_plan         small   = edgekv_plan_default();
    edgekv_plan         least   = edgekv_plan_default();
    request.host_bytes          = 1 << 20; // of both plans
    request.n_streamed          = 0;
    request.budget              = 64;
    request.block               = 128;
    request.kv_type             = GGML_TYPE_F16;
    CHECK(edgekv_plan_make(path, &request, &small, nullptr, 0) == EDGEKV_STATUS_OK);
    request.ceiling_bytes = small.peak_bytes;
    request.budget        = 65;
    CHECK(edgekv_plan_make(path, &request, &least, nullptr, 0) == EDGEKV_STATUS_OVER_CEILING);
    CHECK(least.setting.budget == 65 && least.remedies.budget == 64 && least.remedies.block == 32);
    char err[512] = "";
    CHECK(edgekv_plan_make(path, &request, &least, err, sizeof(err)) == EDGEKV_STATUS_OVER_CEILING);
    CHECK(std::strstr(err, "lower budget to 64, or ") != nullptr && std::strstr(err, "set block to 32, or ") != nullptr);
}

// Two sequences have to fit swap space that is in memory alone, and one that is on the disk alone.
void test_swap_space(const char * path) {
    edgekv_plan_request request = request_of(uint64_t(4) << 30);
    edgekv_plan         plan    = edgekv_plan_default();
    request.budget              = 64;
    request.block               = 32;
    CHECK(edgekv_plan_make(path, &request, &plan, nullptr, 0) == EDGEKV_STATUS_OK && plan.parts.swap_bytes == 0);
    const uint64_t n_bytes    = plan.sequence_bytes;
    request.swap_memory_bytes = 2 * n_bytes - 1;
    CHECK(edgekv_plan_make(path, &request, &plan, nullptr, 0) != EDGEKV_STATUS_OK || plan.sequence_bytes < n_bytes);
    request.swap_memory_bytes = 2 * n_bytes;
    CHECK(edgekv_plan_make(path, &request, &plan, nullptr, 0) == EDGEKV_STATUS_OK && plan.parts.swap_bytes == 2 * n_bytes);
    request.swap_memory_bytes = 0;
    request.swap_disk_bytes   = 1;
    CHECK(edgekv_plan_make(path, &request, &plan, nullptr, 0) == EDGEKV_STATUS_OVER_CEILING && plan.peak_bytes <= plan.ceiling_bytes);
    request.swap_disk_bytes = n_bytes;
    CHECK(edgekv_plan_make(path, &request, &plan, nullptr, 0) == EDGEKV_STATUS_OK && plan.parts.swap_bytes > 0);
}

#if defined(__SANITIZE_ADDRESS__)
#    define EDGEKV_OWN_HEAP
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer)
#        define EDGEKV_OWN_HEAP
#    endif
#endif

#if defined(__GLIBC__) && !defined(EDGEKV_OWN_HEAP)
// Memory that is asked for as zeros becomes resident where it comes from a hole, and stays untouched where it is fresh.
void test_holes_in_the_heap_make_no_difference() {
    constexpr size_t    size = 60000;
    std::vector<void *> chunks(2000);
    for (void *& chunk : chunks) {
        chunk = std::malloc(size);
        std::memset(chunk, 1, size);
    }
    const auto measured = [&] {
        std::vector<void *> made(900);
        const uint64_t      n_bytes = taken_by([&] {
            for (void *& chunk : made) {
                chunk = std::calloc(1, size);
            }
        });
        for (void * chunk : made) {
            std::free(chunk);
        }
        return n_bytes;
    };
    const uint64_t without = measured();
    for (size_t i = 0; i < chunks.size(); i += 2) {
        std::free(chunks[i]);
        chunks[i] = nullptr;
    }
    const uint64_t with = measured();
    CHECK((with > without ? with - without : without - with) < (1 << 20)); // else 8 MB
    for (void * chunk : chunks) {
        std::free(chunk);
    }
}
#else
void test_holes_in_the_heap_make_no_difference() {}
#endif

} // namespace

void test_plan(const char * path) {
    test_what_is_made_once(path);
    test_remedies(path);
    test_swap_space(path);
    test_holes_in_the_heap_make_no_difference();
}
