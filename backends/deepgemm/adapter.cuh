/* adapter.cuh: the only place that names DeepGEMM. It instantiates sm120_fp8_fp4_gemm_1d1d for two tiles and two weight formats, ahead
 * of time, and launches it. Written for the headers of sgl-deep-gemm 0.2.5: the template's parameters differ between its sources, so
 * the build compares a fingerprint of them before it compiles (build_matrix/deepgemm.py). None of DeepGEMM's host code is used. */
#ifndef COLI_DEEPGEMM_ADAPTER_CUH
#define COLI_DEEPGEMM_ADAPTER_CUH

/* The body of the kernel is empty, or traps, for every other target: such code must not come to be. */
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM120_ALL)
#error "DeepGEMM's kernels are compiled for sm_120a and for nothing else"
#endif

#include <deep_gemm/impls/sm120_fp8_fp4_gemm_1d1d.cuh>

#include "../cuda/device.cuh"
#include "gemm.h"

namespace coli_deepgemm {

/* A block of the grid: kRows tokens times kCols outputs, kStages pieces of kDepth columns on their way through shared memory. */
template <uint32_t kRows_, uint32_t kCols_, uint32_t kStages_>
struct Tile {
  static constexpr uint32_t kRows = kRows_, kCols = kCols_, kStages = kStages_, kDepth = 128;
  static constexpr uint32_t kLoading = 128, kComputing = 256; /* threads */
  static constexpr uint32_t scale_bytes(uint32_t lines) { return (lines * 4 + 127) / 128 * 128; }
  static constexpr uint32_t kSharedBytes =
      kStages * ((kRows + kCols) * kDepth + scale_bytes(kRows) + scale_bytes(kCols) + 2 * 8 /* two barriers */);
};

/* Few tokens: more of the weight on its way. Many: more products for each byte of it. */
using SmallTile = Tile<64, 64, 5>;
using LargeTile = Tile<128, 64, 3>;

constexpr uint32_t kMostSharedBytes = 101376; /* a block of 12.0 may have 99 KiB */
static_assert(SmallTile::kSharedBytes <= kMostSharedBytes && LargeTile::kSharedBytes <= kMostSharedBytes, "too deep");

/* The kernel steps by this number of blocks, which DeepGEMM sets to the number of multiprocessors of the card it compiles for. A library
 * serves every card of 12.0 (36 to 188 of them), so each block computes one tile, up to this many. */
constexpr uint32_t kMostBlocks = 32768;

using Kernel = void (*)(float *, const float *, __nv_fp8_e4m3 *, __nv_fp8_e4m3 *, int *, cute::TmaDescriptor *, float *,
                        uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, const cute::TmaDescriptor,
                        const cute::TmaDescriptor, const cute::TmaDescriptor, const cute::TmaDescriptor,
                        const cute::TmaDescriptor);

/* Sizes at run time; scales for 32 columns on both sides; B row by row; the result in float32, stored without a tensor map. */
template <class T, bool kFp4Weight>
constexpr Kernel kKernel =
    &deep_gemm::sm120_fp8_fp4_gemm_1d1d_impl<0, 0, 0,                                /* M, N, K */
                                             32, 32, 1,                              /* columns a scale, groups */
                                             T::kRows, T::kCols, T::kDepth,          /* tile */
                                             128, 128, 0,                            /* swizzle of A, B, D */
                                             T::kStages, T::kLoading, T::kComputing, /* pipeline */
                                             kMostBlocks, deep_gemm::GemmType::Normal, false,
                                             float,                    /* accumulate: no */
                                             false, kFp4Weight, false, /* both FP4, B FP4, A FP4 */
                                             true, false,              /* B is K-major; K groups */
                                             T::kRows, 1, false, false /* store, split K, padding, cp.async */
                                             >;

template <class T, bool kFp4Weight>
cudaError_t prepare() {
  return cudaFuncSetAttribute(kKernel<T, kFp4Weight>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(T::kSharedBytes));
}

template <class T, bool kFp4Weight>
cudaError_t launch(const Gemm &gemm, cudaStream_t stream) {
  const uint64_t tiles = uint64_t{(gemm.tokens + T::kRows - 1) / T::kRows} * ((gemm.rows + T::kCols - 1) / T::kCols);
  const dim3 grid(static_cast<uint32_t>(tiles < kMostBlocks ? tiles : kMostBlocks));
  const Kernel kernel = kKernel<T, kFp4Weight>;
  float *const y = gemm.y;
  const uint32_t tokens = gemm.tokens, rows = gemm.rows, cols = gemm.cols, stride = gemm.y_stride;
  /* Pairs of results are stored at once, which needs them on even places; a stride between columns stores them one by one. */
  const uint32_t apart = reinterpret_cast<uintptr_t>(y) % 8 == 0 && stride % 2 == 0 ? 0 : 1;
  const CUtensorMap a = gemm.a, b = gemm.b, a_scales = gemm.a_scales, b_scales = gemm.b_scales;
  float *const none = nullptr;
  __nv_fp8_e4m3 *const no_codes = nullptr;
  int *const no_groups = nullptr;
  cute::TmaDescriptor *const no_maps = nullptr;
  COLI_LAUNCH(kernel, grid, dim3(T::kLoading + T::kComputing), T::kSharedBytes, stream, y, none, no_codes, no_codes,
              no_groups, no_maps, none, tokens, rows, cols, stride, apart, 0, a, b, a_scales, b_scales,
              a /* of D, which is prefetched and not used */);
  return cudaGetLastError();
}

}  // namespace coli_deepgemm

#endif
