/* context.cpp: contexts, what they say of their device, streams, buffers and copies. */
#include "context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matvec.h"
#include "slots.h"
#if defined(COLI_BLOCK_SCALE)
#include "block_scale.h"
#endif

namespace coli_cuda {

using coli_common::check_matrix;
using coli_common::check_range;
using coli_common::decline;
using coli_common::fail;
using coli_common::kAny;

coli_status fail_cuda(coli_error *error, const char *doing, cudaError_t status) {
  cudaGetLastError(); /* the runtime would report it again in the next call */
  const int32_t site = status == cudaErrorMemoryAllocation ? COLI_SITE_MEMORY : COLI_SITE_DEVICE;
  return fail(error, site, "%s: CUDA error %d (%s): %s", doing, static_cast<int>(status), cudaGetErrorName(status),
              cudaGetErrorString(status));
}

namespace {

/* What was made so far, taken back. */
void release(coli_context *context) {
#if defined(COLI_BLOCK_SCALE)
  close_block_scale(context);
#endif
  for (Buffer *buffer = context->buffers; buffer;) {
    Buffer *const next = buffer->next;
    cudaFree(buffer->data);
    free(buffer);
    buffer = next;
  }
  if (context->staging) cudaFreeHost(context->staging);
  if (context->workspace) cudaFree(context->workspace);
  if (context->stream) cudaStreamDestroy(context->stream);
  free(context);
}

coli_status check_device(int device, coli_error *error) {
  int count = 0, driver = 0, runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver); /* 0: there is no driver */
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    char have[64] = "there is none (no libcuda)";
    if (driver) snprintf(have, sizeof have, "it is for CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    return fail(error, COLI_SITE_DEVICE, "CUDA error %d (%s): %s. Driver: %s; this library: CUDA %d.%d",
                static_cast<int>(status), cudaGetErrorName(status), cudaGetErrorString(status), have, runtime / 1000,
                runtime % 1000 / 10);
  }
  if (count == 0) return fail(error, COLI_SITE_DEVICE, "no CUDA device is visible");
  return check_range(error, "device", device, 0, count - 1);
}

/* Memory, stream and kernels of a context on its device, which is current. */
coli_status equip(coli_context *context, coli_error *error) {
  int major = 0, minor = 0;
  COLI_CUDA_TRY("compute capability",
                cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context->device));
  COLI_CUDA_TRY("compute capability",
                cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, context->device));
  if (major < 8)
    return decline(error, COLI_REASON_DEVICE, "device %d has compute capability %d.%d, expected 8.0 or later",
                   context->device, major, minor);
  const cudaError_t runs = check_kernels();
  if (runs != cudaSuccess) {
    char doing[96];
    snprintf(doing, sizeof doing, "no code of this library runs on device %d (compute capability %d.%d)",
             context->device, major, minor);
    return fail_cuda(error, doing, runs);
  }
  COLI_CUDA_TRY("stream", cudaStreamCreateWithFlags(&context->stream, cudaStreamNonBlocking));
  void *memory = nullptr;
  COLI_CUDA_TRY("workspace on the device", cudaMalloc(&memory, context->workspace_bytes));
  context->workspace = static_cast<uint8_t *>(memory);
  COLI_CUDA_TRY("pinned host memory", cudaMallocHost(&memory, context->workspace_bytes));
  context->staging = static_cast<uint8_t *>(memory);
  return COLI_DONE;
}

}  // namespace

coli_status context_create(const coli_context_config *config, coli_context **context, coli_error *error) {
  if (!config || !context) return fail(error, COLI_SITE_ARGUMENT, "config or context is null");
  if (config->size < sizeof(coli_context_config))
    return fail(error, COLI_SITE_ARGUMENT, "config.size is %u, expected %u", config->size,
                static_cast<unsigned>(sizeof(coli_context_config)));
  COLI_TRY(check_range(error, "threads", config->threads, 1, 4096));
  if (config->workspace_bytes < COLI_WORKSPACE_BYTES(config->threads) || config->workspace_bytes > (UINT64_C(1) << 46))
    return fail(error, COLI_SITE_ARGUMENT, "workspace_bytes is %llu, expected at least %llu for %d threads",
                static_cast<unsigned long long>(config->workspace_bytes),
                static_cast<unsigned long long>(COLI_WORKSPACE_BYTES(config->threads)), config->threads);
  COLI_TRY(check_device(config->device, error));
  coli_context *made = static_cast<coli_context *>(calloc(1, sizeof(coli_context)));
  if (!made) return fail(error, COLI_SITE_MEMORY, "no memory for a context");
  made->device = config->device;
  made->workspace_bytes = config->workspace_bytes / 4096 * 4096;
  const OnDevice current(made);
  const coli_status status = equip(made, error);
  if (status != COLI_DONE) {
    release(made);
    return status;
  }
  *context = made;
  return COLI_DONE;
}

coli_status context_destroy(coli_context *context, coli_error *error) {
  if (!context) return fail(error, COLI_SITE_ARGUMENT, "context is null");
  if (context->weights != 0 || context->streams != 0)
    return fail(error, COLI_SITE_ARGUMENT, "%llu weights are still bound and %llu streams open",
                static_cast<unsigned long long>(context->weights), static_cast<unsigned long long>(context->streams));
  const OnDevice current(context);
  release(context);
  return COLI_DONE;
}

coli_status device_info(coli_context *context, coli_device_info *info, coli_error *error) {
  if (!context || !info || info->size < sizeof(coli_device_info))
    return fail(error, COLI_SITE_ARGUMENT, "context or info is null, or info.size too small");
  const OnDevice current(context);
  cudaDeviceProp properties;
  COLI_CUDA_TRY("device properties", cudaGetDeviceProperties(&properties, context->device));
  info->compute_major = properties.major;
  info->compute_minor = properties.minor;
  info->integrated = properties.integrated;
  snprintf(info->name, sizeof info->name, "%.127s", properties.name);
  return COLI_DONE;
}

coli_status memory_info(coli_context *context, coli_memory_info *info, coli_error *error) {
  if (!context || !info || info->size < sizeof(coli_memory_info))
    return fail(error, COLI_SITE_ARGUMENT, "context or info is null, or info.size too small");
  const OnDevice current(context);
  size_t free_bytes = 0, total_bytes = 0;
  COLI_CUDA_TRY("memory of the device", cudaMemGetInfo(&free_bytes, &total_bytes));
  info->reserved = 0;
  info->total_bytes = total_bytes;
  info->free_bytes = free_bytes;
  info->context_bytes = context->workspace_bytes + context->weight_bytes;
  for (const Buffer *buffer = context->buffers; buffer; buffer = buffer->next) info->context_bytes += buffer->bytes;
  return COLI_DONE;
}

coli_status stream_create(coli_context *context, coli_stream **stream, coli_error *error) {
  if (!context || !stream) return fail(error, COLI_SITE_ARGUMENT, "context or stream is null");
  const OnDevice current(context);
  coli_stream *made = static_cast<coli_stream *>(calloc(1, sizeof(coli_stream)));
  if (!made) return fail(error, COLI_SITE_MEMORY, "no memory for a stream");
  const cudaError_t status = cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking);
  if (status != cudaSuccess) {
    free(made);
    return fail_cuda(error, "stream", status);
  }
  ++context->streams;
  *stream = made;
  return COLI_DONE;
}

coli_status stream_wait(coli_context *context, coli_stream *stream, coli_error *error) {
  if (!context) return fail(error, COLI_SITE_ARGUMENT, "context is null");
  const OnDevice current(context);
  COLI_CUDA_TRY("wait", cudaStreamSynchronize(stream_of(context, stream)));
  return COLI_DONE;
}

coli_status stream_release(coli_context *context, coli_stream *stream, coli_error *error) {
  if (!context || !stream) return fail(error, COLI_SITE_ARGUMENT, "context or stream is null");
  const OnDevice current(context);
  const cudaError_t status = cudaStreamDestroy(stream->stream);
  free(stream);
  --context->streams;
  if (status != cudaSuccess) return fail_cuda(error, "release of a stream", status);
  return COLI_DONE;
}

coli_status buffer_create(coli_context *context, uint64_t bytes, void **data, coli_error *error) {
  if (!context || !data) return fail(error, COLI_SITE_ARGUMENT, "context or data is null");
  const OnDevice current(context);
  Buffer *made = static_cast<Buffer *>(malloc(sizeof(Buffer)));
  if (!made) return fail(error, COLI_SITE_MEMORY, "no memory for a buffer's entry");
  const cudaError_t status = cudaMalloc(&made->data, bytes ? bytes : 1);
  if (status != cudaSuccess) {
    free(made);
    char doing[64];
    snprintf(doing, sizeof doing, "%llu bytes on the device", static_cast<unsigned long long>(bytes));
    return fail_cuda(error, doing, status);
  }
  made->bytes = bytes;
  made->next = context->buffers;
  context->buffers = made;
  *data = made->data;
  return COLI_DONE;
}

coli_status buffer_release(coli_context *context, void *data, coli_error *error) {
  if (!context || !data) return fail(error, COLI_SITE_ARGUMENT, "context or data is null");
  for (Buffer **at = &context->buffers; *at; at = &(*at)->next) {
    Buffer *const found = *at;
    if (found->data != data) continue;
    const OnDevice current(context);
    *at = found->next;
    free(found);
    COLI_CUDA_TRY("release of a buffer", cudaFree(data));
    return COLI_DONE;
  }
  return fail(error, COLI_SITE_ARGUMENT, "no buffer of this context begins there");
}

coli_status copy_in(coli_context *, cudaStream_t stream, const coli_matrix *source, void *to, int64_t pitch,
                    coli_error *error) {
  if (source->rows == 0 || source->cols == 0) return COLI_DONE;
  COLI_CUDA_TRY("copy to the device",
                cudaMemcpy2DAsync(to, static_cast<size_t>(pitch), source->data, static_cast<size_t>(source->stride) * 4,
                                  static_cast<size_t>(source->cols) * 4, static_cast<size_t>(source->rows),
                                  cudaMemcpyHostToDevice, stream));
  return COLI_DONE;
}

coli_status copy_out(coli_context *context, cudaStream_t stream, const void *from, int64_t pitch, coli_matrix *target,
                     coli_error *error) {
  const size_t row_bytes = static_cast<size_t>(target->cols) * 4;
  if (target->rows == 0 || row_bytes == 0) return COLI_DONE;
  if (row_bytes > context->workspace_bytes)
    return decline(error, COLI_REASON_MEMORY, "a row of %llu bytes does not fit the workspace of %llu",
                   static_cast<unsigned long long>(row_bytes),
                   static_cast<unsigned long long>(context->workspace_bytes));
  const int64_t step = static_cast<int64_t>(context->workspace_bytes / row_bytes);
  for (int64_t first = 0; first < target->rows; first += step) {
    const int64_t rows = target->rows - first < step ? target->rows - first : step;
    COLI_CUDA_TRY("copy from the device",
                  cudaMemcpy2DAsync(context->staging, row_bytes, static_cast<const uint8_t *>(from) + first * pitch,
                                    static_cast<size_t>(pitch), row_bytes, static_cast<size_t>(rows),
                                    cudaMemcpyDeviceToHost, stream));
    COLI_CUDA_TRY("work on the device", cudaStreamSynchronize(stream));
    for (int64_t row = 0; row < rows; ++row)
      memcpy(static_cast<float *>(target->data) + (first + row) * target->stride,
             context->staging + static_cast<size_t>(row) * row_bytes, row_bytes);
  }
  return COLI_DONE;
}

coli_status buffer_copy(coli_context *context, coli_stream *stream, const coli_matrix *source, coli_matrix *target,
                        coli_error *error) {
  if (!context || !source) return fail(error, COLI_SITE_ARGUMENT, "context or source is null");
  const int32_t type = source->type == COLI_TYPE_I32 ? COLI_TYPE_I32 : COLI_TYPE_F32;
  COLI_TRY(check_matrix(error, "source", source, kAny, kAny, type, true));
  COLI_TRY(check_matrix(error, "target", target, source->rows, source->cols, type, true));
  if (source->rows == 0 || source->cols == 0) return COLI_DONE;
  const OnDevice current(context);
  const cudaStream_t on = stream_of(context, stream);
  if (target->place == COLI_PLACE_HOST && source->place == COLI_PLACE_HOST) {
    COLI_CUDA_TRY("work on the device", cudaStreamSynchronize(on));
    for (int64_t row = 0; row < source->rows; ++row)
      memcpy(static_cast<float *>(target->data) + row * target->stride,
             static_cast<const float *>(source->data) + row * source->stride, static_cast<size_t>(source->cols) * 4);
    return COLI_DONE;
  }
  if (target->place == COLI_PLACE_HOST) return copy_out(context, on, source->data, source->stride * 4, target, error);
  if (source->place == COLI_PLACE_HOST) {
    COLI_TRY(copy_in(context, on, source, target->data, target->stride * 4, error));
  } else {
    COLI_CUDA_TRY("copy on the device",
                  cudaMemcpy2DAsync(target->data, static_cast<size_t>(target->stride) * 4, source->data,
                                    static_cast<size_t>(source->stride) * 4, static_cast<size_t>(source->cols) * 4,
                                    static_cast<size_t>(source->rows), cudaMemcpyDeviceToDevice, on));
  }
  if (!stream) COLI_CUDA_TRY("work on the device", cudaStreamSynchronize(on));
  return COLI_DONE;
}

}  // namespace coli_cuda
