/* block_scale.h: products of MXFP8 operands by cuBLASLt, which is opened at run time and never linked. */
#ifndef COLI_CUDA_BLOCK_SCALE_H
#define COLI_CUDA_BLOCK_SCALE_H

#include "context.h"
#include "mxfp8.h"

namespace coli_cuda {

/* Open the library for this context when that was not tried before. DECLINED, always with the same reason: the device's tensor cores do
 * not know block scaling (DEVICE), or libcublasLt of the headers' major is not found, or is too old (LIBRARY). The device is current. */
coli_status open_block_scale(coli_context *context, coli_error *error);

/* Release what open_block_scale made; nothing to do when it was never called. */
void close_block_scale(coli_context *context);

/* y[n, m] = sum over k of weight[m, k] * x[n, k], scales included: rows of y `y_stride` floats apart, n = x.rows, m = weight.rows. */
struct BlockScaledProduct {
  MxOperand weight, x;
  float *y;
  int64_t y_stride;
  void *scratch;
  uint64_t scratch_bytes;
};

/* Start a product on an opened library. DECLINED/SHAPE when it has no kernel for the sizes. */
coli_status multiply(coli_context *context, const BlockScaledProduct &product, cudaStream_t stream, coli_error *error);

}  // namespace coli_cuda

#endif
