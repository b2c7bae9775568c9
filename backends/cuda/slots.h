/* slots.h: the functions behind the table: the services, and the stages that this backend serves. */
#ifndef COLI_CUDA_SLOTS_H
#define COLI_CUDA_SLOTS_H

#include "../common/refuse.h"

#ifndef COLI_CUDA_NAME
#error "the build names the library: -DCOLI_CUDA_NAME=\"cuda-...\""
#endif

namespace coli_cuda {

#define COLI_SERVICE(requirement, name, ...) coli_status name(__VA_ARGS__, coli_error *error);
#define COLI_STAGE(requirement, name, ...)
#include "../abi/coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE

/* The stages that this backend leaves to the next one of the chain: absent slots. */
namespace absent {
#define COLI_SERVICE(requirement, name, ...)
#define COLI_STAGE(requirement, name, ...) constexpr decltype(nullptr) name = nullptr;
#include "../abi/coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE
}  // namespace absent

/* serving::name is the function declared here, else null: a name of the namespace itself hides those that a using-directive
 * brings. */
namespace serving {
using namespace absent;
coli_status matmul_bf16(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                        int64_t groups, coli_matrix *y, coli_error *error);
coli_status matmul_fp8(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                       int64_t groups, coli_matrix *y, coli_error *error);
coli_status matmul_fp4(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                       int64_t groups, coli_matrix *y, coli_error *error);
#if defined(COLI_BLOCK_SCALE) || defined(COLI_DEEPGEMM)
coli_status fast_matmul_fp8(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                            int64_t groups, coli_matrix *y, coli_error *error);
coli_status fast_matmul_fp4(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                            int64_t groups, coli_matrix *y, coli_error *error);
#endif
}  // namespace serving

}  // namespace coli_cuda

#endif
