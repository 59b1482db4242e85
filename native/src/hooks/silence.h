// How long a client of RPC waits for its server.
#pragma once

#include <cstdint>

namespace edgekv {

// Have reads and writes of a socket fail once its other end was silent for as long as edgekv_rpc_limit_silence says.
void limit_silence(intptr_t socket);

} // namespace edgekv
