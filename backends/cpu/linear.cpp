/* linear.cpp: embed, the products with a weight, dequantize. */
#include "check.h"
#include "exact.h"
#include "slots.h"

namespace coli_cpu {

coli_status embed(coli_context *context, coli_stream *, const coli_weight *table, const coli_matrix *ids, int64_t copies, coli_matrix *streams,
                  coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_weight(error, "table", table, kAny, kAny, kAny));
  COLI_TRY(check_matrix(error, "ids", ids, 1, kAny, COLI_TYPE_I32));
  COLI_TRY(check_range(error, "copies", copies, 1, INT64_C(1) << 20));
  COLI_TRY(check_floats(error, "streams", streams, ids->cols, copies * table->cols));
  const int32_t *id = ints_of(ids, 0);
  for (int64_t token = 0; token < ids->cols; ++token)
    if (id[token] < 0 || id[token] >= table->rows)
      return fail(error, COLI_SITE_ARGUMENT, "id %d of token %lld, expected 0 to %lld", id[token], static_cast<long long>(token),
                  static_cast<long long>(table->rows) - 1);
  const int64_t cols = table->cols;
  parallel(context, ids->cols, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      float *out = row_of(streams, token);
      for (int64_t col = 0; col < cols; ++col) out[col] = element(table, id[token], col);
      for (int64_t copy = 1; copy < copies; ++copy) __builtin_memcpy(out + copy * cols, out, static_cast<size_t>(cols) * 4);
    }
  });
  return COLI_DONE;
}

namespace {

coli_status matmul(coli_context *context, int32_t format, const coli_weight *weight, const coli_matrix *x, int64_t groups, coli_matrix *y,
                   coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_weight(error, "weight", weight, format, kAny, kAny));
  COLI_TRY(check_range(error, "groups", groups, 1, weight->rows > 0 ? weight->rows : 1));
  if (weight->rows % groups != 0)
    return fail(error, COLI_SITE_ARGUMENT, "groups is %lld, expected a divisor of %lld rows", static_cast<long long>(groups),
                static_cast<long long>(weight->rows));
  COLI_TRY(check_floats(error, "x", x, kAny, groups * weight->cols));
  COLI_TRY(check_floats(error, "y", y, x->rows, weight->rows));
  const int64_t cols = weight->cols, group_rows = weight->rows / groups;
  parallel(context, weight->rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t token = 0; token < x->rows; ++token)
        row_of(y, token)[row] = dot_exact(weight, row, row_of(x, token) + row / group_rows * cols);
  });
  return COLI_DONE;
}

}  // namespace

coli_status matmul_f32(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x, int64_t groups, coli_matrix *y,
                       coli_error *error) {
  return matmul(context, COLI_FORMAT_F32, weight, x, groups, y, error);
}

coli_status matmul_bf16(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x, int64_t groups, coli_matrix *y,
                        coli_error *error) {
  return matmul(context, COLI_FORMAT_BF16, weight, x, groups, y, error);
}

coli_status matmul_fp8(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x, int64_t groups, coli_matrix *y,
                       coli_error *error) {
  return matmul(context, COLI_FORMAT_FP8_BLOCK, weight, x, groups, y, error);
}

coli_status matmul_fp4(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x, int64_t groups, coli_matrix *y,
                       coli_error *error) {
  return matmul(context, COLI_FORMAT_FP4_GROUP, weight, x, groups, y, error);
}

coli_status dequantize(coli_context *context, coli_stream *, const coli_weight *weight, int64_t first_row, coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_weight(error, "weight", weight, kAny, kAny, kAny));
  COLI_TRY(check_floats(error, "y", y, kAny, weight->cols));
  COLI_TRY(check_range(error, "first_row", first_row, 0, weight->rows - y->rows));
  parallel(context, y->rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t col = 0; col < weight->cols; ++col) row_of(y, row)[col] = element(weight, first_row + row, col);
  });
  return COLI_DONE;
}

}  // namespace coli_cpu
