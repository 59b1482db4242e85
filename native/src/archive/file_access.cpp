#include "archive/file_access.h"

#include "hooks/status.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#if defined(_WIN32)
#    include <io.h>
#    define NOMINMAX
#    include <windows.h>
#else
#    include <fcntl.h>
#    include <unistd.h>
#endif

namespace edgekv {

namespace {

[[noreturn]] void failed(const char * what, const char * reason) {
    fail(EDGEKV_STATUS_ARCHIVE, "the archive cannot be %s: %s", what, reason);
}

#if defined(_WIN32)

// Transfer(handle, bytes, n, &n_done, &place) of a run of bytes.
template <typename Byte, typename Transfer> int64_t transferred(int fd, uint64_t offset, Byte * bytes, size_t n, Transfer transfer) {
    OVERLAPPED place = {};
    place.Offset     = static_cast<DWORD>(offset);
    place.OffsetHigh = static_cast<DWORD>(offset >> 32);
    DWORD n_done     = 0;
    const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(fd));
    if (!transfer(handle, bytes, static_cast<DWORD>(std::min<size_t>(n, 1u << 30)), &n_done, &place)) {
        errno = GetLastError() == ERROR_DISK_FULL ? ENOSPC : EIO;
        return GetLastError() == ERROR_HANDLE_EOF ? 0 : -1;
    }
    return n_done;
}

int64_t write_some(int fd, uint64_t offset, const char * src, size_t n) { return transferred(fd, offset, src, n, WriteFile); }
int64_t read_some(int fd, uint64_t offset, char * dst, size_t n) { return transferred(fd, offset, dst, n, ReadFile); }

#else

int64_t write_some(int fd, uint64_t offset, const char * src, size_t n) { return pwrite(fd, src, n, static_cast<off_t>(offset)); }
int64_t read_some(int fd, uint64_t offset, char * dst, size_t n) { return pread(fd, dst, n, static_cast<off_t>(offset)); }

#endif

// some(fd, place, bytes, how many) until all are there.
template <typename Byte, typename Some> void each_some(int fd, uint64_t offset, Byte * bytes, size_t n, const char * what, Some some) {
    while (n > 0) {
        const int64_t n_done = some(fd, offset, bytes, n);
        if (n_done < 0 && errno == EINTR) {
            continue;
        }
        if (n_done <= 0) {
            failed(what, n_done < 0 ? std::strerror(errno) : "the file is shorter than what was written");
        }
        bytes += n_done;
        offset += static_cast<uint64_t>(n_done);
        n -= static_cast<size_t>(n_done);
    }
}

} // namespace

void write_at(int fd, uint64_t offset, const void * src, size_t n) {
    each_some(fd, offset, static_cast<const char *>(src), n, "written", write_some);
}

void read_at(int fd, uint64_t offset, void * dst, size_t n) {
    each_some(fd, offset, static_cast<char *>(dst), n, "read", read_some);
}

void begin_writing_out([[maybe_unused]] int fd, [[maybe_unused]] uint64_t offset, [[maybe_unused]] uint64_t n) {
#if defined(__linux__)
    sync_file_range(fd, static_cast<off64_t>(offset), static_cast<off64_t>(n), SYNC_FILE_RANGE_WRITE); // a wish: it may fail
#endif
}

} // namespace edgekv
