/* mxfp8.cuh: the kernels that make operands of a block-scaled product. A thread takes one run of 32 columns. Codes are made with integers
 * and with float operations that round once, so that they are the same on every device; sm_80 has no instruction for E4M3. */
#ifndef COLI_CUDA_MXFP8_CUH
#define COLI_CUDA_MXFP8_CUH

#include "e4m3.cuh"
#include "mxfp8.h"

namespace coli_cuda {

constexpr int kMxThreads = 256;
constexpr uint32_t kScaleOne = 127u, kScaleNan = 255u;

/* Four E2M1 codes, the first in the low nibble, as the E4M3 codes of the same values. */
static __device__ __forceinline__ uint32_t e4m3_of_e2m1(uint32_t codes) {
  const uint32_t signs =
      ((codes & 0x8u) << 4) | ((codes & 0x80u) << 8) | ((codes & 0x800u) << 12) | ((codes & 0x8000u) << 16);
  return __byte_perm(0x3c383000u, 0x4c484440u, codes & 0x7777u) | signs; /* 0, 0.5, 1, 1.5, 2, 3, 4, 6 */
}

static __device__ __forceinline__ void put_scale(const MxOperand &to, int64_t runs, int64_t row, int64_t run,
                                                 uint32_t code) {
  const int64_t tile = row / kScaleTileRows * (runs / kScaleTileRuns) + run / kScaleTileRuns,
                within = row % kScaleTileRows;
  to.scales[tile * (kScaleTileRows * kScaleTileRuns) + within % 32 * 16 + within / 32 * kScaleTileRuns +
            run % kScaleTileRuns] = static_cast<uint8_t>(code);
}

static __device__ __forceinline__ void put_codes(const MxOperand &to, int64_t row, int64_t run,
                                                 const uint32_t (&words)[8]) {
  uint4 *const at = reinterpret_cast<uint4 *>(to.codes + row * to.pitch + run * kRunCols);
  at[0] = make_uint4(words[0], words[1], words[2], words[3]);
  at[1] = make_uint4(words[4], words[5], words[6], words[7]);
}

/* `runs`: of a row of the scales, whole tiles. */
__global__ void __launch_bounds__(kMxThreads) quantize_runs(Quantize call, MxOperand to, int64_t end, int64_t runs) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kMxThreads + threadIdx.x;
  const int64_t row = call.first + item / runs, run = item % runs;
  if (row >= end) return;
  const int64_t col = run * kRunCols;
  uint32_t words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  uint32_t scale = kScaleOne;
  if (row < call.first + call.count && col < call.cols) {
    const float *const x = call.x + (row - call.first) * call.x_stride + col;
    const int count = static_cast<int>(call.cols - col < kRunCols ? call.cols - col : kRunCols);
    float amax = 0.0f;
    bool finite = true;
    for (int at = 0; at < count; ++at) {
      const uint32_t bits = coli_bits(x[at]) & 0x7fffffffu;
      finite = finite && bits < 0x7f800000u;
      amax = coli_float(bits) > amax ? coli_float(bits) : amax;
    }
    scale = finite ? scale_of(amax) : kScaleNan;
    const float inverse = coli_float((254u - scale) << 23); /* a power of two, as the scale: 105 <= code <= 247 */
    for (int at = 0; finite && at < count; ++at) {
      const uint32_t bits = coli_bits(x[at]);
      const float value = __fmul_rn(coli_float(bits & 0x7fffffffu), inverse);
      words[at / 4] |= (e4m3_of(value > 448.0f ? 448.0f : value) | (bits >> 31 << 7)) << (8 * (at % 4));
    }
  }
  put_scale(to, runs, row, run, scale);
  if (row < to.rows && col < to.cols) put_codes(to, row, run, words);
}

template <bool kFp4>
__global__ void __launch_bounds__(kMxThreads) expand_runs(Expand call, MxOperand to, int64_t end, int64_t runs) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kMxThreads + threadIdx.x;
  const int64_t row = item / runs, run = item % runs;
  if (row >= end) return;
  const int64_t col = run * kRunCols, from = call.first + row;
  const bool inside = row < call.count && col < call.cols;
  uint32_t scale = kScaleOne;
  if (inside)
    scale = kFp4 ? call.scales[from * call.scale_cols + run] : call.scales[from / 128 * call.scale_cols + col / 128];
  put_scale(to, runs, row, run, scale);
  if (call.scales_only || row >= to.rows || col >= to.cols) return;
  uint32_t words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  if (inside) {
    const uint8_t *const codes = call.codes + from * call.pitch + (kFp4 ? col / 2 : col);
    const uint4 first = *reinterpret_cast<const uint4 *>(codes);
    words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
    if (kFp4) {
      for (int at = 3; at >= 0; --at) {
        const uint32_t word = words[at];
        words[2 * at] = e4m3_of_e2m1(word & 0xffffu);
        words[2 * at + 1] = e4m3_of_e2m1(word >> 16);
      }
    } else if (col + 16 < call.pitch) { /* a row ends with zeros up to its pitch, a multiple of 16 */
      const uint4 second = reinterpret_cast<const uint4 *>(codes)[1];
      words[4] = second.x, words[5] = second.y, words[6] = second.z, words[7] = second.w;
    }
  }
  put_codes(to, row, run, words);
}

}  // namespace coli_cuda

#endif
