// Bytes of one model in any setting, before its weights are loaded.
#pragma once

#include "edgekv.h"
#include "edgekv_devices.h"
#include "hooks/status.h"
#include "plan/open.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace edgekv {

// Plans of one model in any setting, whether they fit or not. Requests are checked ones. What the process holds is measured once, and
// each context is made once.
class Estimates {
  public:
    // Throws Error for a file that cannot be used.
    Estimates(const char * path, const edgekv_plan_request & request);

    // Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT) if the model cannot have the setting, Error(EDGEKV_STATUS_UNSUPPORTED) if it can have
    // no cache for the request.
    edgekv_plan plan(const edgekv_plan_request & request, const edgekv_setting & setting);

    // Usages of devices by a plan; without a setting, their names alone.
    std::vector<edgekv_device_usage> devices(const edgekv_plan_request & request, const edgekv_setting & setting);
    std::vector<edgekv_device_usage> devices(const edgekv_plan_request & request);

    // Write the shape of a context with few cells. Throws Error(EDGEKV_STATUS_UNSUPPORTED) after that if the model can have no cache for
    // the request.
    void check(const edgekv_plan_request & request, edgekv_shape & shape);

    edgekv_choice choice(const edgekv_plan_request & request) const;

    const std::string & path() const { return path_; }

  private:
    // What a context takes, and the cache over it.
    struct Needs {
        edgekv_parts                     parts;
        edgekv_shape                     shape;
        std::vector<edgekv_device_usage> devices;
        uint64_t                         scratch_bytes; // of the program's own scorers
    };
    // What is measured with few cells, for a type of cache, which makes nodes of graphs.
    struct Graph {
        uint64_t             n_bytes;
        edgekv_shape         shape;
        bool                 turns;   // keys can be turned to other positions
        std::optional<Error> refused; // why the model cannot have such a cache
    };
    // The model; cache type, layout, ubatch and threads of a context; parameters of its cache; data of its scorers.
    using Key = std::tuple<const llama_model *, std::vector<uint32_t>, std::string, const void *>;

    const std::shared_ptr<llama_model> & model(const edgekv_plan_request & request, bool repack);
    const Needs &                        needs(const edgekv_plan_request & request, const edgekv_plan & plan);
    const Graph &                        graph(const edgekv_plan_request & request, const edgekv_setting & setting);
    Graph                                measured_graph(const edgekv_plan_request & request, edgekv_setting setting);
    void                                 place(const edgekv_plan_request & request);
    void                                 add_streaming(const edgekv_plan_request & request, edgekv_plan & plan);

    // By parameters of the cache and repositioning of the request.
    using GraphKey = std::pair<std::string, int32_t>;

    const std::string                            path_;
    std::pair<int32_t, std::vector<float>>       division_; // of layers over devices, as the models were loaded
    std::map<bool, std::shared_ptr<llama_model>> models_;   // by repacking
    std::map<GraphKey, std::map<int32_t, Graph>> graphs_;   // by type of cache
    std::map<Key, Needs>                         needs_;
    uint64_t                                     host_bytes_       = 0;
    uint64_t                                     vocabulary_bytes_ = 0;
    uint32_t                                     n_layers_         = 0;
    uint32_t                                     n_ctx_train_      = 0;
};

// Bytes that a plan leaves under the tightest limit of its request: the ceiling, those of devices, and swap space; negative = it is over.
int64_t spare_bytes(const edgekv_plan_request & request, const edgekv_plan & plan, const std::vector<edgekv_device_usage> & devices);

// Bytes that it is over its ceiling and those of devices, summed.
uint64_t excess_bytes(const edgekv_plan_request & request, const edgekv_plan & plan, const std::vector<edgekv_device_usage> & devices);

} // namespace edgekv
