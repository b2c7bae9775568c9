/* product.h: dot products of weight rows with packed activations, the same bits as dot_exact(). */
#ifndef COLI_CPU_PRODUCT_H
#define COLI_CPU_PRODUCT_H

#include "context.h"

namespace coli_cpu {

constexpr int64_t kBlockRows = 32;   /* rows decoded at a time: 128 KiB with kBlockCols, half of a small L2 */
constexpr int64_t kBlockCols = 1024; /* two passes of fp8, one of fp4 */
constexpr int64_t kBlockTokens = 64; /* sums of a block: 32 x 64 x 128 bytes */
constexpr int kFusedTokens = 3;      /* up to here weights are decoded in registers */

/* Floats that one packed row takes: whole passes over all lanes. */
int64_t packed_cols_of(int32_t format, int64_t cols);

/* Put one row of activations into the order in which the products with weights of `format` read it. */
void pack_row_for(int32_t format, const float *x, int64_t cols, float *out);

/* Where results go: y[token][row] = value, or with shares y[token][row] = fma(share[token], value, y[token][row]). Two tokens may have
 * the same y: they are taken in order. */
struct Target {
  float *const *y;
  const float *share;
};

/* dot(row, x[token]) for rows [begin, end) and packed tokens; scratch holds kThreadScratchFloats. */
void product(const coli_weight *weight, int64_t begin, int64_t end, const float *const *x, int64_t tokens,
             float *scratch, const Target &target);

/* out[a * stride + b] = dot(rows_a[a], rows_b[b]) of activations, both packed as for COLI_FORMAT_F32, `packed` floats long. */
void dots(const float *const *rows_a, int64_t count_a, const float *const *rows_b, int64_t count_b, int64_t packed,
          float *out, int64_t stride);

/* y[h][c] = y[h][c] + acc with acc = fma(p[h * stride + k], keys[k][c], acc) from +0 over k < count (one block of keys). */
void weigh(const float *p, int64_t stride, int64_t heads, const float *const *keys, int64_t count, int64_t width,
           float *const *y);

}  // namespace coli_cpu

#endif
