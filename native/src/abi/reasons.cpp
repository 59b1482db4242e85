#include "abi/reasons.h"

#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace edgekv {

namespace {

thread_local Reasons * loading = nullptr;

struct Callback {
    ggml_log_callback call      = nullptr;
    void *            user_data = nullptr;
};

std::mutex changing; // of what follows, and of llama.cpp's own
size_t     n_alive = 0;
Callback   hosts; // none if the host has set none

Callback current() {
    Callback callback;
    llama_log_get(&callback.call, &callback.user_data);
    return callback;
}

} // namespace

// Without an allocation: it may be memory that ran out.
void Reasons::take(ggml_log_level level, const char * text, void * /*user_data*/) {
    if (level == GGML_LOG_LEVEL_ERROR && loading != nullptr) {
        const size_t n = std::min(std::strlen(text), sizeof(loading->kept_) - loading->n_);
        std::copy_n(text, n, loading->kept_ + loading->n_);
        loading->n_ += n;
    }
    // llama.cpp's log is for its own developers
    static const bool show = std::getenv("EDGEKV_LOG") != nullptr;
    if (show) {
        std::fputs(text, stderr);
    }
    const Callback host = [] {
        const std::lock_guard<std::mutex> lock(changing);
        return hosts;
    }();
    if (host.call != nullptr) {
        host.call(level, text, host.user_data);
    }
}

Reasons::Reasons() {
    loading = this;
    const std::lock_guard<std::mutex> lock(changing);
    if (n_alive++ > 0) {
        return;
    }
    hosts = current();
    llama_log_set(nullptr, nullptr);
    if (hosts.call == current().call || hosts.call == take) {
        hosts = {};
    }
    llama_log_set(take, nullptr);
}

Reasons::~Reasons() {
    loading = nullptr;
    const std::lock_guard<std::mutex> lock(changing);
    if (--n_alive == 0 && hosts.call != nullptr && current().call == take) {
        llama_log_set(hosts.call, hosts.user_data);
        hosts = {};
    }
}

std::string Reasons::text() const {
    std::string text(kept_, n_);
    while (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    std::replace(text.begin(), text.end(), '\n', ';');
    return text.empty() ? "llama.cpp gave no reason" : text;
}

} // namespace edgekv
