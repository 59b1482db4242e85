#include "hooks/weights_file.h"

#include "gguf.h"
#include "hooks/status.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/stat.h>
#if !defined(_WIN32)
#    include <fcntl.h>
#    include <unistd.h>
#endif

namespace edgekv {

bool is_repacked(ggml_backend_buffer_type_t type) {
    const auto device = ggml_backend_buft_get_device(type);
    return device != nullptr && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU && !ggml_backend_buft_is_host(type);
}

bool WeightsFile::State::operator==(const State & other) const {
    return n_bytes >= 0 && n_bytes == other.n_bytes && seconds == other.seconds && nanoseconds == other.nanoseconds &&
           device == other.device && inode == other.inode;
}

WeightsFile::WeightsFile(const char * path, Handle file) : path_(path), file_(std::move(file)), state_(state()) {
#if !defined(_WIN32)
    fcntl(fileno(file_.get()), F_SETFD, FD_CLOEXEC);
#endif
}

std::shared_ptr<const WeightsFile> WeightsFile::open(const char * path) {
    Handle handle(ggml_fopen(path, "rb"));
    if (!handle) {
        fail(EDGEKV_STATUS_MODEL_INVALID, "it cannot be opened: %s", std::strerror(errno));
    }
    std::shared_ptr<WeightsFile> file(new WeightsFile(path, std::move(handle)));
    return file->read_header() ? file : nullptr;
}

// Note the places of all W_O. What else the header says is let go.
bool WeightsFile::read_header() {
    ggml_context *                                             held = nullptr;
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> header(gguf_init_from_file_ptr(file_.get(), { true, &held }), gguf_free);
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> tensors(held, ggml_free);
    if (!header) {
        return false;
    }
    for (ggml_tensor * tensor = ggml_get_first_tensor(held); tensor; tensor = ggml_get_next_tensor(held, tensor)) {
        const char * name = ggml_get_name(tensor);
        if (std::strstr(name, "attn_output.weight") != nullptr) {
            const uint64_t begin  = gguf_get_data_offset(header.get());
            const uint64_t offset = gguf_get_tensor_offset(header.get(), gguf_find_tensor(header.get(), name));
            places_[name]         = { begin + offset, tensor->type, tensor->ne[0], tensor->ne[1] };
        }
    }
    return true;
}

uint64_t WeightsFile::find(const ggml_tensor & w_o) const {
    const auto found = places_.find(ggml_get_name(&w_o));
    const bool fits  = found != places_.end() && found->second.type == w_o.type && found->second.n_columns == w_o.ne[0] &&
                      found->second.n_rows == w_o.ne[1];
    if (!fits) {
        fail(EDGEKV_STATUS_MODEL_INVALID, "critical reads the repacked W_O in the model's file, which has no '%s' as it was loaded; "
             "load the model anew, or with repack=False: '%s'", ggml_get_name(&w_o), path_.c_str());
    }
    return found->second.offset;
}

void WeightsFile::require_current() const {
    if (!(state_of(path_.c_str()) == state_)) {
        fail(EDGEKV_STATUS_MODEL_INVALID, "the model's file was replaced or written to while it was loaded; load it again: '%s'",
             path_.c_str());
    }
}

// What was written after it was read did not spoil what was read, so the state is compared afterwards.
void WeightsFile::read(uint64_t offset, void * dst, size_t n) const {
    if (!read_whole(offset, static_cast<char *>(dst), n) || !(state() == state_)) {
        fail(EDGEKV_STATUS_MODEL_INVALID, "critical reads the repacked W_O in the model's file, which was changed after it was loaded, "
             "or can no longer be read; load the model anew, or with repack=False: '%s'", path_.c_str());
    }
}

#if defined(_WIN32)

static WeightsFile::State read_state(int failure, const struct _stat64 & status) {
    return failure != 0 ? WeightsFile::State() : WeightsFile::State{ status.st_size, status.st_mtime, 0, status.st_dev, status.st_ino };
}

WeightsFile::State WeightsFile::state() const {
    struct _stat64 status;
    return read_state(_fstat64(_fileno(file_.get()), &status), status);
}

// The path is UTF-8, as ggml opens it.
WeightsFile::State WeightsFile::state_of(const char * path) {
    const std::unique_ptr<std::FILE, Close> file(ggml_fopen(path, "rb"));
    struct _stat64                          status;
    return file ? read_state(_fstat64(_fileno(file.get()), &status), status) : State();
}

bool WeightsFile::read_whole(uint64_t offset, char * dst, size_t n) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return _fseeki64(file_.get(), static_cast<int64_t>(offset), SEEK_SET) == 0 && std::fread(dst, 1, n, file_.get()) == n;
}

#else

static WeightsFile::State read_state(int failure, const struct stat & status) {
    if (failure != 0) {
        return {};
    }
#    if defined(__APPLE__)
    const timespec changed = status.st_mtimespec;
#    else
    const timespec changed = status.st_mtim;
#    endif
    return { status.st_size, changed.tv_sec, changed.tv_nsec, static_cast<uint64_t>(status.st_dev), status.st_ino };
}

WeightsFile::State WeightsFile::state() const {
    struct stat status;
    return read_state(fstat(fileno(file_.get()), &status), status);
}

WeightsFile::State WeightsFile::state_of(const char * path) {
    struct stat status;
    return read_state(stat(path, &status), status);
}

bool WeightsFile::read_whole(uint64_t offset, char * dst, size_t n) const {
    while (n > 0) {
        const ssize_t n_read = pread(fileno(file_.get()), dst, n, static_cast<off_t>(offset));
        if (n_read < 0 && errno == EINTR) {
            continue;
        }
        if (n_read <= 0) {
            return false;
        }
        dst += n_read;
        offset += n_read;
        n -= n_read;
    }
    return true;
}

#endif

} // namespace edgekv
