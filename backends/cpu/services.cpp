/* services.cpp: contexts, weights and buffers. Compiled for the baseline machine, so that a wrong machine gets an answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include "../common/weight_desc.h"
#include "check.h"
#include "slots.h"

namespace coli_cpu {

namespace {

/* Address space from the system and back to it, so that a closed context leaves nothing in the heap. */
void *map_bytes(uint64_t bytes) {
#if defined(_WIN32)
  return VirtualAlloc(nullptr, bytes, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE);
#else
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
#endif
}

void unmap_bytes(void *memory, uint64_t bytes) {
#if defined(_WIN32)
  (void)bytes;
  if (memory) VirtualFree(memory, 0, MEM_RELEASE);
#else
  if (memory) munmap(memory, bytes);
#endif
}

bool machine_has_level() {
#if defined(COLI_CPU_X86_64_V4)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
#elif defined(COLI_CPU_X86_64_V3)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
  return true;
#endif
}

struct NanSearch {
  const uint8_t *codes;
  int64_t count;
  int found;
};

void search_nan(void *argument, int64_t piece, int) {
  NanSearch *search = static_cast<NanSearch *>(argument);
  const int64_t begin = piece * (INT64_C(1) << 20);
  const int64_t end = begin + (INT64_C(1) << 20) < search->count ? begin + (INT64_C(1) << 20) : search->count;
  if (coli_common::has_nan_code(search->codes + begin, end - begin))
    __atomic_store_n(&search->found, 1, __ATOMIC_RELAXED);
}

bool has_fp8_nan(coli_context *context, const uint8_t *codes, int64_t count) {
  NanSearch search = {codes, count, 0};
  const int64_t pieces = (count + (INT64_C(1) << 20) - 1) >> 20;
  for (int64_t first = 0; first < pieces; first += kMaxItems) {
    const int64_t items = pieces - first < kMaxItems ? pieces - first : kMaxItems;
    NanSearch part = {codes + first * (INT64_C(1) << 20), count - first * (INT64_C(1) << 20), 0};
    if (context->threads == 1 || items == 1) {
      for (int64_t item = 0; item < items; ++item) search_nan(&part, item, 0);
    } else {
      pool_run(context->pool, search_nan, &part, items);
    }
    search.found |= part.found;
  }
  return search.found != 0;
}

/* Fill `made` from `desc` or say what is wrong with it. */
coli_status describe(coli_context *context, const coli_weight_desc *desc, coli_weight *made, coli_error *error) {
  if (!context) return fail(error, COLI_SITE_ARGUMENT, "context is null");
  coli_common::WeightFacts facts;
  COLI_TRY(coli_common::check_weight_desc(error, desc, &facts));
  made->format = facts.format;
  made->rows = facts.rows;
  made->cols = facts.cols;
  made->codes = facts.codes;
  made->scales = facts.scales;
  made->has_nan =
      facts.format == COLI_FORMAT_FP8_BLOCK && has_fp8_nan(context, facts.codes, facts.rows * facts.row_bytes);
  return COLI_DONE;
}

}  // namespace

coli_status context_create(const coli_context_config *config, coli_context **context, coli_error *error) {
  if (!config || !context) return fail(error, COLI_SITE_ARGUMENT, "config or context is null");
  if (config->size < sizeof(coli_context_config))
    return fail(error, COLI_SITE_ARGUMENT, "config.size is %u, expected %u", config->size,
                static_cast<unsigned>(sizeof(coli_context_config)));
  COLI_TRY(check_range(error, "threads", config->threads, 1, 4096));
  COLI_TRY(check_range(error, "device", config->device, 0, 0));
  if (!machine_has_level())
    return decline(error, COLI_REASON_DEVICE, "this processor lacks the instructions of %s", COLI_CPU_NAME);
  const uint64_t thread_bytes = kThreadScratchBytes * static_cast<uint64_t>(config->threads);
  if (config->workspace_bytes < COLI_WORKSPACE_BYTES(config->threads) || config->workspace_bytes > (UINT64_C(1) << 46))
    return fail(error, COLI_SITE_ARGUMENT, "workspace_bytes is %llu, expected at least %llu for %d threads",
                static_cast<unsigned long long>(config->workspace_bytes),
                static_cast<unsigned long long>(COLI_WORKSPACE_BYTES(config->threads)), config->threads);
  coli_context *made = static_cast<coli_context *>(calloc(1, sizeof(coli_context)));
  if (!made) return fail(error, COLI_SITE_MEMORY, "no memory for a context");
  made->threads = config->threads;
  made->workspace_bytes = config->workspace_bytes / 4096 * 4096;
  made->shared_bytes = made->workspace_bytes - thread_bytes;
  made->workspace = static_cast<uint8_t *>(map_bytes(made->workspace_bytes));
  made->pool = made->workspace ? pool_create(config->threads) : nullptr;
  if (!made->pool) {
    unmap_bytes(made->workspace, made->workspace_bytes);
    free(made);
    return fail(error, COLI_SITE_MEMORY, "cannot have %llu bytes of workspace and %d threads",
                static_cast<unsigned long long>(config->workspace_bytes), config->threads);
  }
  // Touched now: what a plan counts is there from the start, and a machine that is short of memory shows it here and not
  // in the middle of an answer. Not more than is always enough: a caller may map a larger one and never use it.
  const uint64_t always = COLI_WORKSPACE_BYTES(config->threads) - thread_bytes;
  memset(made->workspace, 0, made->shared_bytes < always ? made->shared_bytes : always);
  memset(made->workspace + made->shared_bytes, 0, thread_bytes);
  *context = made;
  return COLI_DONE;
}

coli_status context_destroy(coli_context *context, coli_error *error) {
  if (!context) return fail(error, COLI_SITE_ARGUMENT, "context is null");
  if (context->weights != 0)
    return fail(error, COLI_SITE_ARGUMENT, "%llu weights are still bound",
                static_cast<unsigned long long>(context->weights));
  pool_destroy(context->pool);
  unmap_bytes(context->workspace, context->workspace_bytes);
  free(context);
  return COLI_DONE;
}

coli_status device_info(coli_context *context, coli_device_info *info, coli_error *error) {
  if (!context || !info || info->size < sizeof(coli_device_info))
    return fail(error, COLI_SITE_ARGUMENT, "context or info is null, or info.size too small");
  info->compute_major = 0;
  info->compute_minor = 0;
  info->integrated = 1;
  snprintf(info->name, sizeof info->name, "%s, %d threads", COLI_CPU_NAME, context->threads);
  return COLI_DONE;
}

coli_status memory_info(coli_context *context, coli_memory_info *info, coli_error *error) {
  if (!context || !info || info->size < sizeof(coli_memory_info))
    return fail(error, COLI_SITE_ARGUMENT, "context or info is null, or info.size too small");
  info->reserved = 0;
  info->total_bytes = 0;
  info->free_bytes = 0;
  info->context_bytes = context->workspace_bytes;
  return COLI_DONE;
}

coli_status weight_bind(coli_context *context, const coli_weight_desc *desc, coli_weight **weight, coli_error *error) {
  if (!weight) return fail(error, COLI_SITE_ARGUMENT, "weight is null");
  coli_weight made = {};
  COLI_TRY(describe(context, desc, &made, error));
  coli_weight *handle = static_cast<coli_weight *>(malloc(sizeof(coli_weight)));
  if (!handle) return fail(error, COLI_SITE_MEMORY, "no memory for a weight handle");
  *handle = made;
  ++context->weights;
  *weight = handle;
  return COLI_DONE;
}

coli_status weight_upload(coli_context *context, coli_stream *, coli_weight *weight, coli_error *error) {
  if (!context || !weight) return fail(error, COLI_SITE_ARGUMENT, "context or weight is null");
  return COLI_DONE;
}

coli_status weight_refill(coli_context *context, coli_stream *, coli_weight *weight, const coli_weight_desc *desc,
                          coli_error *error) {
  if (!weight) return fail(error, COLI_SITE_ARGUMENT, "weight is null");
  coli_weight made = {};
  COLI_TRY(describe(context, desc, &made, error));
  if (made.format != weight->format || made.rows != weight->rows || made.cols != weight->cols)
    return fail(error, COLI_SITE_ARGUMENT, "refill has format %d, %lld x %lld; the weight has format %d, %lld x %lld",
                made.format, static_cast<long long>(made.rows), static_cast<long long>(made.cols), weight->format,
                static_cast<long long>(weight->rows), static_cast<long long>(weight->cols));
  *weight = made;
  return COLI_DONE;
}

coli_status weight_release(coli_context *context, coli_weight *weight, coli_error *error) {
  if (!context || !weight) return fail(error, COLI_SITE_ARGUMENT, "context or weight is null");
  free(weight);
  --context->weights;
  return COLI_DONE;
}

coli_status buffer_create(coli_context *context, uint64_t bytes, void **data, coli_error *error) {
  if (!context || !data) return fail(error, COLI_SITE_ARGUMENT, "context or data is null");
  void *memory = nullptr;
  if (bytes <= SIZE_MAX - 64) {
#if defined(_WIN32)
    memory = _aligned_malloc(static_cast<size_t>(bytes ? bytes : 1), 64);
#else
    if (posix_memalign(&memory, 64, static_cast<size_t>(bytes ? bytes : 1)) != 0) memory = nullptr;
#endif
  }
  if (!memory) return fail(error, COLI_SITE_MEMORY, "cannot have %llu bytes", static_cast<unsigned long long>(bytes));
  *data = memory;
  return COLI_DONE;
}

coli_status buffer_release(coli_context *context, void *data, coli_error *error) {
  if (!context || !data) return fail(error, COLI_SITE_ARGUMENT, "context or data is null");
#if defined(_WIN32)
  _aligned_free(data);
#else
  free(data);
#endif
  return COLI_DONE;
}

coli_status buffer_copy(coli_context *context, coli_stream *, const coli_matrix *source, coli_matrix *target,
                        coli_error *error) {
  if (!context || !source) return fail(error, COLI_SITE_ARGUMENT, "context or source is null");
  COLI_TRY(
      check_matrix(error, "source", source, kAny, kAny, source->type == COLI_TYPE_I32 ? COLI_TYPE_I32 : COLI_TYPE_F32));
  COLI_TRY(check_matrix(error, "target", target, source->rows, source->cols, source->type));
  for (int64_t row = 0; row < source->rows; ++row)
    __builtin_memcpy(row_of(target, row), row_of(source, row), static_cast<size_t>(source->cols) * 4);
  return COLI_DONE;
}

}  // namespace coli_cpu
