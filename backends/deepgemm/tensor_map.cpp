/* tensor_map.cpp: tensor maps, encoded by the driver that is found at run time. */
#include "tensor_map.h"

#include <cuda_runtime_api.h>

namespace coli_deepgemm {

using coli_common::decline;
using coli_common::fail;

namespace {

constexpr unsigned kSince = 12000; /* the function is that of CUDA 12.0; the codes of 4 bits came with 12.8 */

}  // namespace

coli_status find_encode(Encode *encode, coli_error *error) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || !found) {
    cudaGetLastError();
    return decline(error, COLI_REASON_DEVICE, "the driver has no cuTensorMapEncodeTiled (CUDA error %d, answer %d)",
                   static_cast<int>(status), static_cast<int>(result));
  }
  *encode = reinterpret_cast<Encode>(found);
  return COLI_DONE;
}

coli_status encode_map(Encode encode, const char *name, const Matrix &matrix, CUtensorMap *map, coli_error *error) {
  const bool words = matrix.kind == Matrix::kWords;
  const CUtensorMapDataType type = words                             ? CU_TENSOR_MAP_DATA_TYPE_INT32
                                   : matrix.kind == Matrix::kNibbles ? CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B
                                                                     : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix.cols), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(matrix.pitch)};
  const cuuint32_t box[2] = {matrix.box_cols, matrix.box_rows}, steps[2] = {1, 1};
  const CUresult status =
      encode(map, type, 2, const_cast<void *>(matrix.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             words ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return fail(error, COLI_SITE_DEVICE, "tensor map of %s (%lld x %lld, %lld bytes a row): CUDA error %d", name,
                static_cast<long long>(matrix.rows), static_cast<long long>(matrix.cols),
                static_cast<long long>(matrix.pitch), static_cast<int>(status));
  return COLI_DONE;
}

}  // namespace coli_deepgemm
