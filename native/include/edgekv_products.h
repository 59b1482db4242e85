// How fast products of a block of tokens with quantised weights are on this processor, measured when it is asked.
#ifndef EDGEKV_PRODUCTS_H
#define EDGEKV_PRODUCTS_H

#include "edgekv_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EDGEKV_INSTRUCTIONS_SIZE 16

// G operations a second of one thread's processor time, two operations for each weight and token.
struct edgekv_product_speed {
    double rate;  // of the product
    double limit; // of a loop that multiplies bytes and adds them up, on registers alone; 0 if the product is ggml's
    char   instructions[EDGEKV_INSTRUCTIONS_SIZE]; // such as "avx512vnni"; "" = the product is ggml's own here
};

// Measure a product and its limit in turn, and return the medians. Takes a fraction of a second, and the memory of the matrix and
// of the block. Weights are random, and lie as in a file.
//   type     : of the weights, an enum ggml_type
//   depth    : weights in a row, a multiple of the type's block
//   n_rows   : rows of weights
//   n_tokens : of the block
//   EDGEKV_STATUS_INVALID_ARGUMENT  there is no such type, or a number is 0 or no multiple
//   EDGEKV_STATUS_UNSUPPORTED       random weights cannot be had in this type
EDGEKV_API enum edgekv_status edgekv_product_measure(
                           int32_t   type,
                          uint32_t   depth,
                          uint32_t   n_rows,
                          uint32_t   n_tokens,
       struct edgekv_product_speed * speed,
                              char * err,
                            size_t   err_size);

#ifdef __cplusplus
}
#endif

#endif // EDGEKV_PRODUCTS_H
