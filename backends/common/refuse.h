/* refuse.h: how a slot says no. Shared by the backends written in C++. */
#ifndef COLI_COMMON_REFUSE_H
#define COLI_COMMON_REFUSE_H

#include "../abi/coli_backend.h"

#define COLI_TRY(expression) \
  do { \
    const coli_status status_ = (expression); \
    if (status_ != COLI_DONE) return status_; \
  } while (0)

namespace coli_common {

constexpr int64_t kAny = -1;

/* Fill the error and return FAILED (a site) or DECLINED (a reason). */
__attribute__((format(printf, 3, 4))) coli_status fail(coli_error *error, int32_t site, const char *format, ...);
__attribute__((format(printf, 3, 4))) coli_status decline(coli_error *error, int32_t reason, const char *format, ...);

/* A number of the call that must lie in [low, high]. */
coli_status check_range(coli_error *error, const char *name, int64_t value, int64_t low, int64_t high);

/* A matrix of rows x cols (kAny: any) elements of `type`, described soundly, in host memory or, where the backend can reach it, on
 * the device. */
coli_status check_matrix(coli_error *error, const char *name, const coli_matrix *matrix, int64_t rows, int64_t cols,
                         int32_t type, bool device_too);

}  // namespace coli_common

#endif
