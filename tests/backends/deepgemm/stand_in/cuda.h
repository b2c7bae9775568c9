/* The part of the driver's interface that backends/deepgemm asks for, played by the CPU (stand_in.cpp), and what its sources need of
 * the runtime beyond tests/backends/cuda/shim. For tests only. */
#ifndef COLI_STAND_IN_CUDA_H
#define COLI_STAND_IN_CUDA_H

#include <stdint.h>

#include "cuda_runtime_api.h"

#define __grid_constant__

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
  CU_TENSOR_MAP_DATA_TYPE_INT32 = 3,
  CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B = 14
};
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

/* What the real one hides: a matrix of `rows` x `cols` elements, copied in boxes. */
struct alignas(64) CUtensorMap {
  const uint8_t *data;
  uint64_t rows, cols, pitch;
  uint32_t box_rows, box_cols;
  CUtensorMapDataType type;
  CUtensorMapSwizzle swizzle;

  /* An element as it arrives in shared memory: beyond the matrix there are zeros. */
  uint32_t at(uint64_t row, uint64_t col) const;
};

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };
constexpr unsigned long long cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
cudaError_t stand_in_shared_bytes(int bytes);
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel *, cudaFuncAttribute, int bytes) {
  return stand_in_shared_bytes(bytes);
}

#endif
