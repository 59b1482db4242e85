#include "late_backend.h"

#include "test_device.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>
#include <unordered_map>

namespace {

// A graph as it was when it was given: what llama.cpp makes of its own tensors afterwards changes nothing.
class Work {
  public:
    explicit Work(ggml_cgraph * given) {
        const int    n      = ggml_graph_n_nodes(given);
        const size_t n_size = static_cast<size_t>(n) * (1 + GGML_MAX_SRC);
        context_.reset(ggml_init({ ggml_graph_overhead_custom(n_size, false), nullptr, true }));
        graph_ = ggml_new_graph_custom(context_.get(), n_size, false);
        for (int i = 0; i < n; ++i) {
            ggml_tensor * node = copy_of(ggml_graph_node(given, i), true);
            for (ggml_tensor *& source : node->src) {
                source = source != nullptr ? copy_of(source, false) : nullptr;
            }
        }
        for (int i = 0; i < n; ++i) {
            ggml_build_forward_expand(graph_, copies_.at(ggml_graph_node(given, i)));
        }
    }

    ggml_cgraph * graph() const { return graph_; }

    bool touches(const char * begin, size_t n) const {
        return std::any_of(tensors_.begin(), tensors_.end(), [&](const ggml_tensor & tensor) {
            const auto * data = static_cast<const char *>(tensor.data);
            return data >= begin && data < begin + n;
        });
    }

  private:
    ggml_tensor * copy_of(ggml_tensor * given, bool computed) {
        ggml_tensor *& copy = copies_[given];
        if (copy == nullptr) {
            copy           = &tensors_.emplace_back(*given);
            copy->view_src = nullptr;
            if (!computed) { // by another graph, or by nobody
                copy->op = GGML_OP_NONE;
                std::fill_n(copy->src, GGML_MAX_SRC, nullptr);
            }
        }
        return copy;
    }

    ggml_context_ptr                                 context_;
    ggml_cgraph *                                    graph_;
    std::deque<ggml_tensor>                          tensors_;
    std::unordered_map<ggml_tensor *, ggml_tensor *> copies_;
};

class LateDevice : public TestDevice {
  public:
    LateDevice() : TestDevice("Late") {}

    std::unique_ptr<Stream> open() override { return std::make_unique<LateStream>(*this); }

    void note_free(const char * begin, size_t n_bytes) override {
        n_early_ += std::any_of(streams_.begin(), streams_.end(), [&](const LateStream * stream) { return stream->touches(begin, n_bytes); });
    }

    size_t n_early() const { return n_early_; }
    size_t n_waiting() const {
        return std::accumulate(streams_.begin(), streams_.end(), size_t(0), [](size_t n, const LateStream * stream) { return n + stream->n_waiting(); });
    }

  private:
    class LateStream : public Stream {
      public:
        explicit LateStream(LateDevice & device) : device_(device) { device_.streams_.insert(this); }
        ~LateStream() override { device_.streams_.erase(this); }

        void compute(ggml_cgraph * graph) override { waiting_.emplace_back(graph); }
        void synchronize() override {
            for (; !waiting_.empty(); waiting_.pop_front()) {
                compute_now(waiting_.front().graph());
            }
        }

        size_t n_waiting() const { return waiting_.size(); }

        bool touches(const char * begin, size_t n_bytes) const {
            return std::any_of(waiting_.begin(), waiting_.end(), [&](const Work & work) { return work.touches(begin, n_bytes); });
        }

      private:
        LateDevice &     device_;
        std::deque<Work> waiting_;
    };

    std::set<LateStream *> streams_;
    size_t                 n_early_ = 0;
};

LateDevice & only() {
    static LateDevice device;
    return device;
}

} // namespace

ggml_backend_dev_t late::device() { return only().get(); }

size_t late::n_freed_early() { return only().n_early(); }

size_t late::n_waiting() { return only().n_waiting(); }
