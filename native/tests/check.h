// CHECK: print a line for each condition that does not hold and count it in n_failed.
#pragma once

#include <cstdio>

inline int n_failed = 0;

#define CHECK(condition) check_that((condition), #condition, __FILE__, __LINE__)

inline bool check_that(bool holds, const char * condition, const char * file, int line) {
    if (!holds) {
        std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
        ++n_failed;
    }
    return holds;
}
