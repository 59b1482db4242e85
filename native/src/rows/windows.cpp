#include "rows/windows.h"

#include "llama-hparams.h"
#include "llama-kv-cache.h"

#include <algorithm>
#include <utility>

namespace edgekv {

std::vector<ggml_tensor *> Windows::rows() const {
    std::vector<ggml_tensor *> rows;
    for (const auto & layer : ring_.layers) {
        rows.push_back(layer.k);
        rows.push_back(layer.v);
    }
    return rows;
}

int32_t  Windows::last() const { return ring_.v_cells[0].seq_pos_max(0); }
uint32_t Windows::size() const { return ring_.v_cells[0].size(); }
uint32_t Windows::head() const { return ring_.v_heads[0]; }

void Windows::begin(int32_t next) {
    ring_.next_pos = next;
    next_          = next;
    head_          = head();
}

void Windows::undo() {
    ring_.seq_rm(0, next_, -1);
    ring_.v_heads[0] = head_;
}

std::vector<int32_t> Windows::positions() const {
    const llama_kv_cells & cells = ring_.v_cells[0];
    const int32_t          newest = last();
    std::vector<int32_t>   positions(cells.size(), -1);
    for (uint32_t cell = 0; cell < cells.size(); ++cell) {
        if (cells.is_empty(cell)) {
            continue;
        }
        const int32_t position = cells.pos_get(cell);
        positions[cell]        = sees(position, newest) ? position : hidden(position);
    }
    return positions;
}

bool Windows::sees(int32_t position, int32_t newest) const {
    return position == newest || !llama_hparams::is_masked_swa(ring_.n_swa, ring_.swa_type, position, newest + 1);
}

llama_kv_cells Windows::cells_of(const std::vector<int32_t> & positions) {
    llama_kv_cells cells;
    cells.resize(static_cast<uint32_t>(positions.size()));
    for (uint32_t cell = 0; cell < cells.size(); ++cell) {
        if (positions[cell] != -1) {
            cells.pos_set(cell, std::max(positions[cell], hidden(positions[cell])));
            cells.seq_add(cell, 0);
        }
    }
    return cells;
}

void Windows::replaced(llama_kv_cells && cells, uint32_t head) {
    ring_.v_cells[0] = std::move(cells);
    ring_.v_heads[0] = head;
}

} // namespace edgekv
