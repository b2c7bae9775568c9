/* gemm.h: the products of DeepGEMM as the host asks for them, and what brings operands into the form that they want. */
#ifndef COLI_DEEPGEMM_GEMM_H
#define COLI_DEEPGEMM_GEMM_H

#include <cuda.h> /* CUtensorMap; nothing of the driver's library is linked */
#include <cuda_runtime_api.h>
#include <stdint.h>

namespace coli_deepgemm {

/* Columns that one word of scales covers: four runs of 32. */
constexpr int64_t kWordCols = 128;

/* Tokens from which the large tile is taken. */
constexpr int64_t kSmallTokens = 64;

/* The tile of a product: what tensor maps are made for. */
struct TileSize {
  uint32_t rows, cols;
};
TileSize tile_of(int64_t tokens);

/* y[t, r] = sum over k of a[t, k] * b[r, k] with their scales: one product of all its tokens. */
struct Gemm {
  CUtensorMap a, b, a_scales, b_scales;
  float *y; /* device */
  uint32_t tokens, rows, cols, y_stride;
};

/* Activations as E4M3 codes with a scale for 32 columns. All on the device. */
struct Quantize {
  const float *x;
  uint8_t *codes; /* [tokens, pitch]; zeros behind `cols` */
  uint32_t
      *scales; /* [ceil(cols / 128), scale_stride]: for a token, the scales of four runs, the first in the low byte */
  int64_t tokens, cols, x_stride, pitch, scale_stride;
};

/* Scales of a weight, in the same form: [ceil(cols / 128), scale_stride] words. */
struct Spread {
  const uint8_t *from; /* the weight's own, as it was bound */
  uint32_t *scales;
  int64_t first_row, rows, cols, from_cols, scale_stride;
};

/* Whether the current device can run the kernels, and the shared memory that they need: before the first launch. */
cudaError_t prepare_gemm();

cudaError_t launch_quantize(const Quantize &call, cudaStream_t stream);
cudaError_t launch_spread(bool fp4_weight, const Spread &call, cudaStream_t stream);
cudaError_t launch_gemm(bool fp4_weight, const Gemm &gemm, cudaStream_t stream);

}  // namespace coli_deepgemm

#endif
