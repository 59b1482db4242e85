#include "hooks/silence.h"

#include "edgekv_devices.h"

#include <atomic>
#include <initializer_list>

#ifdef _WIN32
#include <winsock2.h>
#else
#include <sys/socket.h>
#include <sys/time.h>
#endif

namespace {

std::atomic<uint32_t> most_ms{ 0 };

} // namespace

void edgekv_rpc_limit_silence(uint32_t ms) { most_ms = ms; }

void edgekv::limit_silence(intptr_t socket) {
    const uint32_t ms = most_ms;
    if (ms == 0) {
        return;
    }
#ifdef _WIN32
    const DWORD limit = ms;
#else
    timeval limit = {};
    limit.tv_sec  = static_cast<time_t>(ms / 1000);
    limit.tv_usec = static_cast<suseconds_t>(ms % 1000 * 1000);
#endif
    for (const int direction : { SO_RCVTIMEO, SO_SNDTIMEO }) {
        setsockopt(static_cast<int>(socket), SOL_SOCKET, direction, reinterpret_cast<const char *>(&limit), sizeof(limit));
    }
}
