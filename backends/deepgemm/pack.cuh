/* pack.cuh: operands in the form that DeepGEMM's kernels want: codes in rows, scales as words of four, one line for 128 columns. */
#ifndef COLI_DEEPGEMM_PACK_CUH
#define COLI_DEEPGEMM_PACK_CUH

#include "../cuda/e4m3.cuh"
#include "gemm.h"

namespace coli_deepgemm {

constexpr int kWarps = 4;                         /* of a block that quantizes: each takes 128 columns of a token */
constexpr int kSpreadRows = 32, kSpreadWords = 8; /* of a block that spreads scales */
constexpr uint32_t kInfinity = 0x7f800000u;

/* One warp: 128 columns of a token, four a lane; eight lanes share a scale. */
static __global__ void __launch_bounds__(kWarps * 32) quantize(Quantize call) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t word = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, token = blockIdx.y;
  if (word * kWordCols >= call.cols) return; /* a whole warp */
  const int64_t first = word * kWordCols + 4 * lane;
  const float *const from = call.x + token * call.x_stride;
  float values[4];
  uint32_t largest = 0; /* as bits, so that NaN and infinity are the largest of all */
#pragma unroll
  for (int at = 0; at < 4; ++at) {
    values[at] = first + at < call.cols ? from[first + at] : 0.0f;
    const uint32_t magnitude = coli_bits(values[at]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(coli_cuda::kAllLanes, largest, distance);
    largest = other > largest ? other : largest;
  }
  uint32_t scale = 127, codes = 0x7f7f7f7fu; /* four NaN */
  if (largest < kInfinity) {
    scale = coli_cuda::scale_of(coli_float(largest));
    codes = 0;
    const float inverse = coli_float((254u - scale) << 23); /* a power of two, as the scale is: 105 <= scale <= 247 */
#pragma unroll
    for (int at = 0; at < 4; ++at) {
      const uint32_t bits = coli_bits(values[at]);
      const float scaled = __fmul_rn(coli_float(bits & 0x7fffffffu), inverse);
      codes |= (coli_cuda::e4m3_of(scaled > 448.0f ? 448.0f : scaled) | bits >> 31 << 7) << (8 * at);
    }
  }
  if (first < call.pitch) *reinterpret_cast<uint32_t *>(call.codes + token * call.pitch + first) = codes;
  uint32_t scales = scale << (lane / 8 * 8);
  scales |= __shfl_xor_sync(coli_cuda::kAllLanes, scales, 8);
  scales |= __shfl_xor_sync(coli_cuda::kAllLanes, scales, 16);
  if (lane == 0) call.scales[word * call.scale_stride + token] = scales;
}

/* One thread: the word of a row of the weight. Threads of a block that read the same 32 bytes lie together. */
template <bool kFp4Weight>
static __global__ void __launch_bounds__(kSpreadRows *kSpreadWords) spread(Spread call) {
  const int64_t row = int64_t{blockIdx.x} * kSpreadRows + threadIdx.x % kSpreadRows;
  const int64_t word = int64_t{blockIdx.y} * kSpreadWords + threadIdx.x / kSpreadRows;
  if (row >= call.scale_stride || word * kWordCols >= call.cols) return;
  uint32_t scales = 0;
  if (row < call.rows) {
    const int64_t line = call.first_row + row;
    if (kFp4Weight) {
      const uint8_t *const from = call.from + line * call.from_cols + 4 * word;
#pragma unroll
      for (int at = 0; at < 4; ++at) scales |= uint32_t{from[at]} << (8 * at);
    } else {
      scales = call.from[line / 128 * call.from_cols + word] * 0x01010101u;
    }
  }
  call.scales[word * call.scale_stride + row] = scales;
}

}  // namespace coli_deepgemm

#endif
