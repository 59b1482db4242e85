// A disk that fails or is slow: reads of files that end with ".gguf" do what a word in the file $FAILING_DISK says. It is loaded before
// the C library (LD_PRELOAD), so a test can have it in every process that a program starts.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_model(int file) {
    char place[64], path[4096];
    snprintf(place, sizeof place, "/proc/self/fd/%d", file);
    ssize_t n = readlink(place, path, sizeof path);
    return n > 5 && memcmp(path + n - 5, ".gguf", 5) == 0;
}

// What the file says: 'f' = fail, 't' = fail at every third read, 's' = be slow, anything else = read.
static char told(void) {
    char   word = 0;
    FILE * file = fopen(getenv("FAILING_DISK"), "r");
    if (file != NULL) {
        word = (char) fgetc(file);
        fclose(file);
    }
    return word;
}

static ssize_t read_at(const char * name, int file, void * to, size_t n, off64_t offset) {
    static atomic_uint n_thirds;
    const char         word = is_model(file) ? told() : 0;
    if (word == 'f' || (word == 't' && atomic_fetch_add(&n_thirds, 1) % 3 == 2)) {
        errno = EIO;
        return -1;
    }
    if (word == 's') {
        usleep(2000);
        n = n > 4096 ? n / 2 : n; // fewer bytes than asked for, as the kernel may give
    }
    ssize_t (*next)(int, void *, size_t, off64_t) = (ssize_t(*)(int, void *, size_t, off64_t)) dlsym(RTLD_NEXT, name);
    return next(file, to, n, offset);
}

ssize_t pread(int file, void * to, size_t n, off_t offset) { return read_at("pread", file, to, n, offset); }

ssize_t pread64(int file, void * to, size_t n, off64_t offset) { return read_at("pread64", file, to, n, offset); }
