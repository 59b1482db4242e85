#include "edgekv.h"

uint32_t edgekv_abi_version(void) { return EDGEKV_ABI_VERSION; }

const char * edgekv_status_name(enum edgekv_status status) {
    switch (status) {
        case EDGEKV_STATUS_OK:               return "ok";
        case EDGEKV_STATUS_INVALID_ARGUMENT: return "invalid argument";
        case EDGEKV_STATUS_INVALID_STATE:    return "invalid state";
        case EDGEKV_STATUS_NOT_FINITE:       return "not finite";
        case EDGEKV_STATUS_UNSUPPORTED:      return "unsupported";
        case EDGEKV_STATUS_MODEL_INVALID:    return "model invalid";
        case EDGEKV_STATUS_OUT_OF_MEMORY:    return "out of memory";
        case EDGEKV_STATUS_INTERNAL:         return "internal";
        case EDGEKV_STATUS_OVER_CEILING:     return "over ceiling";
        case EDGEKV_STATUS_ARCHIVE:          return "archive";
    }
    return "unknown";
}
