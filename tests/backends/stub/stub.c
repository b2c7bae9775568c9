/* A backend for tests: C, no kernels, everything wrong on request. Each STUB_* switch breaks one thing. */
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define sleep(seconds) Sleep(1000 * (seconds))
#else
#include <unistd.h>
#endif

#include "coli_backend.h"

#ifndef STUB_NAME
#define STUB_NAME "stub"
#endif

/* A library with device code, as nvcc leaves it behind. */
#ifdef STUB_FATBIN
__asm__(".section .nv_fatbin, \"a\", @progbits\n.incbin \"" STUB_FATBIN "\"\n.previous");
#endif

struct coli_context {
  int32_t threads;
  int64_t weights;
};

struct coli_weight {
  coli_weight_desc desc;
};

/* Live objects, to be read by the tests: a weight that outlives its context shows in stub_misorder. */
COLI_EXPORT int64_t stub_contexts = 0;
COLI_EXPORT int64_t stub_weights = 0;
COLI_EXPORT int64_t stub_misorder = 0;

static coli_status refuse(coli_status status, int32_t code, const char *text, coli_error *error) {
  error->code = code;
  strncpy(error->text, text, sizeof error->text - 1);
  error->text[sizeof error->text - 1] = 0;
  return status;
}

/* Every stage declines unless it is written below. */
#define COLI_SERVICE(requirement, name, ...)
#define COLI_STAGE(requirement, name, ...) \
  static coli_status decline_##name(coli_context *context, coli_stream *stream, __VA_ARGS__, coli_error *error) { \
    return refuse(COLI_DECLINED, COLI_REASON_SHAPE, "stub: " #name " is not served", error); \
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-function"
#include "coli_slots.inc"
#pragma GCC diagnostic pop
#undef COLI_SERVICE
#undef COLI_STAGE

static coli_status context_create(const coli_context_config *config, coli_context **context, coli_error *error) {
  if (config->size != sizeof *config || config->threads < 1)
    return refuse(COLI_FAILED, COLI_SITE_ARGUMENT, "stub: threads < 1", error);
#ifdef STUB_NO_CONTEXT
  return refuse(COLI_FAILED, COLI_SITE_MEMORY, "stub: no memory for a context", error);
#endif
#ifdef STUB_WANTS_DEVICES
  const char *devices = getenv("CUDA_VISIBLE_DEVICES");
  if (!devices || strcmp(devices, STUB_WANTS_DEVICES))
    return refuse(COLI_FAILED, COLI_SITE_DEVICE, devices ? devices : "CUDA_VISIBLE_DEVICES is not set", error);
#endif
  *context = calloc(1, sizeof **context);
  (*context)->threads = config->threads;
  ++stub_contexts;
  return COLI_DONE;
}

static coli_status context_destroy(coli_context *context, coli_error *error) {
  (void)error;
  if (context->weights) ++stub_misorder;
  --stub_contexts;
  free(context);
  return COLI_DONE;
}

static coli_status device_info(coli_context *context, coli_device_info *info, coli_error *error) {
  (void)context, (void)error;
  strcpy(info->name, "stub device");
  return COLI_DONE;
}

static coli_status memory_info(coli_context *context, coli_memory_info *info, coli_error *error) {
  (void)error;
  info->context_bytes = (uint64_t)context->threads;
  return COLI_DONE;
}

static coli_status weight_bind(coli_context *context, const coli_weight_desc *desc, coli_weight **weight,
                               coli_error *error) {
#ifdef STUB_DECLINE_BIND
  (void)context, (void)desc, (void)weight;
  return refuse(COLI_DECLINED, COLI_REASON_FORMAT, "stub: no weights", error);
#endif
  if (!desc->codes) return refuse(COLI_FAILED, COLI_SITE_ARGUMENT, "stub: no codes", error);
  *weight = calloc(1, sizeof **weight);
  (*weight)->desc = *desc;
  ++context->weights;
  ++stub_weights;
  return COLI_DONE;
}

static coli_status weight_refill(coli_context *context, coli_stream *stream, coli_weight *weight,
                                 const coli_weight_desc *desc, coli_error *error) {
  (void)context, (void)stream;
  if (desc->codes_bytes != weight->desc.codes_bytes)
    return refuse(COLI_FAILED, COLI_SITE_ARGUMENT, "stub: refill of another size", error);
  weight->desc = *desc;
  return COLI_DONE;
}

static coli_status weight_release(coli_context *context, coli_weight *weight, coli_error *error) {
  (void)error;
  --context->weights;
  --stub_weights;
  free(weight);
  return COLI_DONE;
}

/* y += x, element by element through the strides. */
static coli_status add(coli_context *context, coli_stream *stream, const coli_matrix *x, coli_matrix *y,
                       coli_error *error) {
  (void)context, (void)stream;
#ifdef STUB_DEVICE_LOST
  return refuse(COLI_FAILED, COLI_SITE_DEVICE, "stub: device lost", error);
#endif
  if (!x || !y || x->rows != y->rows || x->cols != y->cols || x->type != COLI_TYPE_F32 || y->type != COLI_TYPE_F32)
    return refuse(COLI_FAILED, COLI_SITE_ARGUMENT, "stub: add: shapes or types differ", error);
  for (int64_t r = 0; r < x->rows; ++r)
    for (int64_t c = 0; c < x->cols; ++c) {
      const float a = ((const float *)x->data)[r * x->stride + c];
      float *b = (float *)y->data + r * y->stride + c;
#ifdef STUB_WRONG_BITS
      *b = *b + a + 0.25f;
#else
      *b = *b + a;
#endif
    }
  return COLI_DONE;
}

/* y[t, r] = codes[r * cols + t] as float: shows that the weight's memory, strides and scalars arrive. */
static coli_status matmul_f32(coli_context *context, coli_stream *stream, const coli_weight *weight,
                              const coli_matrix *x, int64_t groups, coli_matrix *y, coli_error *error) {
  (void)context, (void)stream;
  if (!weight || !x || !y) return refuse(COLI_FAILED, COLI_SITE_ARGUMENT, "stub: matmul_f32: null", error);
  const float *w = (const float *)weight->desc.codes;
  for (int64_t t = 0; t < y->rows; ++t)
    for (int64_t r = 0; r < y->cols; ++r)
      ((float *)y->data)[t * y->stride + r] = w[r * weight->desc.cols + t] * (float)groups;
  return COLI_DONE;
}

/* Writes into y what it was given: rows, cols, stride of x, whether gain is null, epsilon. */
static coli_status rms_norm(coli_context *context, coli_stream *stream, const coli_matrix *x, const coli_matrix *gain,
                            float epsilon, coli_matrix *y, coli_error *error) {
  (void)context, (void)stream;
  if (!x || !y || y->cols < 5 || y->rows < 1)
    return refuse(COLI_FAILED, COLI_SITE_ARGUMENT, "stub: rms_norm: y", error);
  float *out = (float *)y->data;
  out[0] = (float)x->rows, out[1] = (float)x->cols, out[2] = (float)x->stride, out[3] = gain ? 1 : 0, out[4] = epsilon;
  return COLI_DONE;
}

/* y[0] = number of experts, then the first code byte of each w2. */
static coli_status moe(coli_context *context, coli_stream *stream, const coli_matrix *x, const coli_matrix *picks,
                       const coli_matrix *weights, const coli_matrix *ids, const coli_weight_list *w1,
                       const coli_weight_list *w3, const coli_weight_list *w2, float limit, coli_matrix *y,
                       coli_error *error) {
  (void)context, (void)stream, (void)x, (void)picks, (void)weights, (void)ids, (void)w1, (void)w3, (void)limit;
  float *out = (float *)y->data;
  if (w2->count + 1 > y->cols) return refuse(COLI_FAILED, COLI_SITE_ARGUMENT, "stub: moe: y", error);
  out[0] = (float)w2->count;
  for (int64_t i = 0; i < w2->count; ++i) out[i + 1] = (float)*(const unsigned char *)w2->items[i]->desc.codes;
  return COLI_DONE;
}

static coli_status top_k(coli_context *context, coli_stream *stream, const coli_matrix *scores, coli_matrix *selected,
                         coli_error *error) {
  (void)context, (void)stream, (void)scores, (void)selected;
  return refuse(COLI_FAILED, COLI_SITE_NONFINITE, "stub: top_k: NaN in row 3 \xff", error);
}

static coli_slot slots[COLI_SLOT_COUNT];
static coli_backend table;

#define SET(name_) slots[COLI_SLOT_##name_].function = (void (*)(void))name_

#ifdef STUB_CRASH_LOAD
__attribute__((constructor)) static void crash_on_load(void) { abort(); }
#endif
#ifdef STUB_CRASH_END
__attribute__((destructor)) static void crash_at_the_end(void) { abort(); }
#endif
#ifdef STUB_NEEDS
extern int stub_dependency(void);
COLI_EXPORT int stub_use(void) { return stub_dependency(); }
#endif

#ifndef STUB_NO_QUERY
COLI_EXPORT const coli_backend *coli_backend_query(void);
const coli_backend *coli_backend_query(void) {
#ifdef STUB_CRASH_QUERY
  *(volatile int *)8 = 1;
#endif
#ifdef STUB_ILLEGAL_QUERY
  __builtin_trap();
#endif
#ifdef STUB_HANG_QUERY
  for (;;) sleep(1);
#endif
#ifdef STUB_NULL_TABLE
  return 0;
#endif
  if (table.size) return &table;
  int at = 0;
  (void)at;
#define COLI_SERVICE(requirement, name_, ...) \
  slots[at].name = #name_, slots[at].signature = coli_signature(#name_ "(" #__VA_ARGS__ ")"), ++at;
#define COLI_STAGE(requirement, name_, ...) \
  slots[at].name = #name_, slots[at].signature = coli_signature(#name_ "(" #__VA_ARGS__ ")"); \
  slots[at].function = (void (*)(void))decline_##name_, ++at;
#include "coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE
  SET(context_create), SET(context_destroy), SET(device_info), SET(memory_info);
  SET(weight_bind), SET(weight_refill), SET(weight_release);
  /* The rest of the services has no caller in the tests; present is enough. */
  slots[COLI_SLOT_weight_upload].function = (void (*)(void))decline_add;
  slots[COLI_SLOT_buffer_create].function = (void (*)(void))decline_add;
  slots[COLI_SLOT_buffer_release].function = (void (*)(void))decline_add;
  slots[COLI_SLOT_buffer_copy].function = (void (*)(void))decline_add;
#ifndef STUB_NO_STAGE
  SET(add), SET(matmul_f32), SET(rms_norm), SET(moe), SET(top_k);
#endif
  slots[COLI_SLOT_hadamard].function = 0; /* optional and absent */
#ifdef STUB_ABSENT
  slots[COLI_SLOT_embed].function = 0;
  slots[COLI_SLOT_router].function = 0;
  slots[COLI_SLOT_weight_bind].function = 0;
#endif
#ifdef STUB_SWAPPED
  slots[COLI_SLOT_rope].signature = coli_signature(
      "rope(const coli_matrix *sine, const coli_matrix *cosine, int64_t heads, int64_t inverse, coli_matrix *x)");
#endif
#ifdef STUB_RENAMED
  slots[COLI_SLOT_moe].name = "mixture";
#endif
  table.platform = COLI_PLATFORM_TAG;
  table.abi_major = COLI_ABI_MAJOR;
  table.abi_minor = COLI_ABI_MINOR;
  table.slot_count = COLI_SLOT_COUNT;
  table.slots = slots;
  table.name = STUB_NAME;
  table.error_size = sizeof(coli_error);
  table.matrix_size = sizeof(coli_matrix);
  table.weight_desc_size = sizeof(coli_weight_desc);
  table.weight_list_size = sizeof(coli_weight_list);
  table.context_config_size = sizeof(coli_context_config);
  table.device_info_size = sizeof(coli_device_info);
  table.memory_info_size = sizeof(coli_memory_info);
#ifdef STUB_MAJOR
  table.abi_major = STUB_MAJOR;
#endif
#ifdef STUB_OLDER_MINOR
  /* A library of an older minor ends its list earlier. */
  table.slot_count = COLI_SLOT_add;
#endif
#ifdef STUB_PLATFORM
  table.platform = STUB_PLATFORM;
#endif
#ifdef STUB_MATRIX_SIZE
  table.matrix_size = STUB_MATRIX_SIZE;
#endif
#ifdef STUB_SHORT_TABLE
  table.size = 12;
#else
  table.size = sizeof table;
#endif
  return &table;
}
#endif
