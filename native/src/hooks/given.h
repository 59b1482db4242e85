// Structs that a program fills in. Each begins with its size in the program's header, which may be older or newer than this library.
#pragma once

#include "edgekv.h"
#include "edgekv_archive.h"

#include <cstddef>
#include <type_traits>

namespace edgekv {

// A struct at its defaults, with n_bytes.
template <typename T> T default_of();

// What a program gave, with the defaults of what its header lacks. Pointers in it stay as they are.
// Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT) if it ends too early, or holds more than this library knows.
template <typename T> T given(const T & of_program);

// Write a value to a struct of a program, as far as its header has it. Throws Error as `given`.
template <typename T> void give_back(const T & value, T & to);

// The i-th element of a program's array.
template <typename T> T & element(T * of_program, size_t i) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return *reinterpret_cast<T *>(reinterpret_cast<Byte *>(of_program) + i * of_program->n_bytes);
}

// A policy that a program gave, and its scorer.
class GivenPolicy {
  public:
    explicit GivenPolicy(const edgekv_policy & of_program);
    GivenPolicy(const GivenPolicy &)             = delete;
    GivenPolicy & operator=(const GivenPolicy &) = delete;

    const edgekv_policy & operator*() const { return policy_; }
    const edgekv_policy * operator->() const { return &policy_; }

  private:
    edgekv_policy policy_;
    edgekv_scorer scorer_;
};

} // namespace edgekv
