#include "check.h"

namespace coli_cpu {

coli_status check_weight(coli_error *error, const char *name, const coli_weight *weight, int64_t format, int64_t rows,
                         int64_t cols) {
  if (!weight) return fail(error, COLI_SITE_ARGUMENT, "%s is null", name);
  if (format != kAny && weight->format != format)
    return fail(error, COLI_SITE_ARGUMENT, "%s has format %d, expected %d", name, weight->format,
                static_cast<int>(format));
  const long long have_rows = weight->rows, have_cols = weight->cols;
  if (rows != kAny && have_rows != rows)
    return fail(error, COLI_SITE_ARGUMENT, "%s has %lld rows, expected %lld", name, have_rows,
                static_cast<long long>(rows));
  if (cols != kAny && have_cols != cols)
    return fail(error, COLI_SITE_ARGUMENT, "%s has %lld cols, expected %lld", name, have_cols,
                static_cast<long long>(cols));
  return COLI_DONE;
}

}  // namespace coli_cpu
