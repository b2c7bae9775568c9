/* linear.cpp: embed, the products with a weight, dequantize. */
#include "check.h"
#include "exact.h"
#include "product.h"
#include "slots.h"

namespace coli_cpu {

coli_status embed(coli_context *context, coli_stream *, const coli_weight *table, const coli_matrix *ids,
                  int64_t copies, coli_matrix *streams, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_weight(error, "table", table, kAny, kAny, kAny));
  COLI_TRY(check_matrix(error, "ids", ids, 1, kAny, COLI_TYPE_I32));
  COLI_TRY(check_range(error, "copies", copies, 1, INT64_C(1) << 20));
  COLI_TRY(check_floats(error, "streams", streams, ids->cols, copies * table->cols));
  const int32_t *id = ints_of(ids, 0);
  for (int64_t token = 0; token < ids->cols; ++token)
    if (id[token] < 0 || id[token] >= table->rows)
      return fail(error, COLI_SITE_ARGUMENT, "id %d of token %lld, expected 0 to %lld", id[token],
                  static_cast<long long>(token), static_cast<long long>(table->rows) - 1);
  const int64_t cols = table->cols;
  parallel(context, ids->cols, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      float *out = row_of(streams, token);
      for (int64_t col = 0; col < cols; ++col) out[col] = element(table, id[token], col);
      for (int64_t copy = 1; copy < copies; ++copy)
        __builtin_memcpy(out + copy * cols, out, static_cast<size_t>(cols) * 4);
    }
  });
  return COLI_DONE;
}

namespace {

coli_status matmul(coli_context *context, int32_t format, const coli_weight *weight, const coli_matrix *x,
                   int64_t groups, coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_weight(error, "weight", weight, format, kAny, kAny));
  COLI_TRY(check_range(error, "groups", groups, 1, weight->rows > 0 ? weight->rows : 1));
  if (weight->rows % groups != 0)
    return fail(error, COLI_SITE_ARGUMENT, "groups is %lld, expected a divisor of %lld rows",
                static_cast<long long>(groups), static_cast<long long>(weight->rows));
  COLI_TRY(check_floats(error, "x", x, kAny, groups * weight->cols));
  COLI_TRY(check_floats(error, "y", y, x->rows, weight->rows));
  const int64_t cols = weight->cols, group_rows = weight->rows / groups;
  /* Packed tokens and the pointers to them share the scratch: all groups of as many tokens as fit. */
  const int64_t packed = packed_cols_of(format, cols), token_floats = groups * (packed + 2) + 2;
  const int64_t room = shared_scratch_floats(context) / (token_floats > 0 ? token_floats : 1);
  if (weight->has_nan || room == 0) {
    parallel(context, weight->rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t token = 0; token < x->rows; ++token)
          row_of(y, token)[row] = dot_exact(weight, row, row_of(x, token) + row / group_rows * cols);
    });
    return COLI_DONE;
  }
  for (int64_t first = 0; first < x->rows; first += room) {
    const int64_t tokens = x->rows - first < room ? x->rows - first : room;
    const float **at = reinterpret_cast<const float **>(shared_scratch(context)); /* [groups][tokens] */
    float **to = const_cast<float **>(at) + groups * tokens;                      /* [tokens] */
    float *rows = shared_scratch(context) + 2 * (groups + 1) * tokens;
    for (int64_t token = 0; token < tokens; ++token) to[token] = row_of(y, first + token);
    parallel(context, groups * tokens, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        at[item] = rows + item * packed;
        pack_row_for(format, row_of(x, first + item % tokens) + item / tokens * cols, cols, rows + item * packed);
      }
    });
    parallel(context, (weight->rows + kBlockRows - 1) / kBlockRows, 1, [&](int64_t begin, int64_t end, int worker) {
      const int64_t last = end * kBlockRows < weight->rows ? end * kBlockRows : weight->rows;
      for (int64_t row = begin * kBlockRows; row < last;) {
        const int64_t group = row / group_rows,
                      stop = (group + 1) * group_rows < last ? (group + 1) * group_rows : last;
        product(weight, row, stop, at + group * tokens, tokens, thread_scratch(context, worker), Target{to, nullptr});
        row = stop;
      }
    });
  }
  return COLI_DONE;
}

}  // namespace

coli_status matmul_f32(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x,
                       int64_t groups, coli_matrix *y, coli_error *error) {
  return matmul(context, COLI_FORMAT_F32, weight, x, groups, y, error);
}

coli_status matmul_bf16(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x,
                        int64_t groups, coli_matrix *y, coli_error *error) {
  return matmul(context, COLI_FORMAT_BF16, weight, x, groups, y, error);
}

coli_status matmul_fp8(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x,
                       int64_t groups, coli_matrix *y, coli_error *error) {
  return matmul(context, COLI_FORMAT_FP8_BLOCK, weight, x, groups, y, error);
}

coli_status matmul_fp4(coli_context *context, coli_stream *, const coli_weight *weight, const coli_matrix *x,
                       int64_t groups, coli_matrix *y, coli_error *error) {
  return matmul(context, COLI_FORMAT_FP4_GROUP, weight, x, groups, y, error);
}

coli_status dequantize(coli_context *context, coli_stream *, const coli_weight *weight, int64_t first_row,
                       coli_matrix *y, coli_error *error) {
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
