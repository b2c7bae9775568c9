/* weight_desc.h: what a weight's descriptor says, checked. The same in every backend, whatever it keeps of it. */
#ifndef COLI_COMMON_WEIGHT_DESC_H
#define COLI_COMMON_WEIGHT_DESC_H

#include "refuse.h"

namespace coli_common {

/* A weight in host memory whose sizes and scale codes are legal. */
struct WeightFacts {
  int32_t format;
  int64_t rows, cols;
  int64_t row_bytes;              /* codes of a row, without gaps */
  int64_t scale_rows, scale_cols; /* 0 where the format has no scales */
  const uint8_t *codes, *scales;
};

/* Read `desc` into `facts`, or say what is wrong with it: FAILED/ARGUMENT, FAILED/SCALE, DECLINED/FORMAT. */
coli_status check_weight_desc(coli_error *error, const coli_weight_desc *desc, WeightFacts *facts);

/* Whether E4M3 codes hold a NaN (0x7F, 0xFF), which the fast decoders do not know. */
bool has_nan_code(const uint8_t *codes, int64_t count);

}  // namespace coli_common

#endif
