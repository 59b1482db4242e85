// A context's memory, seen as edgekv needs it.
#pragma once

class llama_kv_cache;
class llama_memory_recurrent;
struct llama_context;
struct llama_memory_i;
struct llama_model;

namespace edgekv {

class FlatCache;

// The parts of a context's memory, by what becomes of them.
struct Memory {
    FlatCache *              flat      = nullptr; // rows that are laid out by head and evicted; none in models without full attention
    llama_kv_cache *         cache     = nullptr; // llama.cpp's own notes of these rows; NULL if no layer attends
    llama_kv_cache *         windows   = nullptr; // rings of the layers that see a window; NULL if the model has none
    llama_memory_recurrent * recurrent = nullptr; // states that every token changes for good; NULL if the model has none
};

// The parts of llama.cpp's memory; none if it is of a kind that edgekv does not know.
Memory parts_of(const llama_memory_i * memory);

// The rows that are laid out by head in llama.cpp's memory, or NULL.
const FlatCache * flat_of(const llama_memory_i * memory);

// Whether logits are read where a graph leaves them, until the next one: the host computes them, and edgekv alone feeds the context.
bool logits_stay(const llama_memory_i * memory, const llama_model & model);

// Throw Error(EDGEKV_STATUS_UNSUPPORTED) for a model that edgekv cannot run, whatever its memory is.
void require_supported(const llama_model & model);

// The parts of a context that edgekv can run. Throws Error(EDGEKV_STATUS_UNSUPPORTED) where it cannot.
Memory memory_of(const llama_context * ctx);

} // namespace edgekv
