/* matvec.h: products on the device, as the host asks for them. */
#ifndef COLI_CUDA_MATVEC_H
#define COLI_CUDA_MATVEC_H

#include <cuda_runtime_api.h>
#include <stdint.h>

namespace coli_cuda {

/* y[t, g * group_rows + r] = dot(row g * group_rows + r, x[t, g * cols ..]). Everything lies on the device. */
struct Matvec {
  const uint8_t *codes; /* rows of `pitch` bytes, a multiple of 16, zeros behind each row */
  const uint8_t *scales;
  const float *x;
  float *y;
  int64_t pitch, scale_cols, cols, group_rows;
  int64_t x_stride, y_stride; /* in elements */
  uint32_t group_blocks;      /* set by launch_matvec */
};

/* Start the products of `groups` groups and `tokens` tokens. An empty product starts nothing. */
cudaError_t launch_matvec(int32_t format, bool has_nan, Matvec call, int64_t groups, int64_t tokens,
                          cudaStream_t stream);

/* Whether the current device can run what is in this library. */
cudaError_t check_kernels();

}  // namespace coli_cuda

#endif
