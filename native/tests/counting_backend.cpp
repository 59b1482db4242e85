#include "counting_backend.h"

#include "check.h"
#include "test_device.h"

#include <utility>

namespace {

// Whether a node starts a kernel; others say how to look at memory.
bool computes(const ggml_tensor & node) {
    switch (node.op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return false;
        default:                return ggml_nelements(&node) > 0;
    }
}

// Whether ggml's Vulkan would end the process over a node: it copies no integers of 64 bits.
bool ends_the_process(const ggml_tensor & node) { return node.op == GGML_OP_CONT && node.type == GGML_TYPE_I64; }

class CountingDevice : public TestDevice {
  public:
    CountingDevice() : TestDevice("Counting") {}

    std::unique_ptr<Stream> open() override { return std::make_unique<CountingStream>(counts_); }
    void                    note_upload() override { ++counts_.n_uploads; }
    void                    note_read() override { ++counts_.n_reads; }

    counting::Counts take() { return std::exchange(counts_, {}); }

  private:
    class CountingStream : public Stream {
      public:
        explicit CountingStream(counting::Counts & counts) : counts_(counts) {}

        void compute(ggml_cgraph * graph) override {
            ++counts_.n_graphs;
            for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
                counts_.n_kernels += computes(*ggml_graph_node(graph, i));
                CHECK(!ends_the_process(*ggml_graph_node(graph, i)));
            }
            compute_now(graph);
        }
        void synchronize() override { ++counts_.n_waits; }

      private:
        counting::Counts & counts_;
    };

    counting::Counts counts_ = {};
};

CountingDevice & only() {
    static CountingDevice device;
    return device;
}

} // namespace

ggml_backend_dev_t counting::device() { return only().get(); }

counting::Counts counting::take() { return only().take(); }
