#include "weight_desc.h"

namespace coli_common {

namespace {

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

coli_status check_scales(coli_error *error, const WeightFacts &facts, int highest) {
  for (int64_t row = 0; row < facts.scale_rows; ++row) {
    const uint8_t *codes = facts.scales + row * facts.scale_cols;
    int worst = 0;
    for (int64_t col = 0; col < facts.scale_cols; ++col) worst = codes[col] > worst ? codes[col] : worst;
    if (worst <= highest) continue;
    int64_t col = 0;
    while (codes[col] <= highest) ++col;
    return fail(error, COLI_SITE_SCALE, "scale code %d at row %lld, col %lld of the scales, expected 0 to %d",
                codes[col], static_cast<long long>(row), static_cast<long long>(col), highest);
  }
  return COLI_DONE;
}

}  // namespace

coli_status check_weight_desc(coli_error *error, const coli_weight_desc *desc, WeightFacts *facts) {
  if (!desc) return fail(error, COLI_SITE_ARGUMENT, "desc is null");
  if (desc->size < sizeof(coli_weight_desc))
    return fail(error, COLI_SITE_ARGUMENT, "desc.size is %u, expected %u", desc->size,
                static_cast<unsigned>(sizeof(coli_weight_desc)));
  const int64_t rows = desc->rows, cols = desc->cols;
  constexpr int64_t most = INT64_C(1) << 47;
  if (rows < 0 || cols < 0 || (cols > 0 && rows > most / cols))
    return fail(error, COLI_SITE_ARGUMENT, "weight of %lld x %lld", static_cast<long long>(rows),
                static_cast<long long>(cols));
  WeightFacts made = {};
  made.format = desc->format;
  made.rows = rows;
  made.cols = cols;
  int highest = 0;
  switch (desc->format) {
    case COLI_FORMAT_F32:
      made.row_bytes = cols * 4;
      break;
    case COLI_FORMAT_BF16:
      made.row_bytes = cols * 2;
      break;
    case COLI_FORMAT_FP8_BLOCK:
      made.row_bytes = cols;
      made.scale_rows = ceil_div(rows, 128);
      made.scale_cols = ceil_div(cols, 128);
      highest = 246;
      break;
    case COLI_FORMAT_FP4_GROUP:
      if (cols % 32 != 0)
        return fail(error, COLI_SITE_ARGUMENT, "fp4 weight has %lld cols, expected a multiple of 32",
                    static_cast<long long>(cols));
      made.row_bytes = cols / 2;
      made.scale_rows = rows;
      made.scale_cols = cols / 32;
      highest = 253;
      break;
    default:
      return decline(error, COLI_REASON_FORMAT, "weight format %d is not served", desc->format);
  }
  const int64_t code_bytes = rows * made.row_bytes, scale_bytes = made.scale_rows * made.scale_cols;
  if (desc->codes_bytes != static_cast<uint64_t>(code_bytes) || (code_bytes > 0 && !desc->codes))
    return fail(error, COLI_SITE_ARGUMENT, "codes hold %llu bytes, expected %lld for %lld x %lld",
                static_cast<unsigned long long>(desc->codes_bytes), static_cast<long long>(code_bytes),
                static_cast<long long>(rows), static_cast<long long>(cols));
  if (desc->scales_bytes != static_cast<uint64_t>(scale_bytes) || (scale_bytes > 0 && !desc->scales))
    return fail(error, COLI_SITE_ARGUMENT, "scales hold %llu bytes, expected %lld for %lld x %lld",
                static_cast<unsigned long long>(desc->scales_bytes), static_cast<long long>(scale_bytes),
                static_cast<long long>(rows), static_cast<long long>(cols));
  made.codes = static_cast<const uint8_t *>(desc->codes);
  made.scales = static_cast<const uint8_t *>(desc->scales);
  COLI_TRY(check_scales(error, made, highest));
  *facts = made;
  return COLI_DONE;
}

bool has_nan_code(const uint8_t *codes, int64_t count) {
  uint8_t found = 0;
  for (int64_t index = 0; index < count; ++index) found |= (codes[index] & 0x7f) == 0x7f;
  return found != 0;
}

}  // namespace coli_common
