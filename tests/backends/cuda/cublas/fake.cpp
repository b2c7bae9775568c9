/* A libcublasLt for tests. It takes exactly one kind of product (MXFP8, transposed times straight, float32 out, aligned as NVIDIA's
 * documentation asks), multiplies in double what the codes and the tiled scales say, and keeps the last operands for the tests to look
 * at. FAKE_VERSION is what it says it is; FAKE_LACKS leaves cublasLtMatmul out. */
#include <math.h>
#include <string.h>

#include <string>
#include <vector>

#include "cublasLt.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 130002
#endif
#ifdef FAKE_LACKS
#define MATMUL cublasLtAnother
#else
#define MATMUL cublasLtMatmul
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

struct FakeProduct {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t trans_a, trans_b, mode_a, mode_b;
  const unsigned char *scales_a, *scales_b;
};
struct FakeLayout {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
};
struct FakePreference {
  size_t workspace_bytes;
  uint32_t alignment[4] = {256, 256, 256, 256}; /* of A, B, C, D, as the library takes them unless it is told */
};
struct cublasLtContext {
  int unused;
};

namespace {

struct Operand {
  std::vector<unsigned char> codes, scales; /* rows of `cols` codes; scales as they lie */
  int64_t rows, cols;
};
Operand last[2]; /* the weight, x */
int64_t handles = 0, objects = 0, products = 0;
int next_status = 0; /* of the next product; of its heuristic when negative */

double decode(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  if ((code & 127) == 127) return NAN;
  const double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  return code & 128 ? -value : value;
}

struct Table {
  double values[256];
  Table() {
    for (unsigned code = 0; code < 256; ++code) values[code] = decode(code);
  }
} const e4m3;

double scale_at(const unsigned char *scales, int64_t cols, int64_t row, int64_t run) {
  const int64_t tiles = (cols / 32 + 3) / 4;
  const unsigned char code = scales[(row / 128 * tiles + run / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + run % 4];
  return code == 255 ? static_cast<double>(NAN) : ldexp(1.0, static_cast<int>(code) - 127);
}

Operand keep(const void *codes, const FakeLayout &layout, const unsigned char *scales) {
  Operand made;
  made.rows = static_cast<int64_t>(layout.cols);
  made.cols = static_cast<int64_t>(layout.rows);
  for (int64_t row = 0; row < made.rows; ++row) {
    const unsigned char *from = static_cast<const unsigned char *>(codes) + row * layout.ld;
    made.codes.insert(made.codes.end(), from, from + made.cols);
  }
  made.scales.assign(scales, scales + (made.rows + 127) / 128 * ((made.cols / 32 + 3) / 4) * 512);
  return made;
}

bool aligned(const void *pointer, int64_t ld_bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && ld_bytes % 16 == 0;
}

template <class Kind>
cublasStatus_t make(Kind **made, Kind value) {
  *made = new Kind(value);
  ++objects;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Kind>
cublasStatus_t drop(Kind *object) {
  delete object;
  --objects;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

EXPORT void fake_next(int status) { next_status = status; }
EXPORT int64_t fake_count(int which) { return which == 0 ? handles : which == 1 ? objects : products; }
EXPORT int64_t fake_operand(int which, int scales, unsigned char *to, int64_t *rows, int64_t *cols) {
  const std::vector<unsigned char> &bytes = scales ? last[which].scales : last[which].codes;
  if (to) memcpy(to, bytes.data(), bytes.size());
  *rows = last[which].rows;
  *cols = last[which].cols;
  return static_cast<int64_t>(bytes.size());
}

EXPORT size_t cublasLtGetVersion(void) { return FAKE_VERSION; }
EXPORT const char *cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : "another";
}
EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  ++handles;
  *handle = new cublasLtContext();
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  --handles;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  return make(made, FakeProduct{compute, scale, 0, 0, 0, 0, nullptr, nullptr});
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return drop(product); }
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t name,
                                                     const void *value, size_t bytes) {
  void *to = nullptr;
  size_t want = 4;
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      to = &product->trans_a;
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      to = &product->trans_b;
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      to = &product->mode_a;
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      to = &product->mode_b;
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      to = &product->scales_a, want = 8;
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      to = &product->scales_b, want = 8;
      break;
  }
  if (!to || bytes != want) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType_t type, uint64_t rows,
                                                 uint64_t cols, int64_t ld) {
  return make(made, FakeLayout{type, rows, cols, ld});
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return drop(layout); }
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) {
  return make(made, FakePreference{0});
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                           size_t bytes) {
  if (name >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) {
    if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&preference->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (bytes != sizeof preference->workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&preference->workspace_bytes, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return drop(preference);
}
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t found[], int *count) {
  *count = 0;
  if (next_status < 0) return next_status = 0, CUBLAS_STATUS_NOT_SUPPORTED;
  const bool kind = product->compute == CUBLAS_COMPUTE_32F && product->scale == CUDA_R_32F &&
                    product->trans_a == CUBLAS_OP_T && product->trans_b == CUBLAS_OP_N &&
                    product->mode_a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 &&
                    product->mode_b == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 && a->type == CUDA_R_8F_E4M3 &&
                    b->type == CUDA_R_8F_E4M3 && c->type == CUDA_R_32F && d->type == CUDA_R_32F;
  const bool sizes = a->rows == b->rows && a->rows % 32 == 0 && a->cols == d->rows && b->cols == d->cols &&
                     d->rows % 16 == 0 && d->cols % 16 == 0 && a->ld >= static_cast<int64_t>(a->rows) &&
                     b->ld >= static_cast<int64_t>(b->rows) && d->ld >= static_cast<int64_t>(d->rows);
  if (!kind || !sizes || wanted < 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  found[0].state = CUBLAS_STATUS_SUCCESS;
  for (int i = 0; i < 4; ++i) found[0].algo.data[i] = preference->alignment[i];
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t MATMUL(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void *alpha, const void *A,
                             cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                             const void *C, cublasLtMatrixLayout_t, void *D, cublasLtMatrixLayout_t d,
                             const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t) {
  if (next_status > 0) {
    const cublasStatus_t status = static_cast<cublasStatus_t>(next_status);
    return next_status = 0, status;
  }
  const void *const matrices[4] = {A, B, C, D};
  for (int i = 0; i < 4; ++i) /* a kernel that was chosen for a larger alignment would fault */
    if (reinterpret_cast<uintptr_t>(matrices[i]) % algo->data[i] != 0) return CUBLAS_STATUS_INVALID_VALUE;
  float one, zero;
  memcpy(&one, alpha, 4);
  memcpy(&zero, beta, 4);
  if (one != 1.0f || zero != 0.0f || C != D || !aligned(A, a->ld) || !aligned(B, b->ld) || !aligned(D, 4 * d->ld) ||
      !aligned(product->scales_a, 0) || !aligned(product->scales_b, 0))
    return CUBLAS_STATUS_INVALID_VALUE;
  memset(workspace, 0xee, workspace_bytes); /* it is the library's own */
  last[0] = keep(A, *a, product->scales_a);
  last[1] = keep(B, *b, product->scales_b);
  ++products;
  for (int64_t col = 0; col < last[1].rows; ++col)
    for (int64_t row = 0; row < last[0].rows; ++row) {
      double sum = 0;
      for (int64_t run = 0; run < last[0].cols / 32; ++run) {
        double part = 0;
        for (int64_t at = 32 * run; at < 32 * run + 32; ++at)
          part += e4m3.values[last[0].codes[static_cast<size_t>(row * last[0].cols + at)]] *
                  e4m3.values[last[1].codes[static_cast<size_t>(col * last[1].cols + at)]];
        sum += part * scale_at(product->scales_a, last[0].cols, row, run) *
               scale_at(product->scales_b, last[1].cols, col, run);
      }
      static_cast<float *>(D)[col * d->ld + row] = static_cast<float>(sum);
    }
  return CUBLAS_STATUS_SUCCESS;
}
