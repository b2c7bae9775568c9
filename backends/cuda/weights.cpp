/* weights.cpp: weights in host memory and their copies on the device. */
#include <stdlib.h>

#include "context.h"
#include "slots.h"

namespace coli_cuda {

using coli_common::check_weight_desc;
using coli_common::fail;
using coli_common::WeightFacts;

namespace {

constexpr int64_t kAlignment = 16; /* of a row: a lane reads that many bytes at once */

bool holds_nan(const WeightFacts &facts) {
  return facts.format == COLI_FORMAT_FP8_BLOCK && coli_common::has_nan_code(facts.codes, facts.rows * facts.row_bytes);
}

/* Codes to rows of `pitch` bytes with zeros behind them, scales as they are. */
cudaError_t copy(const coli_weight &weight, const WeightFacts &from, cudaStream_t stream) {
  const size_t row_bytes = static_cast<size_t>(from.row_bytes), pitch = static_cast<size_t>(weight.pitch);
  const size_t rows = static_cast<size_t>(from.rows);
  if (rows == 0 || row_bytes == 0) return cudaSuccess;
  cudaError_t status = cudaSuccess;
  if (pitch != row_bytes) status = cudaMemsetAsync(weight.codes, 0, pitch * rows, stream);
  if (status == cudaSuccess)
    status =
        cudaMemcpy2DAsync(weight.codes, pitch, from.codes, row_bytes, row_bytes, rows, cudaMemcpyHostToDevice, stream);
  const size_t scale_bytes = static_cast<size_t>(from.scale_rows * from.scale_cols);
  if (status == cudaSuccess && scale_bytes > 0)
    status = cudaMemcpyAsync(weight.scales, from.scales, scale_bytes, cudaMemcpyHostToDevice, stream);
  /* The host memory may change as soon as this call is over, whatever it came to. */
  const cudaError_t waited = cudaStreamSynchronize(stream);
  return status == cudaSuccess ? waited : status;
}

}  // namespace

coli_status weight_bind(coli_context *context, const coli_weight_desc *desc, coli_weight **weight, coli_error *error) {
  if (!context || !weight) return fail(error, COLI_SITE_ARGUMENT, "context or weight is null");
  WeightFacts facts;
  COLI_TRY(check_weight_desc(error, desc, &facts));
  coli_weight *made = static_cast<coli_weight *>(calloc(1, sizeof(coli_weight)));
  if (!made) return fail(error, COLI_SITE_MEMORY, "no memory for a weight handle");
  made->host = facts;
  made->has_nan = holds_nan(facts);
  made->pitch = (facts.row_bytes + kAlignment - 1) / kAlignment * kAlignment;
  ++context->weights;
  *weight = made;
  return COLI_DONE;
}

coli_status weight_upload(coli_context *context, coli_stream *stream, coli_weight *weight, coli_error *error) {
  if (!context || !weight) return fail(error, COLI_SITE_ARGUMENT, "context or weight is null");
  if (weight->uploaded) return COLI_DONE;
  if (weight->host.format == COLI_FORMAT_F32)
    return coli_common::decline(error, COLI_REASON_FORMAT, "%s serves no stage with f32 weights", COLI_CUDA_NAME);
  const OnDevice current(context);
  if (!weight->codes) {
    const uint64_t code_bytes = static_cast<uint64_t>(weight->pitch * weight->host.rows);
    const uint64_t bytes = code_bytes + static_cast<uint64_t>(weight->host.scale_rows * weight->host.scale_cols);
    void *memory = nullptr;
    COLI_CUDA_TRY("copy of a weight", cudaMalloc(&memory, bytes ? bytes : 1));
    weight->codes = static_cast<uint8_t *>(memory);
    weight->scales = weight->codes + code_bytes;
    weight->bytes = bytes;
    context->weight_bytes += bytes;
  }
  COLI_CUDA_TRY("copy of a weight", copy(*weight, weight->host, stream_of(context, stream)));
  weight->uploaded = true;
  return COLI_DONE;
}

coli_status weight_refill(coli_context *context, coli_stream *stream, coli_weight *weight, const coli_weight_desc *desc,
                          coli_error *error) {
  if (!context || !weight) return fail(error, COLI_SITE_ARGUMENT, "context or weight is null");
  WeightFacts facts;
  COLI_TRY(check_weight_desc(error, desc, &facts));
  const WeightFacts &had = weight->host;
  if (facts.format != had.format || facts.rows != had.rows || facts.cols != had.cols)
    return fail(error, COLI_SITE_ARGUMENT, "refill has format %d, %lld x %lld; the weight has format %d, %lld x %lld",
                facts.format, static_cast<long long>(facts.rows), static_cast<long long>(facts.cols), had.format,
                static_cast<long long>(had.rows), static_cast<long long>(had.cols));
  if (weight->uploaded) {
    const OnDevice current(context);
    weight->uploaded = false; /* a copy that breaks off holds neither */
    COLI_CUDA_TRY("copy of a weight", copy(*weight, facts, stream_of(context, stream)));
    weight->uploaded = true;
  }
  weight->host = facts;
  weight->has_nan = holds_nan(facts);
  return COLI_DONE;
}

coli_status weight_release(coli_context *context, coli_weight *weight, coli_error *error) {
  if (!context || !weight) return fail(error, COLI_SITE_ARGUMENT, "context or weight is null");
  const OnDevice current(context);
  const cudaError_t status = weight->codes ? cudaFree(weight->codes) : cudaSuccess; /* waits for work that reads it */
  context->weight_bytes -= weight->bytes;
  free(weight);
  --context->weights;
  if (status != cudaSuccess) return fail_cuda(error, "release of a weight", status);
  return COLI_DONE;
}

}  // namespace coli_cuda
