/* tensor_map.h: descriptions of matrices on the device, as the hardware that copies tiles reads them. */
#ifndef COLI_DEEPGEMM_TENSOR_MAP_H
#define COLI_DEEPGEMM_TENSOR_MAP_H

#include <cuda.h>

#include "../common/refuse.h"

namespace coli_deepgemm {

using Encode = decltype(&cuTensorMapEncodeTiled);

/* What a map describes: `rows` rows, `pitch` bytes apart, of `cols` elements each; copied in boxes of box_rows x box_cols. */
struct Matrix {
  enum Kind { kBytes, kNibbles, kWords } kind; /* codes of 8 bits; of 4 bits, which get 8 of room; words of scales */
  const void *data;
  int64_t rows, cols, pitch;
  uint32_t box_rows, box_cols;
};

/* Ask the driver, which is there when a device is, for the function that encodes maps. DECLINED/DEVICE without it. */
coli_status find_encode(Encode *encode, coli_error *error);

coli_status encode_map(Encode encode, const char *name, const Matrix &matrix, CUtensorMap *map, coli_error *error);

}  // namespace coli_deepgemm

#endif
