/* mxfp8.h: operands of a block-scaled product on the device: E4M3 codes with one UE8M0 scale for each run of 32 columns. */
#ifndef COLI_CUDA_MXFP8_H
#define COLI_CUDA_MXFP8_H

#include <cuda_runtime_api.h>
#include <stdint.h>

namespace coli_cuda {

constexpr int64_t kRunCols = 32;
constexpr int64_t kRowAlignment =
    16; /* of both operands: the result's rows and columns are then aligned as the library wants them */
constexpr int64_t kScaleTileRows = 128, kScaleTileRuns = 4;

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/* Codes of `rows` (a multiple of kRowAlignment) by `cols` (a multiple of kRunCols), rows `pitch` bytes apart (a multiple of 16). The
 * scales lie in tiles of 128 rows by 4 runs, tiles of a band of rows one after the other, a tile as [row % 32][row / 32][run]; rows and
 * runs that fill up the last tiles have the scale 1. */
struct MxOperand {
  uint8_t *codes;
  uint8_t *scales;
  int64_t rows, cols, pitch;
};

/* Bytes of the scales of an operand of this size, whole tiles. */
constexpr int64_t scale_bytes(int64_t rows, int64_t cols) {
  return round_up(rows, kScaleTileRows) * round_up(round_up(cols, kRunCols) / kRunCols, kScaleTileRuns);
}

/* Rows [first, first + count) of an operand, rounded from activations by the rule of coli_slots.inc. `last`: there are no rows behind
 * them, and those that fill up the operand and its tiles are written too. */
struct Quantize {
  const float *x; /* of row `first` */
  int64_t x_stride /* elements */, cols, first, count;
  bool last;
};
cudaError_t launch_quantize(const Quantize &call, const MxOperand &to, cudaStream_t stream);

/* Rows [first, first + count) of an uploaded weight as a whole operand. `scales_only`: the codes stay where they are. */
struct Expand {
  const uint8_t *codes, *scales;
  int64_t pitch, scale_cols, cols, first, count;
  int32_t format; /* COLI_FORMAT_FP8_BLOCK or COLI_FORMAT_FP4_GROUP */
  bool scales_only;
};
cudaError_t launch_expand(const Expand &call, const MxOperand &to, cudaStream_t stream);

}  // namespace coli_cuda

#endif
