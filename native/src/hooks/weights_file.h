// Weights that llama.cpp keeps in the processor's own order, read where they are still as they were: in the model's file.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace edgekv {

// Whether tensors of this type lie in the processor's memory and cannot be read back.
bool is_repacked(ggml_backend_buffer_type_t type);

// A GGUF file that stays open, and where its output projections (W_O) lie in it. Several threads may read at once.
class WeightsFile {
  public:
    // NULL where it is no GGUF file; ggml's log says why. Throws Error(EDGEKV_STATUS_MODEL_INVALID) where it does not open.
    static std::shared_ptr<const WeightsFile> open(const char * path);

    // Throw Error(EDGEKV_STATUS_MODEL_INVALID) where its path leads to another file by now, or it was written to: then what was loaded
    // from there is not what `read` reads.
    void require_current() const;

    // Where the rows of a loaded W_O begin, in bytes. Throws Error(EDGEKV_STATUS_MODEL_INVALID) where the file has none of
    // its name, type and shape.
    uint64_t find(const ggml_tensor & w_o) const;

    // Copy n bytes. Throws Error(EDGEKV_STATUS_MODEL_INVALID) where they are gone, or the file was written to since it was
    // opened.
    void read(uint64_t offset, void * dst, size_t n) const;

    // What changes when somebody writes to a file, or puts another in its place.
    struct State {
        int64_t  n_bytes     = -1; // none where the system does not say, which equals nothing
        int64_t  seconds     = 0;  // of the last change
        int64_t  nanoseconds = 0;  // 0 where the system does not say
        uint64_t device      = 0;
        uint64_t inode       = 0; // likewise
        bool     operator==(const State & other) const;
    };

  private:
    struct Close {
        void operator()(std::FILE * file) const { std::fclose(file); }
    };
    using Handle = std::unique_ptr<std::FILE, Close>;

    struct Place {
        uint64_t  offset;
        ggml_type type;
        int64_t   n_columns;
        int64_t   n_rows;
    };

    WeightsFile(const char * path, Handle file);

    bool  read_header();
    State state() const;
    static State state_of(const char * path);
    bool  read_whole(uint64_t offset, char * dst, size_t n) const;

    std::string                  path_;
    Handle                       file_;
    State                        state_; // when it was opened
    std::map<std::string, Place> places_;
    mutable std::mutex           mutex_; // of the handle's position, on systems that read from there
};

} // namespace edgekv
