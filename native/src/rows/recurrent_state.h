// The states of a model's recurrent layers, which every token changes for good.
#pragma once

#include "llama-memory-recurrent.h"
#include "rows/beside.h"

#include <cstdint>
#include <set>
#include <vector>

namespace edgekv {

// llama.cpp's one cell for the text, with room for a copy: what a batch does to a state is undone by putting the copy back.
class RecurrentState {
  public:
    // The copy lies beside the states. Throws std::bad_alloc.
    explicit RecurrentState(llama_memory_recurrent & memory);

    int32_t last() const { return memory_.cells[0].pos; } // position of the newest token that it knows; -1 = none

    // Copy the states as they are; put the copy back, which neither fails nor allocates.
    void keep();
    void put_back();

    // Say that the newest token has another position now.
    void reposition(int32_t last);

    // f(tensor, 0, bytes) of every state.
    template <typename F> void each_part(F f) const {
        for (ggml_tensor * state : states_) {
            f(state, 0, ggml_nbytes(state));
        }
    }

    // Say that the states were overwritten: they know tokens up to `last`. It allocates nothing.
    void replaced(std::set<llama_seq_id> && text, int32_t last);

    uint64_t bytes(bool host) const { return beside_.bytes(host); } // of the copy: in the host's memory, or on devices

  private:
    void put_cell(llama_memory_recurrent::mem_cell && cell);

    llama_memory_recurrent &         memory_;
    std::vector<ggml_tensor *>       states_;
    Beside                           beside_; // where the copies lie
    std::vector<ggml_tensor *>       copies_;
    llama_memory_recurrent::mem_cell cell_; // as llama.cpp knew it when the copy was made
};

// The states of a model's recurrent layers.
std::vector<ggml_tensor *> states_of(const llama_memory_recurrent & memory);

} // namespace edgekv
