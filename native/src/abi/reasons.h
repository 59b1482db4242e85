// llama.cpp's logged errors while it loads, as the reason of a status.
#pragma once

#include "ggml.h"

#include <cstddef>
#include <string>

namespace edgekv {

// While one lives, errors that llama.cpp logs on this thread are kept. Its log goes to the host's callback as before, and to nobody
// if the host has set none; EDGEKV_LOG=1 shows it. The last one puts the host's callback back.
class Reasons {
  public:
    Reasons();
    ~Reasons();
    Reasons(const Reasons &)             = delete;
    Reasons & operator=(const Reasons &) = delete;

    std::string text() const; // of what was kept, on one line

  private:
    static void take(ggml_log_level level, const char * text, void * user_data); // a line of the log

    char   kept_[1024];
    size_t n_ = 0;
};

} // namespace edgekv
