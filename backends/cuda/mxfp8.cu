/* mxfp8.cu: how the kernels that make operands are launched. */
#include "mxfp8.cuh"

#include "../abi/coli_backend.h"

namespace coli_cuda {

namespace {

int64_t runs_of(const MxOperand &to) { return round_up(to.cols / kRunCols, kScaleTileRuns); }

bool blocks_for(int64_t items, dim3 *grid) {
  const int64_t blocks = (items + kMxThreads - 1) / kMxThreads;
  if (blocks > INT32_MAX) return false;
  *grid = dim3(static_cast<uint32_t>(blocks));
  return true;
}

}  // namespace

cudaError_t launch_quantize(const Quantize &call, const MxOperand &to, cudaStream_t stream) {
  const int64_t end = call.last ? round_up(to.rows, kScaleTileRows) : call.first + call.count, runs = runs_of(to);
  dim3 grid;
  if (!blocks_for((end - call.first) * runs, &grid)) return cudaErrorInvalidConfiguration;
  COLI_LAUNCH(quantize_runs, grid, dim3(kMxThreads), 0, stream, call, to, end, runs);
  return cudaGetLastError();
}

cudaError_t launch_expand(const Expand &call, const MxOperand &to, cudaStream_t stream) {
  const int64_t end = round_up(to.rows, kScaleTileRows), runs = runs_of(to);
  dim3 grid;
  if (!blocks_for(end * runs, &grid)) return cudaErrorInvalidConfiguration;
  if (call.format == COLI_FORMAT_FP4_GROUP)
    COLI_LAUNCH(expand_runs<true>, grid, dim3(kMxThreads), 0, stream, call, to, end, runs);
  else if (call.format == COLI_FORMAT_FP8_BLOCK)
    COLI_LAUNCH(expand_runs<false>, grid, dim3(kMxThreads), 0, stream, call, to, end, runs);
  else
    return cudaErrorInvalidValue;
  return cudaGetLastError();
}

}  // namespace coli_cuda
