/* slots.h: the functions behind the table: the services, the stages that this backend serves, and, for every stage of the list, one
 * that declines. */
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

/* Present and declining, so that the next backend of the chain takes the call. */
namespace declining {
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#define COLI_SERVICE(requirement, name, ...)
#define COLI_STAGE(requirement, name, ...) \
  inline coli_status name(coli_context *context, coli_stream *stream, __VA_ARGS__, coli_error *error) { \
    return coli_common::decline(error, COLI_REASON_DEVICE, "%s does not serve %s", COLI_CUDA_NAME, #name); \
  }
#include "../abi/coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
}  // namespace declining

/* serving::name is the function declared here, else the one that declines: a name of the namespace itself hides those that a
 * using-directive brings. */
namespace serving {
using namespace declining;
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
#else /* nothing in this library can: absent slots */
constexpr decltype(nullptr) fast_matmul_fp8 = nullptr, fast_matmul_fp4 = nullptr;
#endif
}  // namespace serving

}  // namespace coli_cuda

#endif
