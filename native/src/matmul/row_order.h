// How the rows of a matrix of weights lie.
#pragma once

// Each by itself, or n_rows of them side by side, n_bytes of each in turn, as ggml repacks them.
struct edgekv_row_order {
    int n_rows;
    int n_bytes; // 0 where n_rows is 1
};

static const struct edgekv_row_order edgekv_file_order = { 1, 0 };
