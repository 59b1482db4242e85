// llama.cpp's aborts as exceptions, where a thread can leave the call that aborts.
#pragma once

namespace edgekv {

// While it lives, what llama.cpp would abort with on this thread is thrown: std::bad_alloc where memory ran out, else Error. Of other
// threads the host's own callback is told, and it is ggml's again after the last one.
class Contained {
  public:
    Contained();
    ~Contained();
    static bool is_here(); // whether one lives on this thread, and nothing is Computing
    Contained(const Contained &)             = delete;
    Contained & operator=(const Contained &) = delete;

  private:
    bool before_;
};

// Says, while it lives, that leaving is not safe: other threads or a device work on what this one would unwind, or rows move.
// An abort ends the process, as it does without edgekv.
class Computing {
  public:
    Computing();
    ~Computing();
    Computing(const Computing &)             = delete;
    Computing & operator=(const Computing &) = delete;

  private:
    bool before_;
};

} // namespace edgekv
