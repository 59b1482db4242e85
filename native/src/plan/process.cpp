#include "plan/process.h"

#include "hooks/status.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#if defined(__linux__)
#    include <malloc.h>
#    include <unistd.h>
#elif defined(__APPLE__)
#    include <mach/mach.h>
#elif defined(_WIN32)
#    if !defined(NOMINMAX)
#        define NOMINMAX
#    endif
#    include <windows.h>
#    include <psapi.h>
#endif

namespace edgekv {

namespace {

#if defined(__linux__)

constexpr uint64_t aligned_bytes = 2 << 20; // files as large as this lie where pages around those touched are always the same

struct Held {
    uint64_t mapped   = 0;
    uint64_t resident = 0;
    bool     is_code  = false;
    bool     is_own   = false; // code of this library, most of which is only touched after the plan
};

class File {
  public:
    explicit File(const char * path) : file_(std::fopen(path, "re")) {
        if (file_ == nullptr) {
            fail(EDGEKV_STATUS_UNSUPPORTED, "%s cannot be read, which says what this process holds; mount /proc", path);
        }
    }
    ~File() { std::fclose(file_); }
    File(const File &)             = delete;
    File & operator=(const File &) = delete;

    bool next(char * line, size_t size) { return std::fgets(line, static_cast<int>(size), file_) != nullptr; }

  private:
    FILE * file_;
};

uint64_t bytes_after(const char * text) { return std::strtoull(text, nullptr, 10) * 1024; }

// Linux also maps the pages around those that are touched. Which pages these are depends on the address of a small file, and
// that is random in every process.
uint64_t resident_now() {
    const auto own = reinterpret_cast<uintptr_t>(&resident_now);

    std::map<std::string, Held> files; // by name; code of this library apart from its data
    Held *                      held     = nullptr;
    bool                        readable = false;
    File                        maps("/proc/self/smaps");
    char                        line[4352]; // a path, and what stands before it
    while (maps.next(line, sizeof(line))) {
        unsigned long long begin = 0, end = 0;
        char               permissions[8] = "";
        int                n_before       = 0;
        if (std::sscanf(line, "%llx-%llx %7s %*s %*s %*s %n", &begin, &end, permissions, &n_before) == 3) {
            std::string name(line + n_before);
            while (!name.empty() && name.back() == '\n') {
                name.pop_back();
            }
            readable           = std::strchr(permissions, 'r') != nullptr;
            const bool is_code = std::strchr(permissions, 'x') != nullptr && name[0] == '/';
            const bool is_own  = begin <= own && own < end;
            held               = &files[is_own ? name + " (code)" : name];
            held->is_code |= is_code || name == "[stack]";
            held->is_own |= is_own;
        } else if (held != nullptr && readable && std::strncmp(line, "Size:", 5) == 0) {
            held->mapped += bytes_after(line + 5);
        } else if (held != nullptr && std::strncmp(line, "Rss:", 4) == 0) {
            held->resident += bytes_after(line + 4);
        }
    }
    uint64_t n_bytes = 0;
    for (const auto & [name, file] : files) {
        n_bytes += file.is_own || (file.is_code && file.mapped < aligned_bytes) ? file.mapped : file.resident;
    }
    return n_bytes;
}

// A number that a file of /proc gives after a name; 0 = it gives none.
uint64_t bytes_of(const char * path, const char * name) {
    const size_t n_name = std::strlen(name);
    File         file(path);
    for (char line[256]; file.next(line, sizeof(line));) {
        if (std::strncmp(line, name, n_name) == 0) {
            return bytes_after(line + n_name);
        }
    }
    return 0;
}

uint64_t peak() { return bytes_of("/proc/self/status", "VmHWM:"); }

// What the process wrote: all that work may take but pages of files, and a third of the time that smaps takes.
uint64_t anonymous_now() { return bytes_of("/proc/self/smaps_rollup", "Anonymous:"); }

#elif defined(__APPLE__)

mach_task_basic_info task() {
    mach_task_basic_info   info  = {};
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info), &count);
    return info;
}

uint64_t resident_now() { return task().resident_size; }
uint64_t anonymous_now() { return resident_now(); }
uint64_t peak() { return task().resident_size_max; }

#elif defined(_WIN32)

PROCESS_MEMORY_COUNTERS counters() {
    PROCESS_MEMORY_COUNTERS found = {};
    K32GetProcessMemoryInfo(GetCurrentProcess(), &found, sizeof(found));
    return found;
}

uint64_t resident_now() { return counters().WorkingSetSize; }
uint64_t anonymous_now() { return resident_now(); }
uint64_t peak() { return counters().PeakWorkingSetSize; }

#else

uint64_t resident_now() { return 0; }
uint64_t anonymous_now() { return 0; }
uint64_t peak() { return 0; }

#endif

// Takes the holes that the heap has, without touching their pages, and gives them back when it ends.
class Holes {
  public:
    Holes() {
#if defined(__GLIBC__)
        constexpr size_t largest_hole  = 1 << 16; // larger ones come apart; glibc would map what is asked for instead
        constexpr size_t smallest_hole = 1 << 12; // smaller ones lie in pages that are resident anyway

        const auto end = reinterpret_cast<uintptr_t>(sbrk(0)); // what lies beyond is no hole
        for (size_t size = largest_hole; size >= smallest_hole; size /= 2) {
            void * hole = std::malloc(size);
            while (hole != nullptr && reinterpret_cast<uintptr_t>(hole) + size <= end) {
                *static_cast<void **>(hole) = last_;
                last_                       = hole;
                hole                        = std::malloc(size);
            }
            std::free(hole);
        }
#endif
    }
    ~Holes() {
        while (last_ != nullptr) {
            std::free(std::exchange(last_, *static_cast<void **>(last_)));
        }
    }
    Holes(const Holes &)             = delete;
    Holes & operator=(const Holes &) = delete;

  private:
    void * last_ = nullptr; // each begins with the address of the one before
};

} // namespace

uint64_t counted_bytes() {
    const uint64_t n_bytes = resident_now();
    if (n_bytes == 0) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "this system does not say what a process holds, so nothing can be planned");
    }
    return n_bytes;
}

uint64_t taken_by(const std::function<void()> & work) {
    return_freed_memory();
    const Holes    taken;
    const uint64_t before = anonymous_now();
    work();
    return_freed_memory();
    const uint64_t after = anonymous_now();
    return after > before ? after - before : 0;
}

void return_freed_memory() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

} // namespace edgekv

using namespace edgekv;

enum edgekv_status edgekv_process_bytes(uint64_t * n_bytes, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(n_bytes, "n_bytes is NULL");
        *n_bytes = counted_bytes();
    });
}

uint64_t edgekv_process_peak_bytes(void) {
    uint64_t n_bytes = 0;
    guard(nullptr, 0, [&] { n_bytes = peak(); });
    return n_bytes;
}
