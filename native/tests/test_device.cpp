#include "test_device.h"

#include <cstring>
#include <new>

namespace {

constexpr size_t alignment = 128;

TestDevice & of(ggml_backend_dev_t device) { return *static_cast<TestDevice *>(device->context); }
TestDevice & of(ggml_backend_buffer_t buffer) { return of(buffer->buft->device); }

TestDevice::Stream & stream_of(ggml_backend_t backend) { return *static_cast<TestDevice::Stream *>(backend->context); }

ggml_backend_dev_t cpu() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_i calls = {};
    calls.free_buffer           = [](ggml_backend_buffer_t buffer) {
        of(buffer).note_free(static_cast<const char *>(buffer->context), buffer->size);
        ::operator delete(buffer->context, std::align_val_t(alignment));
    };
    calls.get_base      = [](ggml_backend_buffer_t buffer) { return buffer->context; };
    calls.memset_tensor = [](ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t n) {
        std::memset(static_cast<char *>(tensor->data) + offset, value, n);
    };
    calls.set_tensor = [](ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t n) {
        of(buffer).note_upload();
        std::memcpy(static_cast<char *>(tensor->data) + offset, data, n);
    };
    calls.get_tensor = [](ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset, size_t n) {
        of(buffer).note_read();
        std::memcpy(data, static_cast<const char *>(tensor->data) + offset, n);
    };
    calls.clear = [](ggml_backend_buffer_t buffer, uint8_t value) { std::memset(buffer->context, value, buffer->size); };

    void * memory = ::operator new(size + alignment, std::align_val_t(alignment), std::nothrow);
    return memory == nullptr ? nullptr : ggml_backend_buffer_init(type, calls, memory, size);
}

ggml_backend_t init_backend(ggml_backend_dev_t device, const char *) {
    static uint8_t guid[16] = "test device";
    ggml_backend_i calls    = {};
    calls.get_name          = [](ggml_backend_t backend) { return of(backend->device).name(); };
    calls.free              = [](ggml_backend_t backend) {
        stream_of(backend).synchronize();
        delete &stream_of(backend);
        delete backend;
    };
    calls.synchronize   = [](ggml_backend_t backend) { stream_of(backend).synchronize(); };
    calls.graph_compute = [](ggml_backend_t backend, ggml_cgraph * graph) {
        stream_of(backend).compute(graph);
        return GGML_STATUS_SUCCESS;
    };
    return new ggml_backend{ &guid, calls, device, of(device).open().release() };
}

ggml_backend_reg_i registry_calls() {
    ggml_backend_reg_i calls = {};
    calls.get_name           = [](ggml_backend_reg_t registry) { return static_cast<TestDevice *>(registry->context)->name(); };
    calls.get_device_count   = [](ggml_backend_reg_t) { return size_t(1); };
    calls.get_device         = [](ggml_backend_reg_t registry, size_t) { return static_cast<TestDevice *>(registry->context)->get(); };
    return calls;
}

ggml_backend_device_i device_calls() {
    ggml_backend_device_i calls = {};
    calls.get_name              = [](ggml_backend_dev_t device) { return of(device).name(); };
    calls.get_description       = [](ggml_backend_dev_t) { return "in the host's memory"; };
    calls.get_memory            = [](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = size_t(1) << 32; };
    calls.get_type              = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    calls.get_props             = [](ggml_backend_dev_t device, ggml_backend_dev_props * props) {
        *props             = {};
        props->name        = of(device).name();
        props->description = "in the host's memory";
        props->type        = GGML_BACKEND_DEVICE_TYPE_GPU;
        props->caps.async  = true;
        ggml_backend_dev_memory(device, &props->memory_free, &props->memory_total);
    };
    calls.init_backend    = init_backend;
    calls.supports_op     = [](ggml_backend_dev_t, const ggml_tensor * op) { return ggml_backend_dev_supports_op(cpu(), op); };
    calls.supports_buft   = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) { return type->device == device; };
    return calls;
}

ggml_backend_buffer_type_i buffer_calls() {
    ggml_backend_buffer_type_i calls = {};
    calls.get_name      = [](ggml_backend_buffer_type_t type) { return of(type->device).name(); };
    calls.alloc_buffer  = alloc_buffer;
    calls.get_alignment = [](ggml_backend_buffer_type_t) { return alignment; };
    return calls;
}

} // namespace

TestDevice::TestDevice(const char * name) :
    name_(name), registry_{ GGML_BACKEND_API_VERSION, registry_calls(), this }, device_{ device_calls(), &registry_, this },
    buffers_{ buffer_calls(), &device_, nullptr } {
    device_.iface.get_buffer_type = [](ggml_backend_dev_t device) { return &of(device).buffers_; };
}
