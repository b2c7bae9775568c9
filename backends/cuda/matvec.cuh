/* matvec.cuh: y = dot(row, x) for rows of one weight, in the order of docs/numerics.md.
 *
 * A warp takes kRows rows. A lane reads 16 contiguous bytes of a row at a time, one piece (a pass of the warp: 512 bytes), and sums
 * it in the order of its columns; the 32 lanes are added by the tree. x lies in shared memory in the order in which the lanes read
 * it: [pass][column of the piece / 4][lane][4], which serves all rows of a block. A long x comes in chunks of kChunkCols columns.
 * The order of the sums depends on none of these numbers. */
#ifndef COLI_CUDA_MATVEC_CUH
#define COLI_CUDA_MATVEC_CUH

#include "formats.cuh"
#include "matvec.h"

namespace coli_cuda {

constexpr int kWarps = 8;
constexpr int kRows = 2;
constexpr int kBlockRows = kWarps * kRows;
constexpr int kChunkCols = 4096;
constexpr int kSharedBytes = kChunkCols * 4;

static __device__ __forceinline__ float add_lanes(float value) {
#pragma unroll
  for (int step = 16; step >= 1; step /= 2) value = __fadd_rn(value, __shfl_down_sync(kAllLanes, value, step));
  return value; /* of lane 0 */
}

/* Four columns of x from `col`; +0 behind the end. `wide`: x is aligned to 16 bytes. */
static __device__ __forceinline__ float4 load_x(const float *x, int64_t col, int64_t cols, bool wide) {
  if (wide && col + 4 <= cols) return *reinterpret_cast<const float4 *>(x + col);
  return make_float4(col < cols ? x[col] : 0.0f, col + 1 < cols ? x[col + 1] : 0.0f, col + 2 < cols ? x[col + 2] : 0.0f,
                     col + 3 < cols ? x[col + 3] : 0.0f);
}

/* Put columns [first, first + count) of x, `count` whole passes, into shared memory in the order of the lanes. */
template <class Format>
__device__ __forceinline__ void stage_x(const float *x, int64_t first, int count, int64_t cols, float4 *to) {
  constexpr int kQuads = Format::kPiece / 4;
  const bool wide = (reinterpret_cast<uintptr_t>(x) & 15u) == 0;
  for (int quad = static_cast<int>(threadIdx.x); quad < count / 4; quad += kWarps * 32) {
    const int piece = quad / kQuads, pass = piece / 32, lane = piece % 32;
    to[(pass * kQuads + quad % kQuads) * 32 + lane] = load_x(x, first + 4 * quad, cols, wide);
  }
}

/* One block: kBlockRows rows of one group and one token. Grid: x groups * blocks of a group, y tokens. */
template <class Format>
__global__ void __launch_bounds__(kWarps * 32) matvec(Matvec call) {
  constexpr int kPassCols = 32 * Format::kPiece, kChunkPasses = kChunkCols / kPassCols;
  COLI_DYNAMIC_SHARED(shared);
  float4 *const staged = reinterpret_cast<float4 *>(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t group = blockIdx.x / call.group_blocks;
  const int64_t begin = static_cast<int64_t>(blockIdx.x % call.group_blocks) * kBlockRows + warp * kRows;
  const float *const x = call.x + blockIdx.y * call.x_stride + group * call.cols;
  const int64_t pieces = (call.cols + Format::kPiece - 1) / Format::kPiece;
  const int64_t passes = (pieces + 31) / 32;

  const uint4 *codes[kRows];
  const uint8_t *scales[kRows];
  float acc[kRows];
#pragma unroll
  for (int at = 0; at < kRows; ++at) { /* the last row again where there are fewer */
    const int64_t within = begin + at < call.group_rows ? begin + at : call.group_rows - 1;
    const int64_t row = group * call.group_rows + within;
    codes[at] = reinterpret_cast<const uint4 *>(call.codes + row * call.pitch) + lane;
    scales[at] = call.scales + row / Format::kScaleRows * call.scale_cols + lane / Format::kScalePieces;
    acc[at] = 0.0f;
  }
  int64_t piece = lane;
  for (int64_t first = 0; first < passes; first += kChunkPasses) {
    const int count = static_cast<int>(passes - first < kChunkPasses ? passes - first : kChunkPasses);
    __syncthreads(); /* the chunk before this one has been read */
    stage_x<Format>(x, first * kPassCols, count * kPassCols, call.cols, staged);
    __syncthreads();
    const float4 *in = staged + lane;
    for (int pass = 0; pass < count; ++pass, piece += 32) {
      const bool inside = piece < pieces;
      uint32_t words[kRows][4];
      float factor[kRows], sum[kRows];
#pragma unroll
      for (int at = 0; at < kRows; ++at) {
        const uint4 loaded = inside ? __ldg(codes[at]) : make_uint4(0u, 0u, 0u, 0u);
        words[at][0] = loaded.x, words[at][1] = loaded.y, words[at][2] = loaded.z, words[at][3] = loaded.w;
        codes[at] += 32;
        factor[at] = 1.0f; /* of padding: any, its sum is zero */
        if (Format::kScaled) {
          if (inside) factor[at] = Format::factor(__ldg(scales[at]));
          scales[at] += 32 / Format::kScalePieces;
        }
        sum[at] = Format::kScaled ? 0.0f : acc[at];
      }
      float4 quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        float values[kRows][Format::kWordCols];
#pragma unroll
        for (int at = 0; at < kRows; ++at) Format::decode(words[at][word], values[at]);
#pragma unroll
        for (int col = 0; col < Format::kWordCols; ++col) {
          const int column = word * Format::kWordCols + col;
          if (column % 4 == 0) quad = in[column / 4 * 32];
          const float from = column % 4 == 0 ? quad.x : column % 4 == 1 ? quad.y : column % 4 == 2 ? quad.z : quad.w;
#pragma unroll
          for (int at = 0; at < kRows; ++at) sum[at] = coli_fma(values[at][col], from, sum[at]);
        }
      }
      in += Format::kPiece / 4 * 32;
#pragma unroll
      for (int at = 0; at < kRows; ++at) acc[at] = Format::kScaled ? coli_fma(factor[at], sum[at], acc[at]) : sum[at];
    }
  }
#pragma unroll
  for (int at = 0; at < kRows; ++at) {
    const float value = add_lanes(acc[at]);
    if (lane == 0 && begin + at < call.group_rows)
      call.y[blockIdx.y * call.y_stride + group * call.group_rows + begin + at] = value;
  }
}

}  // namespace coli_cuda

#endif
