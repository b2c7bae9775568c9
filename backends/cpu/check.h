/* check.h: what every slot asks of its arguments before it writes anything. */
#ifndef COLI_CPU_CHECK_H
#define COLI_CPU_CHECK_H

#include "context.h"

#define COLI_TRY(expression) \
  do { \
    const coli_status status_ = (expression); \
    if (status_ != COLI_DONE) return status_; \
  } while (0)

namespace coli_cpu {

constexpr int64_t kAny = -1;

/* Fill the error and return FAILED (a site) or DECLINED (a reason). */
__attribute__((format(printf, 3, 4))) coli_status fail(coli_error *error, int32_t site, const char *format, ...);
__attribute__((format(printf, 3, 4))) coli_status decline(coli_error *error, int32_t reason, const char *format, ...);

/* A matrix in host memory with rows x cols (kAny: any) elements of `type`. */
coli_status check_matrix(coli_error *error, const char *name, const coli_matrix *matrix, int64_t rows, int64_t cols,
                         int32_t type);
static inline coli_status check_floats(coli_error *error, const char *name, const coli_matrix *matrix, int64_t rows,
                                       int64_t cols) {
  return check_matrix(error, name, matrix, rows, cols, COLI_TYPE_F32);
}

/* A weight of `format` (kAny: any) with rows x cols elements. */
coli_status check_weight(coli_error *error, const char *name, const coli_weight *weight, int64_t format, int64_t rows,
                         int64_t cols);

/* A number of the call that must lie in [low, high]. */
coli_status check_range(coli_error *error, const char *name, int64_t value, int64_t low, int64_t high);

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
