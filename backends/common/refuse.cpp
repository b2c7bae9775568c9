#include "refuse.h"

#include <stdarg.h>
#include <stdio.h>

namespace coli_common {

namespace {

void write(coli_error *error, int32_t code, const char *format, va_list arguments) {
  if (!error || error->size < sizeof(coli_error)) return;
  error->code = code;
  vsnprintf(error->text, sizeof error->text, format, arguments);
}

/* Beyond any address space; keeps every product below from overflowing. */
constexpr int64_t kMaxElements = INT64_C(1) << 48;

}  // namespace

coli_status fail(coli_error *error, int32_t site, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write(error, site, format, arguments);
  va_end(arguments);
  return COLI_FAILED;
}

coli_status decline(coli_error *error, int32_t reason, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write(error, reason, format, arguments);
  va_end(arguments);
  return COLI_DECLINED;
}

coli_status check_range(coli_error *error, const char *name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return COLI_DONE;
  return fail(error, COLI_SITE_ARGUMENT, "%s is %lld, expected %lld to %lld", name, static_cast<long long>(value),
              static_cast<long long>(low), static_cast<long long>(high));
}

coli_status check_matrix(coli_error *error, const char *name, const coli_matrix *matrix, int64_t rows, int64_t cols,
                         int32_t type, bool device_too) {
  if (!matrix) return fail(error, COLI_SITE_ARGUMENT, "%s is null", name);
  const long long have_rows = matrix->rows, have_cols = matrix->cols, stride = matrix->stride;
  if (matrix->type != type)
    return fail(error, COLI_SITE_ARGUMENT, "%s has type %d, expected %d (%s)", name, matrix->type, type,
                type ? "I32" : "F32");
  if (matrix->place != COLI_PLACE_HOST && !(device_too && matrix->place == COLI_PLACE_DEVICE))
    return decline(error, COLI_REASON_PLACE, "%s is not in %s memory", name, device_too ? "host or device" : "host");
  if (have_rows < 0 || have_cols < 0 || stride < have_cols)
    return fail(error, COLI_SITE_ARGUMENT, "%s has %lld rows, %lld cols, stride %lld: negative or stride < cols", name,
                have_rows, have_cols, stride);
  if (stride > kMaxElements || (stride > 0 && have_rows > kMaxElements / stride))
    return fail(error, COLI_SITE_ARGUMENT, "%s has %lld rows of stride %lld: larger than any memory", name, have_rows,
                stride);
  if (rows != kAny && have_rows != rows)
    return fail(error, COLI_SITE_ARGUMENT, "%s has %lld rows, expected %lld", name, have_rows,
                static_cast<long long>(rows));
  if (cols != kAny && have_cols != cols)
    return fail(error, COLI_SITE_ARGUMENT, "%s has %lld cols, expected %lld", name, have_cols,
                static_cast<long long>(cols));
  if (have_rows > 0 && have_cols > 0 && !matrix->data) return fail(error, COLI_SITE_ARGUMENT, "%s has no data", name);
  if (reinterpret_cast<uintptr_t>(matrix->data) % 4 != 0)
    return fail(error, COLI_SITE_ARGUMENT, "%s is not aligned to 4 bytes", name);
  return COLI_DONE;
}

}  // namespace coli_common
