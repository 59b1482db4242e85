// Weights that llama.cpp keeps in the processor's own order, or not at all, read where they are as they were: in the model's file.
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

// A GGUF file that stays open, and where weights lie in it. Several threads may read at once.
class WeightsFile {
  public:
    // NULL if it is no GGUF file; ggml's log says why. Throws Error(EDGEKV_STATUS_MODEL_INVALID) where it does not open.
    //   all : note the places of all weights, and not of output projections (W_O) and tables of embeddings alone
    static std::shared_ptr<const WeightsFile> open(const char * path, bool all = false);

    uint32_t n_layers() const { return n_layers_; }
    uint32_t n_files() const { return n_files_; } // that the model is split into
    bool     has_output() const { return has_output_; } // a matrix of its own, which is not the table of embeddings

    // Throw Error(EDGEKV_STATUS_MODEL_INVALID) where its path leads to another file by now, or it was written to: then what was loaded
    // from there is not what `read` reads.
    void require_current() const;

    // Call f(name, number of rows) for every weight whose place was noted.
    template <typename F> void each(F f) const {
        for (const auto & [name, place] : places_) {
            f(name, static_cast<int64_t>(place.n_bytes / ggml_row_size(place.type, place.n_columns)));
        }
    }

    // The byte that a loaded weight begins at. Throws Error(EDGEKV_STATUS_MODEL_INVALID) if no place was noted for one of its name,
    // type and size.
    uint64_t find(const ggml_tensor & weight) const;

    // Copy n bytes. 0 if that is done; else an errno, or -1 if the file was written to since it was opened.
    int try_read(uint64_t offset, void * dst, size_t n) const;

    // What try_read returned, as a message: what cannot be read, why, and what to do.
    std::string failure(int result) const;

    // Copy n bytes of a W_O. Throws Error(EDGEKV_STATUS_MODEL_INVALID) where try_read fails.
    void read(uint64_t offset, void * dst, size_t n) const;

    // What changes when somebody writes to a file, or puts another in its place.
    struct State {
        int64_t  n_bytes     = -1; // none if the system does not say, which equals nothing
        int64_t  seconds     = 0;  // of the last change
        int64_t  nanoseconds = 0;  // 0 if the system does not say
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
        size_t    n_bytes;
    };

    WeightsFile(const char * path, Handle file);

    bool         read_header(bool all);
    State        state() const;
    static State state_of(const char * path);
    int          read_whole(uint64_t offset, char * dst, size_t n) const; // as try_read, and -1 if the file ends before

    std::string                  path_;
    Handle                       file_;
    State                        state_; // when it was opened
    std::map<std::string, Place> places_;
    uint32_t                     n_layers_   = 0;
    uint32_t                     n_files_    = 1;
    bool                         has_output_ = false;
    mutable std::mutex           mutex_; // of the handle's position, on systems that read from there
};

} // namespace edgekv
