/* context.h: what a context holds on its device, and how a call reaches it. */
#ifndef COLI_CUDA_CONTEXT_H
#define COLI_CUDA_CONTEXT_H

#include <cuda_runtime_api.h>

#include "../common/weight_desc.h"

/* A weight: host memory that somebody else owns, and, once uploaded, its copy. Rows of the copy begin at multiples of 16 bytes. */
struct coli_weight {
  coli_common::WeightFacts host;
  bool has_nan;
  bool uploaded;   /* the copy holds what the host memory held when it was bound or refilled */
  uint8_t *codes;  /* device; null until the first upload */
  uint8_t *scales; /* device, behind the codes */
  int64_t pitch;   /* bytes from one row of codes to the next */
  uint64_t bytes;  /* of the copy */
};

struct coli_stream {
  cudaStream_t stream;
};

namespace coli_cuda {

/* A piece of device memory that somebody holds. */
struct Buffer {
  Buffer *next;
  void *data;
  uint64_t bytes;
};

struct BlockScale; /* block_scale.h */

}  // namespace coli_cuda

struct coli_context {
  int device;
  cudaStream_t stream;       /* of calls with a null stream, which are complete on return */
  uint8_t *workspace;        /* device: activations of calls whose matrices lie on the host */
  uint8_t *staging;          /* host, pinned: results, until nothing can fail any more */
  uint64_t workspace_bytes;  /* of each of the two */
  uint64_t weights, streams; /* alive */
  uint64_t weight_bytes;
  coli_cuda::Buffer *buffers;
  coli_cuda::BlockScale *block_scale; /* cuBLASLt, once a product of the fast mode has asked for it */
};

namespace coli_cuda {

/* Makes the context's device current for the life of the object; the caller's own stays as it was. */
class OnDevice {
 public:
  explicit OnDevice(const coli_context *context) : OnDevice(context->device) {}
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
    if (before_ != device) cudaSetDevice(device);
    after_ = device;
  }
  ~OnDevice() {
    if (before_ != after_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice &) = delete;
  OnDevice &operator=(const OnDevice &) = delete;

 private:
  int before_ = 0, after_ = 0;
};

/* FAILED/DEVICE with number, name and text of a CUDA error; FAILED/MEMORY when it says that memory ran out. */
coli_status fail_cuda(coli_error *error, const char *doing, cudaError_t status);

#define COLI_CUDA_TRY(doing, expression) \
  do { \
    const cudaError_t cuda_ = (expression); \
    if (cuda_ != cudaSuccess) return ::coli_cuda::fail_cuda(error, (doing), cuda_); \
  } while (0)

static inline cudaStream_t stream_of(const coli_context *context, const coli_stream *stream) {
  return stream ? stream->stream : context->stream;
}

/* Copy a dense host matrix to the device, rows `pitch` bytes apart, or rows of the device to the host. The second passes through the
 * staging memory and waits: a target that fits it (rows * cols * 4 bytes) is written only after everything went well. */
coli_status copy_in(coli_context *context, cudaStream_t stream, const coli_matrix *source, void *to, int64_t pitch,
                    coli_error *error);
coli_status copy_out(coli_context *context, cudaStream_t stream, const void *from, int64_t pitch, coli_matrix *target,
                     coli_error *error);

}  // namespace coli_cuda

#endif
