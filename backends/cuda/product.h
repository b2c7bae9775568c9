/* product.h: what the products with an uploaded weight have in common, whatever multiplies. */
#ifndef COLI_CUDA_PRODUCT_H
#define COLI_CUDA_PRODUCT_H

#include "context.h"

namespace coli_cuda {

/* Check the arguments of a product slot: format of the weight, groups, shapes, and that the weight was uploaded. */
coli_status check_product(const coli_context *context, int32_t format, const coli_weight *weight, const coli_matrix *x,
                          int64_t groups, const coli_matrix *y, coli_error *error);

/* A product of the fast mode by cuBLASLt, in libraries that have it (block_scale.h). */
coli_status block_scaled_product(coli_context *context, coli_stream *stream, int32_t format, const coli_weight *weight,
                                 const coli_matrix *x, int64_t groups, coli_matrix *y, coli_error *error);

}  // namespace coli_cuda

#endif
