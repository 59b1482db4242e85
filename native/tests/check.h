// CHECK: print a line for each condition that does not hold and count it in n_failed.
#pragma once

#include "edgekv_policy.h"

#include <cstdio>

inline int n_failed = 0;

// Sanitizers find bad addresses and undefined arithmetic, for which one size of each way through a kernel is enough. The plain programs
// compare the results of all sizes.
#ifdef EDGEKV_TESTS_SANITIZED
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

#define CHECK(condition) check_that((condition), #condition, __FILE__, __LINE__)

inline bool check_that(bool holds, const char * condition, const char * file, int line) {
    if (!holds) {
        std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
        ++n_failed;
    }
    return holds;
}

inline edgekv_protection protecting(uint32_t n_sink, uint32_t n_recent, const int32_t * pinned = nullptr, size_t n_pinned = 0) {
    return { sizeof(edgekv_protection), n_sink, n_recent, pinned, n_pinned };
}
