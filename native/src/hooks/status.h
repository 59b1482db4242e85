// Errors inside the library: one exception type, turned into a status at every entry point.
#pragma once

#include "edgekv.h"
#include "hooks/aborts.h"

#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

namespace edgekv {

class Error : public std::runtime_error {
  public:
    Error(edgekv_status status, const std::string & message) : std::runtime_error(message), status(status) {}
    edgekv_status status;
};

template <typename... Args> [[noreturn]] void fail(edgekv_status status, const char * format, Args... args) {
    char text[512];
    std::snprintf(text, sizeof(text), format, args...);
    throw Error(status, text);
}

inline void require(bool condition, const char * message) {
    if (!condition) {
        throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, message);
    }
}

inline edgekv_status report(edgekv_status status, const char * message, char * err, size_t err_size) {
    if (err != nullptr && err_size > 0) {
        std::snprintf(err, err_size, "%s", message);
    }
    return status;
}

// Run a body; whatever it throws, or llama.cpp aborts with on this thread, becomes a status and a message.
template <typename Body> edgekv_status guard(char * err, size_t err_size, Body && body) noexcept {
    const Contained contained;
    try {
        body();
        return EDGEKV_STATUS_OK;
    } catch (const Error & error) {
        return report(error.status, error.what(), err, err_size);
    } catch (const std::bad_alloc &) {
        return report(EDGEKV_STATUS_OUT_OF_MEMORY, "an allocation failed; free memory or lower the budget", err, err_size);
    } catch (const std::exception & error) {
        return report(EDGEKV_STATUS_INTERNAL, error.what(), err, err_size);
    } catch (...) {
        return report(EDGEKV_STATUS_INTERNAL, "an unknown exception", err, err_size);
    }
}

} // namespace edgekv
