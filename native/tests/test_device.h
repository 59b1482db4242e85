// Devices of ggml's for tests. Each calls itself a GPU and lies in the host's memory, which it does not admit; it can do what ggml's
// CPU backend can. What happens to graphs and copies is up to whoever derives from it.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <cstddef>
#include <memory>

class TestDevice {
  public:
    // What a backend of the device computes on.
    class Stream {
      public:
        virtual ~Stream()                         = default;
        virtual void compute(ggml_cgraph * graph) = 0;
        virtual void synchronize()                = 0; // also before it is freed

      protected:
        Stream() { ggml_backend_cpu_set_n_threads(cpu_.get(), 1); }
        void compute_now(ggml_cgraph * graph) const { GGML_ASSERT(ggml_backend_graph_compute(cpu_.get(), graph) == GGML_STATUS_SUCCESS); }

      private:
        ggml_backend_ptr cpu_{ ggml_backend_cpu_init() };
    };

    explicit TestDevice(const char * name);
    virtual ~TestDevice()                      = default;
    TestDevice(const TestDevice &)             = delete;
    TestDevice & operator=(const TestDevice &) = delete;

    ggml_backend_dev_t get() { return &device_; }
    const char *       name() const { return name_; }

    virtual std::unique_ptr<Stream> open() = 0;
    virtual void note_upload() {}
    virtual void note_read() {}
    virtual void note_free(const char * /*begin*/, size_t /*n_bytes*/) {} // before it is done

  private:
    const char *             name_;
    ggml_backend_reg         registry_;
    ggml_backend_device      device_;
    ggml_backend_buffer_type buffers_;
};
