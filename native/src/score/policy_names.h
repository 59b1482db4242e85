// Policies by their names: a base, and wrappers that are put around it, each with options.
#pragma once

#include "edgekv.h"

#include <string>

namespace edgekv {

// The policy of a text such as "snapkv(window=64)+critical+ada". Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT).
edgekv_policy policy_named(const std::string & text);

} // namespace edgekv
