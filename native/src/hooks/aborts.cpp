#include "hooks/aborts.h"

#include "ggml.h"
#include "hooks/status.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace edgekv {

namespace {

thread_local bool contained = false;

std::mutex                         changing; // of ggml's callback
size_t                             n_inside = 0; // calls of this library, on all threads
std::atomic<ggml_abort_callback_t> hosts{ nullptr }; // to be put back after the last of them

void throw_abort(const char * message) {
    if (!contained) { // and ggml aborts
        const ggml_abort_callback_t host = hosts;
        if (host != nullptr) {
            host(message);
        } else {
            std::fprintf(stderr, "%s\n", message);
        }
        return;
    }
    if (std::strstr(message, "out of memory") != nullptr) { // in these words by a patch, wherever ggml checks an allocation
        throw std::bad_alloc();
    }
    throw Error(EDGEKV_STATUS_INTERNAL, message);
}

} // namespace

Contained::Contained() : before_(std::exchange(contained, true)) {
    const std::lock_guard<std::mutex> lock(changing);
    if (n_inside++ == 0) {
        hosts = ggml_set_abort_callback(throw_abort);
    }
}

Contained::~Contained() {
    contained = before_;
    const std::lock_guard<std::mutex> lock(changing);
    if (--n_inside == 0) {
        const ggml_abort_callback_t set = ggml_set_abort_callback(hosts);
        if (set != throw_abort) { // by the host meanwhile
            ggml_set_abort_callback(set);
        }
    }
}

bool Contained::is_here() { return contained; }

Computing::Computing() : before_(std::exchange(contained, false)) {}
Computing::~Computing() { contained = before_; }

} // namespace edgekv
