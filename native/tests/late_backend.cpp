#include "late_backend.h"

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <new>
#include <set>
#include <unordered_map>
#include <vector>

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

    void compute(ggml_backend_t cpu) const { GGML_ASSERT(ggml_backend_graph_compute(cpu, graph_) == GGML_STATUS_SUCCESS); }

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

struct Stream {
    ggml_backend_ptr cpu{ ggml_backend_cpu_init() };
    std::deque<Work> waiting;
};

std::set<Stream *> streams;
size_t             n_early = 0;

// ---- buffers ----

constexpr size_t alignment = 128;

void * base_of(ggml_backend_buffer_t buffer) { return buffer->context; }

void free_buffer(ggml_backend_buffer_t buffer) {
    const auto * begin = static_cast<const char *>(buffer->context);
    const bool   early = std::any_of(streams.begin(), streams.end(), [&](const Stream * stream) {
        return std::any_of(stream->waiting.begin(), stream->waiting.end(),
                             [&](const Work & work) { return work.touches(begin, buffer->size); });
    });
    n_early += early;
    ::operator delete(buffer->context, std::align_val_t(alignment));
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_i calls = {};
    calls.free_buffer   = free_buffer;
    calls.get_base      = base_of;
    calls.memset_tensor = [](ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t n) {
        std::memset(static_cast<char *>(tensor->data) + offset, value, n);
    };
    calls.set_tensor = [](ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t n) {
        std::memcpy(static_cast<char *>(tensor->data) + offset, data, n);
    };
    calls.get_tensor = [](ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t n) {
        std::memcpy(data, static_cast<const char *>(tensor->data) + offset, n);
    };
    calls.clear = [](ggml_backend_buffer_t buffer, uint8_t value) { std::memset(buffer->context, value, buffer->size); };

    void * memory = ::operator new(size + alignment, std::align_val_t(alignment), std::nothrow);
    return memory == nullptr ? nullptr : ggml_backend_buffer_init(type, calls, memory, size);
}

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device) {
    static ggml_backend_buffer_type type = [&] {
        ggml_backend_buffer_type_i calls = {};
        calls.get_name      = [](ggml_backend_buffer_type_t) { return "Late"; };
        calls.alloc_buffer  = alloc_buffer;
        calls.get_alignment = [](ggml_backend_buffer_type_t) { return alignment; };
        return ggml_backend_buffer_type{ calls, device, nullptr };
    }();
    return &type;
}

// ---- the backend ----

Stream & stream_of(ggml_backend_t backend) { return *static_cast<Stream *>(backend->context); }

void synchronize(ggml_backend_t backend) {
    for (Stream & stream = stream_of(backend); !stream.waiting.empty(); stream.waiting.pop_front()) {
        stream.waiting.front().compute(stream.cpu.get());
    }
}

ggml_backend_t init_backend(ggml_backend_dev_t device, const char *) {
    static uint8_t guid[16] = "late";
    ggml_backend_i calls    = {};
    calls.get_name          = [](ggml_backend_t) { return "Late"; };
    calls.free              = [](ggml_backend_t backend) {
        synchronize(backend);
        streams.erase(&stream_of(backend));
        delete &stream_of(backend);
        delete backend;
    };
    calls.synchronize   = synchronize;
    calls.graph_compute = [](ggml_backend_t backend, ggml_cgraph * graph) {
        stream_of(backend).waiting.emplace_back(graph);
        return GGML_STATUS_SUCCESS;
    };
    auto * stream = new Stream;
    streams.insert(stream);
    return new ggml_backend{ &guid, calls, device, stream };
}

// ---- the device ----

ggml_backend_dev_t cpu() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

ggml_backend_reg * registry() {
    static ggml_backend_reg only = [] {
        ggml_backend_reg_i calls = {};
        calls.get_name           = [](ggml_backend_reg_t) { return "Late"; };
        calls.get_device_count   = [](ggml_backend_reg_t) { return size_t(1); };
        calls.get_device         = [](ggml_backend_reg_t, size_t) { return late::device(); };
        return ggml_backend_reg{ GGML_BACKEND_API_VERSION, calls, nullptr };
    }();
    return &only;
}

} // namespace

ggml_backend_dev_t late::device() {
    static ggml_backend_device only = [] {
        ggml_backend_device_i calls = {};
        calls.get_name              = [](ggml_backend_dev_t) { return "Late"; };
        calls.get_description       = [](ggml_backend_dev_t) { return "computes late"; };
        calls.get_memory            = [](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = size_t(1) << 32; };
        calls.get_type              = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
        calls.get_props             = [](ggml_backend_dev_t device, ggml_backend_dev_props * props) {
            *props             = {};
            props->name        = "Late";
            props->description = "computes late";
            props->type        = GGML_BACKEND_DEVICE_TYPE_GPU;
            props->caps.async  = true;
            ggml_backend_dev_memory(device, &props->memory_free, &props->memory_total);
        };
        calls.init_backend    = init_backend;
        calls.get_buffer_type = buffer_type;
        calls.supports_op     = [](ggml_backend_dev_t, const ggml_tensor * op) { return ggml_backend_dev_supports_op(cpu(), op); };
        calls.supports_buft   = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) { return type == buffer_type(device); };
        return ggml_backend_device{ calls, registry(), nullptr };
    }();
    return &only;
}

size_t late::n_freed_early() { return n_early; }
