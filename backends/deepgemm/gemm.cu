/* gemm.cu: the one unit that is compiled for sm_120a and with DeepGEMM's headers, whatever the rest of the library is compiled for. */
#include "gemm.h"

#include "adapter.cuh"
#include "pack.cuh"

namespace coli_deepgemm {

namespace {

constexpr int64_t kMostTokens = 32768; /* of one launch of `quantize`: the grid's y ends at 65535 */

}  // namespace

TileSize tile_of(int64_t tokens) {
  if (tokens <= kSmallTokens) return {SmallTile::kRows, SmallTile::kCols};
  return {LargeTile::kRows, LargeTile::kCols};
}

cudaError_t prepare_gemm() {
  for (const auto prepared : {prepare<SmallTile, false>(), prepare<SmallTile, true>(), prepare<LargeTile, false>(),
                              prepare<LargeTile, true>()})
    if (prepared != cudaSuccess) return prepared;
  return cudaSuccess;
}

cudaError_t launch_quantize(const Quantize &call, cudaStream_t stream) {
  const int64_t words = (call.cols + kWordCols - 1) / kWordCols;
  for (int64_t first = 0; first < call.tokens; first += kMostTokens) {
    const int64_t count = call.tokens - first < kMostTokens ? call.tokens - first : kMostTokens;
    Quantize part = call;
    part.x += first * call.x_stride;
    part.codes += first * call.pitch;
    part.scales += first;
    const dim3 grid(static_cast<uint32_t>((words + kWarps - 1) / kWarps), static_cast<uint32_t>(count));
    COLI_LAUNCH(quantize, grid, dim3(kWarps * 32), 0, stream, part);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_spread(bool fp4_weight, const Spread &call, cudaStream_t stream) {
  const int64_t words = (call.cols + kWordCols - 1) / kWordCols;
  const dim3 grid(static_cast<uint32_t>((call.scale_stride + kSpreadRows - 1) / kSpreadRows),
                  static_cast<uint32_t>((words + kSpreadWords - 1) / kSpreadWords));
  const dim3 block(kSpreadRows * kSpreadWords);
  if (fp4_weight)
    COLI_LAUNCH(spread<true>, grid, block, 0, stream, call);
  else
    COLI_LAUNCH(spread<false>, grid, block, 0, stream, call);
  return cudaGetLastError();
}

cudaError_t launch_gemm(bool fp4_weight, const Gemm &gemm, cudaStream_t stream) {
  if (gemm.tokens <= kSmallTokens)
    return fp4_weight ? launch<SmallTile, true>(gemm, stream) : launch<SmallTile, false>(gemm, stream);
  return fp4_weight ? launch<LargeTile, true>(gemm, stream) : launch<LargeTile, false>(gemm, stream);
}

}  // namespace coli_deepgemm
