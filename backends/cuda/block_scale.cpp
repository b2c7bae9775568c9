/* block_scale.cpp: cuBLASLt by its headers only: every type comes from a declaration there, every address from the opened library. */
#include "block_scale.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

/* The version of these headers, not of the runtime: cuBLAS has releases of its own, and wheels mix them. */
#if CUBLAS_VER_MAJOR < 12 || (CUBLAS_VER_MAJOR == 12 && CUBLAS_VER_MINOR < 8)
#error "block scaling needs cuBLAS headers of 12.8 or later: configure with COLI_NO_TC=ON, or give newer ones"
#else

namespace coli_cuda {

using coli_common::decline;
using coli_common::fail;

/* What is asked of the library. */
#define COLI_CUBLASLT(use) \
  use(cublasLtGetVersion) use(cublasLtGetStatusName) use(cublasLtCreate) use(cublasLtDestroy) \
      use(cublasLtMatmulDescCreate) use(cublasLtMatmulDescSetAttribute) use(cublasLtMatmulDescDestroy) \
          use(cublasLtMatrixLayoutCreate) use(cublasLtMatrixLayoutDestroy) use(cublasLtMatmulPreferenceCreate) \
              use(cublasLtMatmulPreferenceSetAttribute) use(cublasLtMatmulPreferenceDestroy) \
                  use(cublasLtMatmulAlgoGetHeuristic) use(cublasLtMatmul)

struct BlockScale {
#define COLI_MEMBER(name) decltype(&::name) name;
  COLI_CUBLASLT(COLI_MEMBER)
#undef COLI_MEMBER
  void *library;
  cublasLtHandle_t handle;
  int32_t reason; /* 0: usable */
  char text[200];
};

namespace {

#define COLI_TEXT_OF(token) #token
#define COLI_TEXT(token) COLI_TEXT_OF(token)
constexpr const char *kLibrary = "libcublasLt.so." COLI_TEXT(CUBLAS_VER_MAJOR);
/* The first release of this major with block scaling, as cublasLtGetVersion writes it. */
constexpr size_t kOldest = CUBLAS_VER_MAJOR == 12 ? 120800 : CUBLAS_VER_MAJOR * 10000;

__attribute__((format(printf, 3, 4))) void refuse(BlockScale *made, int32_t reason, const char *format, ...) {
  made->reason = reason;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(made->text, sizeof made->text, format, arguments);
  va_end(arguments);
}

void open_library(BlockScale *made, int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (major < 10)
    return refuse(made, COLI_REASON_DEVICE,
                  "device %d has compute capability %d.%d; block scaling in tensor cores needs 10.0 or later", device,
                  major, minor);
  made->library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!made->library) {
    const char *const why = dlerror();
    return refuse(made, COLI_REASON_LIBRARY, "%s cannot be opened: %.120s", kLibrary, why ? why : "no reason given");
  }
#define COLI_FIND(name) \
  made->name = reinterpret_cast<decltype(made->name)>(dlsym(made->library, #name)); \
  if (!made->name) return refuse(made, COLI_REASON_LIBRARY, "%s has no %s", kLibrary, #name);
  COLI_CUBLASLT(COLI_FIND)
#undef COLI_FIND
  const size_t version = made->cublasLtGetVersion();
  if (version / 10000 != CUBLAS_VER_MAJOR || version < kOldest)
    return refuse(made, COLI_REASON_LIBRARY, "%s is cuBLAS %zu.%zu.%zu, expected %zu.%zu or a later one of that major",
                  kLibrary, version / 10000, version / 100 % 100, version % 100, kOldest / 10000, kOldest / 100 % 100);
  const cublasStatus_t status = made->cublasLtCreate(&made->handle);
  if (status != CUBLAS_STATUS_SUCCESS)
    refuse(made, COLI_REASON_LIBRARY, "cublasLtCreate: %s", made->cublasLtGetStatusName(status));
}

/* The largest power of two, up to the 256 that the library takes for granted, at a multiple of which something lies. */
uint32_t alignment_of(const void *data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

/* The descriptions of one product, released with it. */
class Descriptions {
 public:
  explicit Descriptions(const BlockScale &library) : library_(library) {}
  ~Descriptions() {
    if (preference) library_.cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {weight, x, y})
      if (layout) library_.cublasLtMatrixLayoutDestroy(layout);
    if (product) library_.cublasLtMatmulDescDestroy(product);
  }
  Descriptions(const Descriptions &) = delete;
  Descriptions &operator=(const Descriptions &) = delete;

  /* Column-major, as the library has it: a row of ours is a column there, and the weight is turned. */
  cublasStatus_t describe(const BlockScaledProduct &call) {
    cublasStatus_t status = library_.cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const int32_t turned = CUBLAS_OP_T, straight = CUBLAS_OP_N;
    const int32_t mode = cublasLtMatmulMatrixScale_t(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
    const void *const scales[2] = {call.weight.scales, call.x.scales};
    const struct {
      cublasLtMatmulDescAttributes_t name;
      const void *value;
      size_t bytes;
    } attributes[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned},
                      {CUBLASLT_MATMUL_DESC_TRANSB, &straight, sizeof straight},
                      {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode},
                      {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode},
                      {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales[0], sizeof scales[0]},
                      {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales[1], sizeof scales[1]}};
    for (const auto &one : attributes) {
      status = library_.cublasLtMatmulDescSetAttribute(product, one.name, one.value, one.bytes);
      if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    const uint64_t m = static_cast<uint64_t>(call.weight.rows), n = static_cast<uint64_t>(call.x.rows),
                   k = static_cast<uint64_t>(call.x.cols);
    status = library_.cublasLtMatrixLayoutCreate(&weight, CUDA_R_8F_E4M3, k, m, call.weight.pitch);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = library_.cublasLtMatrixLayoutCreate(&x, CUDA_R_8F_E4M3, k, n, call.x.pitch);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = library_.cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, m, n, call.y_stride);
    if (status == CUBLAS_STATUS_SUCCESS) status = library_.cublasLtMatmulPreferenceCreate(&preference);
    const size_t scratch = call.scratch_bytes;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = library_.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                             &scratch, sizeof scratch);
    const uint32_t result = alignment_of(call.y);
    const struct {
      cublasLtMatmulPreferenceAttributes_t name;
      uint32_t bytes;
    } alignments[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.weight.codes)},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.x.codes)},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result}};
    for (const auto &one : alignments)
      if (status == CUBLAS_STATUS_SUCCESS)
        status = library_.cublasLtMatmulPreferenceSetAttribute(preference, one.name, &one.bytes, sizeof one.bytes);
    return status;
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

 private:
  const BlockScale &library_;
};

coli_status fail_cublas(const BlockScale &library, const char *doing, cublasStatus_t status, coli_error *error) {
  const int32_t site = status == CUBLAS_STATUS_ALLOC_FAILED ? COLI_SITE_MEMORY : COLI_SITE_DEVICE;
  return fail(error, site, "%s: cuBLAS error %d (%s)", doing, static_cast<int>(status),
              library.cublasLtGetStatusName(status));
}

}  // namespace

coli_status open_block_scale(coli_context *context, coli_error *error) {
  if (!context->block_scale) {
    BlockScale *const made = static_cast<BlockScale *>(calloc(1, sizeof(BlockScale)));
    if (!made) return fail(error, COLI_SITE_MEMORY, "no memory for the addresses of %s", kLibrary);
    open_library(made, context->device);
    context->block_scale = made;
  }
  const BlockScale &library = *context->block_scale;
  return library.reason == 0 ? COLI_DONE : decline(error, library.reason, "%s", library.text);
}

void close_block_scale(coli_context *context) {
  BlockScale *const made = context->block_scale;
  if (!made) return;
  if (made->handle) made->cublasLtDestroy(made->handle);
  if (made->library) dlclose(made->library);
  free(made);
  context->block_scale = nullptr;
}

coli_status multiply(coli_context *context, const BlockScaledProduct &call, cudaStream_t stream, coli_error *error) {
  const BlockScale &library = *context->block_scale;
  Descriptions made(library);
  cublasStatus_t status = made.describe(call);
  if (status != CUBLAS_STATUS_SUCCESS) return fail_cublas(library, "description of a product", status, error);
  cublasLtMatmulHeuristicResult_t found;
  memset(&found, 0, sizeof found);
  int count = 0;
  status = library.cublasLtMatmulAlgoGetHeuristic(library.handle, made.product, made.weight, made.x, made.y, made.y,
                                                  made.preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0))
    return decline(error, COLI_REASON_SHAPE,
                   "%s has no block-scaled product of %lld tokens, %lld rows and %lld columns", kLibrary,
                   static_cast<long long>(call.x.rows), static_cast<long long>(call.weight.rows),
                   static_cast<long long>(call.x.cols));
  if (status != CUBLAS_STATUS_SUCCESS) return fail_cublas(library, "choice of a kernel", status, error);
  const float one = 1.0f, zero = 0.0f;
  status = library.cublasLtMatmul(library.handle, made.product, &one, call.weight.codes, made.weight, call.x.codes,
                                  made.x, &zero, call.y, made.y, call.y, made.y, &found.algo, call.scratch,
                                  call.scratch_bytes, stream);
  if (status != CUBLAS_STATUS_SUCCESS) return fail_cublas(library, "block-scaled product", status, error);
  return COLI_DONE;
}

}  // namespace coli_cuda

#endif
