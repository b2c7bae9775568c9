/* What DeepGEMM's kernel does with its operands, in plain words, for the CPU: the same arguments in the same places, the same blocks of the
 * same tiles, the layouts that its comments and loads show. One thread of a block computes its tile. It is ours, for tests; the real
 * kernel cannot run without its card. */
#ifndef COLI_STAND_IN_DEEP_GEMM_H
#define COLI_STAND_IN_DEEP_GEMM_H

#include <math.h>

#include "cuda.h"
#include "cuda_runtime.h"

struct __nv_fp8_e4m3;

namespace cute {
using TmaDescriptor = CUtensorMap;
}

namespace deep_gemm {

enum class GemmType { Normal = 0, Other = 1 };

inline double e4m3_value(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return NAN;
  const double size = exponent == 0 ? mantissa / 8.0 * 0.015625 : (1 + mantissa / 8.0) * exp2(int(exponent) - 7);
  return code & 0x80u ? -size : size;
}

inline double e2m1_value(uint32_t code) {
  const double sizes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8u ? -sizes[code & 7u] : sizes[code & 7u];
}

template <uint32_t kM, uint32_t kN, uint32_t kK, uint32_t kScaleColsA, uint32_t kScaleColsB, uint32_t kGroups,
          uint32_t kTileM, uint32_t kTileN, uint32_t kTileK, uint32_t kSwizzleA, uint32_t kSwizzleB, uint32_t kSwizzleD,
          uint32_t kStages, uint32_t kLoading, uint32_t kComputing, uint32_t kBlocks, GemmType kType, bool kAccumulate,
          typename D, bool kBothFp4, bool kFp4B, bool kFp4A, bool kRowMajorB, bool kGroupStride, uint32_t kStoreM,
          uint32_t kSplit, bool kSkipPadding, bool kAsync>
void sm120_fp8_fp4_gemm_1d1d_impl(D *d, const D *, __nv_fp8_e4m3 *, __nv_fp8_e4m3 *, int *, cute::TmaDescriptor *,
                                  float *, uint32_t m, uint32_t n, uint32_t k, uint32_t d_row, uint32_t d_col, uint32_t,
                                  const cute::TmaDescriptor a, const cute::TmaDescriptor b,
                                  const cute::TmaDescriptor a_scales, const cute::TmaDescriptor b_scales,
                                  const cute::TmaDescriptor of_d) {
  static_assert(kM == 0 && kN == 0 && kK == 0 && kScaleColsA == 32 && kScaleColsB == 32 && kGroups == 1, "sizes");
  static_assert(kTileM % 64 == 0 && kTileN % 16 == 0 && kTileK == 128 && kStoreM == kTileM && kStages >= 2, "tiles");
  static_assert(kSwizzleA == 128 && kSwizzleB == 128 && kSwizzleD == 0 && kType == GemmType::Normal, "layout");
  static_assert(!kAccumulate && !kBothFp4 && !kFp4A && kRowMajorB && !kGroupStride && kSplit == 1, "kind");
  static_assert(!kSkipPadding && !kAsync && kLoading == 128 && kComputing == 256, "threads");
  if (threadIdx.x != 0) return;
  if (blockDim.x != kLoading + kComputing || gridDim.x > kBlocks)
    coli_shim::stop("another grid than the kernel counts");
  if (of_d.data == nullptr) coli_shim::stop("the map of D is prefetched: it must be a map");
  const bool right_types = a.type == CU_TENSOR_MAP_DATA_TYPE_UINT8 &&
                           b.type == (kFp4B ? CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B : CU_TENSOR_MAP_DATA_TYPE_UINT8) &&
                           a_scales.type == CU_TENSOR_MAP_DATA_TYPE_INT32 &&
                           b_scales.type == CU_TENSOR_MAP_DATA_TYPE_INT32;
  const bool right_boxes = a.box_cols == kTileK && a.box_rows == kTileM && b.box_cols == kTileK &&
                           b.box_rows == kTileN && a_scales.box_cols == kTileM && a_scales.box_rows == 1 &&
                           b_scales.box_cols == kTileN && b_scales.box_rows == 1;
  const bool right_swizzles = a.swizzle == CU_TENSOR_MAP_SWIZZLE_128B && b.swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
                              a_scales.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE &&
                              b_scales.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE;
  if (!right_types || !right_boxes || !right_swizzles) coli_shim::stop("a map is not what the kernel copies with");
  const uint32_t tiles_m = (m + kTileM - 1) / kTileM, tiles_n = (n + kTileN - 1) / kTileN;
  for (uint64_t tile = blockIdx.x; tile < uint64_t{tiles_m} * tiles_n; tile += kBlocks) {
    const uint32_t first_m = static_cast<uint32_t>(tile % tiles_m) * kTileM;
    const uint32_t first_n = static_cast<uint32_t>(tile / tiles_m) * kTileN;
    for (uint32_t row = first_m; row < first_m + kTileM && row < m; ++row) {
      for (uint32_t col = first_n; col < first_n + kTileN && col < n; ++col) {
        double sum = 0;
        for (uint32_t run = 0; run < (k + 31) / 32; ++run) {
          const uint32_t shift = run % 4 * 8;
          const int scale_a = static_cast<int>(a_scales.at(run / 4, row) >> shift & 255u) - 127;
          const int scale_b = static_cast<int>(b_scales.at(run / 4, col) >> shift & 255u) - 127;
          double part = 0;
          for (uint32_t at = 32 * run; at < 32 * run + 32; ++at) {
            const uint32_t code = b.at(col, at);
            part += e4m3_value(a.at(row, at)) * (kFp4B ? e2m1_value(code) : e4m3_value(code));
          }
          sum += ldexp(part, scale_a + scale_b);
        }
        if (d_col == 0 && (reinterpret_cast<uintptr_t>(d) % 8 != 0 || d_row % 2 != 0))
          coli_shim::stop("pairs of results on odd places");
        d[uint64_t{row} * d_row + uint64_t{col} * (d_col == 0 ? 1 : d_col)] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace deep_gemm

#endif
