#include "abi/aborts.h"

#include "abi/status.h"
#include "ggml.h"

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace edgekv {

namespace {

thread_local bool contained = false;

void throw_abort(const char * message) {
    if (!contained) {
        std::fprintf(stderr, "%s\n", message);
        return; // and ggml aborts
    }
    if (std::strstr(message, "out of memory") != nullptr) { // in these words by a patch, wherever ggml checks an allocation
        throw std::bad_alloc();
    }
    throw Error(EDGEKV_STATUS_INTERNAL, message);
}

} // namespace

Contained::Contained() : before_(std::exchange(contained, true)) { ggml_set_abort_callback(throw_abort); }
Contained::~Contained() { contained = before_; }

Computing::Computing() : before_(std::exchange(contained, false)) {}
Computing::~Computing() { contained = before_; }

} // namespace edgekv
