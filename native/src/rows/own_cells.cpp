// llama.cpp's own notes of cells, which stay at one that stands for all that was fed, and a batch. The patch 0001 declares these.
#include "llama-kv-cache.h"

#include <utility>

void llama_kv_cells::keep_first(uint32_t n, llama_pos last) {
    for (uint32_t i = n; i < pos.size(); ++i) {
        if (pos[i] != -1) {
            seq_pos[0].erase({ pos[i], i });
            used.erase(i);
            seq[i].reset();
            pos[i] = -1;
            ext[i].reset();
        }
    }
    if (n > 0) {
        auto node = seq_pos[0].extract({ pos[n - 1], n - 1 });
        if (node) {
            pos[n - 1]   = last;
            node.value() = { last, n - 1 };
            seq_pos[0].insert(std::move(node));
        }
    }
}

void llama_kv_cache::keep_first(uint32_t n, llama_pos last) {
    auto & cells = v_cells[0];
    cells.keep_first(n, last);
    v_heads[0] = n < cells.size() ? n : 0;
}

void llama_kv_cache::take_cells(llama_kv_cells && taken) {
    auto &     cells = v_cells[0];
    const auto n     = taken.used_max_p1();

    cells      = std::move(taken);
    v_heads[0] = n < cells.size() ? n : 0;
}
