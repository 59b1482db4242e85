#include "rows/recurrent_state.h"

#include "ggml-backend.h"

#include <utility>

namespace edgekv {

std::vector<ggml_tensor *> states_of(const llama_memory_recurrent & memory) {
    std::vector<ggml_tensor *> states;
    for (const auto * of_layers : { &memory.r_l, &memory.s_l, &memory.p_l }) {
        for (ggml_tensor * state : *of_layers) {
            if (state != nullptr && ggml_nbytes(state) > 0) { // models of convolutions alone have empty ones
                states.push_back(state);
            }
        }
    }
    return states;
}

RecurrentState::RecurrentState(llama_memory_recurrent & memory) :
    memory_(memory), states_(states_of(memory)), beside_(states_.size()) {
    for (const ggml_tensor * state : states_) {
        copies_.push_back(ggml_dup_tensor(beside_.at(*state), state));
    }
    beside_.allocate();
}

void RecurrentState::keep() {
    cell_ = memory_.cells[0];
    for (size_t i = 0; i < states_.size(); ++i) {
        ggml_backend_tensor_copy(states_[i], copies_[i]);
    }
}

void RecurrentState::put_back() {
    put_cell(std::move(cell_));
    for (size_t i = 0; i < states_.size(); ++i) {
        ggml_backend_tensor_copy(copies_[i], states_[i]);
    }
}

void RecurrentState::reposition(int32_t last) { memory_.cells[0].pos = last; }

void RecurrentState::replaced(std::set<llama_seq_id> && text, int32_t last) {
    llama_memory_recurrent::mem_cell cell;
    cell.pos    = last;
    cell.src    = 0; // the state is its own past, and not to be zeroed
    cell.src0   = 0;
    cell.tail   = 0;
    cell.seq_id = std::move(text);
    put_cell(std::move(cell));
}

void RecurrentState::put_cell(llama_memory_recurrent::mem_cell && cell) {
    memory_.cells[0] = std::move(cell);
    memory_.used     = memory_.cells[0].is_empty() ? 0 : 1;
    memory_.head     = 0;
}

} // namespace edgekv
