/* matvec.cu: the kernels, and how they are launched. */
#include "matvec.cuh"

#include "../abi/coli_backend.h"

namespace coli_cuda {

namespace {

constexpr int64_t kMostTokens = 32768; /* of one launch: the grid's y ends at 65535 */

template <class Format>
cudaError_t launch(Matvec call, int64_t groups, int64_t tokens, cudaStream_t stream) {
  const int64_t group_blocks = (call.group_rows + kBlockRows - 1) / kBlockRows;
  if (group_blocks * groups > INT32_MAX) return cudaErrorInvalidConfiguration;
  call.group_blocks = static_cast<uint32_t>(group_blocks);
  for (int64_t first = 0; first < tokens; first += kMostTokens) {
    const int64_t count = tokens - first < kMostTokens ? tokens - first : kMostTokens;
    const dim3 grid(static_cast<uint32_t>(group_blocks * groups), static_cast<uint32_t>(count));
    COLI_LAUNCH(matvec<Format>, grid, dim3(kWarps * 32), kSharedBytes, stream, call);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
    call.x += count * call.x_stride;
    call.y += count * call.y_stride;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_matvec(int32_t format, bool has_nan, Matvec call, int64_t groups, int64_t tokens,
                          cudaStream_t stream) {
  if (groups == 0 || tokens == 0 || call.group_rows == 0) return cudaSuccess;
  switch (format) {
    case COLI_FORMAT_BF16:
      return launch<Bf16>(call, groups, tokens, stream);
    case COLI_FORMAT_FP8_BLOCK:
      return has_nan ? launch<Fp8WithNan>(call, groups, tokens, stream) : launch<Fp8>(call, groups, tokens, stream);
    case COLI_FORMAT_FP4_GROUP:
      return launch<Fp4>(call, groups, tokens, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t check_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, matvec<Fp4>);
}

}  // namespace coli_cuda
