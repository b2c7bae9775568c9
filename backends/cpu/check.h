/* check.h: what every slot asks of its arguments before it writes anything. */
#ifndef COLI_CPU_CHECK_H
#define COLI_CPU_CHECK_H

#include "../common/refuse.h"
#include "context.h"

namespace coli_cpu {

using coli_common::check_range;
using coli_common::decline;
using coli_common::fail;
using coli_common::kAny;

/* A matrix in host memory with rows x cols (kAny: any) elements of `type`. */
static inline coli_status check_matrix(coli_error *error, const char *name, const coli_matrix *matrix, int64_t rows,
                                       int64_t cols, int32_t type) {
  return coli_common::check_matrix(error, name, matrix, rows, cols, type, false);
}
static inline coli_status check_floats(coli_error *error, const char *name, const coli_matrix *matrix, int64_t rows,
                                       int64_t cols) {
  return check_matrix(error, name, matrix, rows, cols, COLI_TYPE_F32);
}

/* A weight of `format` (kAny: any) with rows x cols elements. */
coli_status check_weight(coli_error *error, const char *name, const coli_weight *weight, int64_t format, int64_t rows,
                         int64_t cols);

static inline float *row_of(const coli_matrix *matrix, int64_t row) {
  return static_cast<float *>(matrix->data) + row * matrix->stride;
}
static inline int32_t *ints_of(const coli_matrix *matrix, int64_t row) {
  return static_cast<int32_t *>(matrix->data) + row * matrix->stride;
}

static inline bool is_finite(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return (bits & 0x7f800000u) != 0x7f800000u;
}

}  // namespace coli_cpu

#endif
