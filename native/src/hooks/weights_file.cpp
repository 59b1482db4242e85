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

std::shared_ptr<const WeightsFile> WeightsFile::open(const char * path, bool all) {
    Handle handle(ggml_fopen(path, "rb"));
    if (!handle) {
        fail(EDGEKV_STATUS_MODEL_INVALID, "it cannot be opened: %s", std::strerror(errno));
    }
    std::shared_ptr<WeightsFile> file(new WeightsFile(path, std::move(handle)));
    return file->read_header(all) ? file : nullptr;
}

static int64_t find_key(const gguf_context * header, const std::string & key, gguf_type type) {
    const int64_t id = gguf_find_key(header, key.c_str());
    return id >= 0 && gguf_get_kv_type(header, id) == type ? id : -1;
}

// Note the places of weights. What else the header says is let go.
bool WeightsFile::read_header(bool all) {
    ggml_context *                                             held = nullptr;
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> header(gguf_init_from_file_ptr(file_.get(), { true, &held }), gguf_free);
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> tensors(held, ggml_free);
    if (!header) {
        return false;
    }
    const int64_t architecture = find_key(header.get(), "general.architecture", GGUF_TYPE_STRING);
    if (architecture >= 0) {
        const std::string name   = gguf_get_val_str(header.get(), architecture);
        const int64_t     blocks = find_key(header.get(), name + ".block_count", GGUF_TYPE_UINT32);
        n_layers_                = blocks < 0 ? 0 : gguf_get_val_u32(header.get(), blocks);
    }
    const int64_t split = find_key(header.get(), "split.count", GGUF_TYPE_UINT16);
    n_files_            = split < 0 ? 1 : gguf_get_val_u16(header.get(), split);
    for (ggml_tensor * tensor = ggml_get_first_tensor(held); tensor; tensor = ggml_get_next_tensor(held, tensor)) {
        const char * name = ggml_get_name(tensor);
        has_output_ = has_output_ || std::strcmp(name, "output.weight") == 0;
        if (all || std::strstr(name, "attn_output.weight") != nullptr || std::strstr(name, "token_embd.weight") != nullptr) {
            const uint64_t begin  = gguf_get_data_offset(header.get());
            const uint64_t offset = gguf_get_tensor_offset(header.get(), gguf_find_tensor(header.get(), name));
            places_[name]         = { begin + offset, tensor->type, tensor->ne[0], ggml_nbytes(tensor) };
        }
    }
    return true;
}

uint64_t WeightsFile::find(const ggml_tensor & weight) const {
    const auto found = places_.find(ggml_get_name(&weight));
    const bool fits  = found != places_.end() && found->second.type == weight.type && found->second.n_columns == weight.ne[0] &&
                      found->second.n_bytes == ggml_nbytes(&weight);
    if (!fits) {
        fail(EDGEKV_STATUS_MODEL_INVALID, "the model's file has no '%s' as it was loaded, where it would be read again; load the model "
             "anew, or map it (mmap=True): '%s'", ggml_get_name(&weight), path_.c_str());
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
int WeightsFile::try_read(uint64_t offset, void * dst, size_t n) const {
    const int result = read_whole(offset, static_cast<char *>(dst), n);
    return result == 0 && !(state() == state_) ? -1 : result;
}

std::string WeightsFile::failure(int result) const {
    const std::string reason = result < 0 ? "it was changed after it was loaded" : std::strerror(result);
    return "cannot be read in the model's file: " + reason + "; load the model anew, or map it (mmap=True): '" + path_ + "'";
}

void WeightsFile::read(uint64_t offset, void * dst, size_t n) const {
    if (const int result = try_read(offset, dst, n); result != 0) {
        throw Error(EDGEKV_STATUS_MODEL_INVALID, "critical reads W_O, and its weights " + failure(result));
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

int WeightsFile::read_whole(uint64_t offset, char * dst, size_t n) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (_fseeki64(file_.get(), static_cast<int64_t>(offset), SEEK_SET) != 0) {
        return errno;
    }
    const bool is_read = std::fread(dst, 1, n, file_.get()) == n;
    return is_read ? 0 : std::ferror(file_.get()) != 0 ? errno : -1;
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

int WeightsFile::read_whole(uint64_t offset, char * dst, size_t n) const {
    while (n > 0) {
        const ssize_t n_read = pread(fileno(file_.get()), dst, n, static_cast<off_t>(offset));
        if (n_read < 0 && errno == EINTR) {
            continue;
        }
        if (n_read <= 0) {
            return n_read < 0 ? errno : -1;
        }
        dst += n_read;
        offset += n_read;
        n -= n_read;
    }
    return 0;
}

#endif

} // namespace edgekv
