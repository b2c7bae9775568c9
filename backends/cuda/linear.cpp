/* linear.cpp: the products with an uploaded weight. */
#include "context.h"
#include "matvec.h"
#include "product.h"
#include "slots.h"

namespace coli_cuda {

using coli_common::check_matrix;
using coli_common::check_range;
using coli_common::decline;
using coli_common::fail;
using coli_common::kAny;

coli_status check_product(const coli_context *context, int32_t format, const coli_weight *weight, const coli_matrix *x,
                          int64_t groups, const coli_matrix *y, coli_error *error) {
  if (!context || !weight) return fail(error, COLI_SITE_ARGUMENT, "context or weight is null");
  const coli_common::WeightFacts &facts = weight->host;
  if (facts.format != format)
    return fail(error, COLI_SITE_ARGUMENT, "weight has format %d, expected %d", facts.format, format);
  COLI_TRY(check_range(error, "groups", groups, 1, facts.rows > 0 ? facts.rows : 1));
  if (facts.rows % groups != 0)
    return fail(error, COLI_SITE_ARGUMENT, "groups is %lld, expected a divisor of %lld rows",
                static_cast<long long>(groups), static_cast<long long>(facts.rows));
  COLI_TRY(check_matrix(error, "x", x, kAny, groups * facts.cols, COLI_TYPE_F32, true));
  COLI_TRY(check_matrix(error, "y", y, x->rows, facts.rows, COLI_TYPE_F32, true));
  if (!weight->uploaded) return decline(error, COLI_REASON_PLACE, "the weight was not uploaded to the device");
  return COLI_DONE;
}

namespace {

constexpr int64_t kAlignment = 16; /* of a row of activations in the workspace: x is read four columns at a time */

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/* A matrix on the device: the caller's own, or room in the workspace, whose rows are packed. */
struct Place {
  uint8_t *data;
  int64_t pitch; /* bytes */
  bool own;
};

Place place_of(const coli_matrix *matrix, uint8_t *workspace) {
  if (matrix->place == COLI_PLACE_DEVICE) return {static_cast<uint8_t *>(matrix->data), matrix->stride * 4, false};
  return {workspace, aligned(matrix->cols * 4), true};
}

coli_status matmul(coli_context *context, coli_stream *stream, int32_t format, const coli_weight *weight,
                   const coli_matrix *x, int64_t groups, coli_matrix *y, coli_error *error) {
  COLI_TRY(check_product(context, format, weight, x, groups, y, error));
  const coli_common::WeightFacts &facts = weight->host;
  if (x->rows == 0 || facts.rows == 0) return COLI_DONE;

  /* Results of all tokens first, then as many tokens of x as fit behind them. */
  const Place to = place_of(y, context->workspace);
  const uint64_t result_bytes = to.own ? static_cast<uint64_t>(to.pitch) * static_cast<uint64_t>(x->rows) : 0;
  const Place from = place_of(x, context->workspace + result_bytes);
  const uint64_t least = result_bytes + (from.own ? static_cast<uint64_t>(from.pitch) : 0);
  if (least > context->workspace_bytes)
    return decline(error, COLI_REASON_MEMORY, "%lld tokens need %llu bytes of workspace, it has %llu",
                   static_cast<long long>(x->rows), static_cast<unsigned long long>(least),
                   static_cast<unsigned long long>(context->workspace_bytes));
  int64_t step = x->rows;
  if (from.own && from.pitch > 0) {
    const int64_t room = static_cast<int64_t>((context->workspace_bytes - result_bytes) / from.pitch);
    step = room < step ? room : step;
  }

  const OnDevice current(context);
  const cudaStream_t on = stream_of(context, stream);
  Matvec call = {};
  call.codes = weight->codes;
  call.scales = weight->scales;
  call.pitch = weight->pitch;
  call.scale_cols = facts.scale_cols;
  call.cols = facts.cols;
  call.group_rows = facts.rows / groups;
  call.x_stride = from.pitch / 4;
  call.y_stride = to.pitch / 4;
  for (int64_t first = 0; first < x->rows; first += step) {
    const int64_t tokens = x->rows - first < step ? x->rows - first : step;
    if (from.own) {
      coli_matrix part = *x;
      part.data = static_cast<float *>(x->data) + first * x->stride;
      part.rows = tokens;
      COLI_TRY(copy_in(context, on, &part, from.data, from.pitch, error));
    }
    call.x = reinterpret_cast<const float *>(from.own ? from.data : from.data + first * from.pitch);
    call.y = reinterpret_cast<float *>(to.data + first * to.pitch);
    COLI_CUDA_TRY("product", launch_matvec(format, weight->has_nan, call, groups, tokens, on));
  }
  if (to.own) return copy_out(context, on, to.data, to.pitch, y, error);
  /* The workspace serves the next call, on any stream. */
  if (!stream || from.own) COLI_CUDA_TRY("work on the device", cudaStreamSynchronize(on));
  return COLI_DONE;
}

}  // namespace

namespace serving {

coli_status matmul_bf16(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                        int64_t groups, coli_matrix *y, coli_error *error) {
  return matmul(context, stream, COLI_FORMAT_BF16, weight, x, groups, y, error);
}

coli_status matmul_fp8(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                       int64_t groups, coli_matrix *y, coli_error *error) {
  return matmul(context, stream, COLI_FORMAT_FP8_BLOCK, weight, x, groups, y, error);
}

coli_status matmul_fp4(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                       int64_t groups, coli_matrix *y, coli_error *error) {
  return matmul(context, stream, COLI_FORMAT_FP4_GROUP, weight, x, groups, y, error);
}

}  // namespace serving

}  // namespace coli_cuda
