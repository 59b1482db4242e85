#include "cache/staging.h"

#include <cstdlib>
#include <string>

namespace edgekv {

Staging staging() {
    const char *      named = std::getenv("EDGEKV_STAGING");
    const std::string name  = named != nullptr ? named : "";
    return name == "copies" ? Staging::copies : name == "graphs" ? Staging::graphs : Staging::automatic;
}

} // namespace edgekv
