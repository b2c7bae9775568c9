/* stand_in.cpp: tensor maps with the rules of cuTensorMapEncodeTiled's documentation, checked one by one. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

namespace {

constexpr int kMostSharedBytes = 101376; /* of a block on 12.0 */

/* A test sets COLI_STAND_IN to what is to go wrong. */
bool told(const char *what) {
  const char *const said = getenv("COLI_STAND_IN");
  return said && strcmp(said, what) == 0;
}

}  // namespace

uint32_t CUtensorMap::at(uint64_t row, uint64_t col) const {
  if (row >= rows || col >= cols) return 0;
  const uint8_t *const line = data + row * pitch;
  if (type == CU_TENSOR_MAP_DATA_TYPE_UINT8) return line[col];
  if (type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B) return line[col / 2] >> (col % 2 * 4) & 15u;
  uint32_t word;
  memcpy(&word, line + 4 * col, 4);
  return word;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (told("no tensor map of nibbles") && type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B)
    return CUDA_ERROR_INVALID_VALUE;
  const bool nibbles = type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B, words = type == CU_TENSOR_MAP_DATA_TYPE_INT32;
  const uint64_t unit = nibbles ? 32 : 16, inner_bytes = box[0] * (words ? 4u : 1u);
  /* Codes of 4 bits want 32 bytes of address too; cudaMalloc gives 256, the shim's 16, so only strides are held to it. */
  const bool sound = rank == 2 && reinterpret_cast<uintptr_t>(map) % 64 == 0 &&
                     reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides[0] % unit == 0 &&
                     strides[0] < (uint64_t{1} << 40) && sizes[0] > 0 && sizes[0] <= (uint64_t{1} << 32) &&
                     sizes[1] > 0 && sizes[1] <= (uint64_t{1} << 32) && box[0] > 0 && box[0] <= 256 && box[1] > 0 &&
                     box[1] <= 256 && steps[0] == 1 && steps[1] == 1 && inner_bytes % 16 == 0 &&
                     (swizzle != CU_TENSOR_MAP_SWIZZLE_128B || inner_bytes <= 128) &&
                     (!nibbles || (box[0] == 128 && sizes[0] % 128 == 0 && swizzle == CU_TENSOR_MAP_SWIZZLE_128B));
  if (!sound) return CUDA_ERROR_INVALID_VALUE;
  *map = {static_cast<const uint8_t *>(data), sizes[1], sizes[0], strides[0], box[1], box[0], type, swizzle};
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
  const bool known = strcmp(name, "cuTensorMapEncodeTiled") == 0 && version >= 12000 && !told("an old driver");
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  *found = known ? reinterpret_cast<void *>(&cuTensorMapEncodeTiled) : nullptr;
  return cudaSuccess;
}

cudaError_t stand_in_shared_bytes(int bytes) { return bytes <= kMostSharedBytes ? cudaSuccess : cudaErrorInvalidValue; }
