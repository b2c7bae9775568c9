/* coli_backend.h: the contract between coli and a compute backend.
 *
 * A backend is a shared library that exports one symbol, coli_backend_query. It returns a table of slots; what each slot
 * promises stands beside its name in coli_slots.inc. This header needs a freestanding C11 or C++17 compiler and nothing
 * else. docs/abi.md explains the handshake, docs/numerics.md the order of every reduction.
 *
 * Rules that hold for every slot
 *   Status     DONE: outputs are complete. DECLINED: this backend does not serve the request (reason code in the error).
 *              FAILED: it should have (site code in the error). After DECLINED and FAILED every output is untouched, so
 *              that another backend can take the call.
 *   Errors     The caller owns the coli_error and sets its size. A backend writes code and text only when not DONE.
 *   Borders    No exception, abort, signal or longjmp crosses the border. No global state but the context.
 *   Threads    One context serves one call at a time; calls on different contexts may run at once. A context may use
 *              the number of threads that it was created with. The result never depends on that number.
 *   Aliasing   Inputs may alias inputs. An output aliases nothing unless its slot says "in place".
 *   Lifetime   Descriptors and matrices are read during the call only. Host memory bound to a weight must live until the
 *              weight is refilled or released.
 *   Alignment  Matrix rows are aligned to 4 bytes, codes and scales of weights to 1; 64 makes them faster.
 *   Sizes      Any size that a slot's contract does not exclude is legal, zero rows included.
 *   Ordering   Calls with the same stream take effect in order; a null stream means: complete on return.
 */
#ifndef COLI_BACKEND_H
#define COLI_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#define COLI_ABI_MAJOR 1
#define COLI_ABI_MINOR 1

/* Operating system, pointer size, byte order: a library that was built for something else answers another tag. */
#if defined(_WIN32)
#define COLI_PLATFORM_OS 2u
#elif defined(__APPLE__)
#define COLI_PLATFORM_OS 3u
#else
#define COLI_PLATFORM_OS 1u
#endif
#define COLI_PLATFORM_TAG (0xC0110000u | (COLI_PLATFORM_OS << 8) | (uint32_t)(sizeof(void *) << 4) | 1u)

#if defined(_WIN32)
#define COLI_EXPORT __declspec(dllexport)
#else
#define COLI_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Values ------------------------------------------------------------------------------------------------------ */

typedef int32_t coli_status;
enum { COLI_DONE = 0, COLI_DECLINED = 1, COLI_FAILED = 2 };

/* Reasons of DECLINED. */
enum {
  COLI_REASON_FORMAT = 1, /* weight format not served */
  COLI_REASON_SHAPE = 2,  /* a size that this backend cannot take */
  COLI_REASON_PLACE = 3,  /* memory in a place that it cannot reach */
  COLI_REASON_MEMORY = 4, /* does not fit into what it may use */
  COLI_REASON_DEVICE = 5, /* the device lacks a capability */
  COLI_REASON_LIBRARY = 6 /* a library that it opens at run time is not there, or not the right one */
};

/* Sites of FAILED. */
enum {
  COLI_SITE_ARGUMENT = 101,  /* the arguments break the slot's contract */
  COLI_SITE_NONFINITE = 102, /* NaN or infinity where the contract promises finite values */
  COLI_SITE_SCALE = 103,     /* a scale code outside the format's legal range */
  COLI_SITE_MEMORY = 104,    /* allocation failed */
  COLI_SITE_DEVICE = 105     /* the device reported an error */
};

/* Formats of a weight: codes are row-major [rows, cols], element 2i of a row in the low nibble for FP4. */
enum {
  COLI_FORMAT_F32 = 0,
  COLI_FORMAT_BF16 = 1,
  COLI_FORMAT_FP8_BLOCK = 2, /* E4M3 codes, UE8M0 scale per 128 x 128 block: [ceil(rows/128), ceil(cols/128)] */
  COLI_FORMAT_FP4_GROUP = 3  /* E2M1 codes, UE8M0 scale per 32 columns: [rows, cols/32]; cols is a multiple of 32 */
};

enum { COLI_TYPE_F32 = 0, COLI_TYPE_I32 = 1 };
enum { COLI_PLACE_HOST = 0, COLI_PLACE_DEVICE = 1 };

typedef struct coli_context coli_context; /* threads, workspace, device: opaque */
typedef struct coli_stream coli_stream;   /* ordering token: opaque, may be null */
typedef struct coli_weight coli_weight;   /* a bound weight: opaque */

typedef struct coli_error {
  uint32_t size; /* sizeof(coli_error), set by the caller */
  int32_t code;
  char text[248]; /* UTF-8, ends with NUL */
} coli_error;

/* A dense matrix of activations or state. It describes memory and does not own it. */
typedef struct coli_matrix {
  void *data;
  int64_t rows;
  int64_t cols;
  int64_t stride; /* elements from one row to the next, >= cols */
  int32_t type;
  int32_t place;
} coli_matrix;

typedef struct coli_weight_desc {
  uint32_t size;
  int32_t format;
  int64_t rows; /* outputs */
  int64_t cols; /* inputs */
  const void *codes;
  uint64_t codes_bytes;
  const void *scales; /* null for F32 and BF16 */
  uint64_t scales_bytes;
} coli_weight_desc;

typedef struct coli_weight_list {
  const coli_weight *const *items;
  int64_t count;
} coli_weight_list;

typedef struct coli_context_config {
  uint32_t size;
  int32_t threads; /* >= 1 */
  int32_t device;  /* index among the devices that the backend sees; 0 for CPU backends */
  int32_t reserved;
  uint64_t workspace_bytes; /* upper bound of scratch; see COLI_WORKSPACE_BYTES */
} coli_context_config;

/* Every stage works in tiles that fit the workspace. This much is always enough; more is only speed. */
#define COLI_WORKSPACE_BYTES(threads) ((UINT64_C(8) << 20) + (UINT64_C(2) << 20) * (uint64_t)(threads))

typedef struct coli_device_info {
  uint32_t size;
  int32_t compute_major; /* 0 for CPU backends */
  int32_t compute_minor;
  int32_t integrated; /* 1: shares its memory with the host */
  char name[128];
} coli_device_info;

typedef struct coli_memory_info {
  uint32_t size;
  uint32_t reserved;
  uint64_t total_bytes; /* of the device; 0 for CPU backends: the host knows better */
  uint64_t free_bytes;
  uint64_t context_bytes; /* what this context holds now, workspace included */
} coli_memory_info;

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* coli_slots.inc is a list of
 *   COLI_SERVICE(requirement, name, arguments...)   coli_status name(arguments..., coli_error *error)
 *   COLI_STAGE(requirement, name, arguments...)     coli_status name(coli_context *context, coli_stream *stream,
 *                                                                    arguments..., coli_error *error)
 * with requirement MANDATORY or OPTIONAL. Slots are only ever added at the end (a new minor). */

#define COLI_SERVICE(requirement, name, ...) typedef coli_status (*coli_##name##_fn)(__VA_ARGS__, coli_error * error);
#define COLI_STAGE(requirement, name, ...) \
  typedef coli_status (*coli_##name##_fn)(coli_context * context, coli_stream * stream, __VA_ARGS__, \
                                          coli_error * error);
#include "coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE

enum {
#define COLI_SERVICE(requirement, name, ...) COLI_SLOT_##name,
#define COLI_STAGE(requirement, name, ...) COLI_SLOT_##name,
#include "coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE
  COLI_SLOT_COUNT
};

/* ---- Handshake --------------------------------------------------------------------------------------------------- */

/* The signature of a slot is the 64-bit FNV-1a hash of "name(arguments)", arguments as the preprocessor spells them:
 * one space between tokens that are apart, names included, so that two swapped arguments of one type are noticed. */
typedef struct coli_slot {
  const char *name;
  uint64_t signature;
  void (*function)(void); /* null: absent */
} coli_slot;

typedef struct coli_backend {
  uint32_t size;     /* sizeof(coli_backend); a field beyond it is absent */
  uint32_t platform; /* COLI_PLATFORM_TAG */
  uint16_t abi_major;
  uint16_t abi_minor;
  uint32_t slot_count;    /* entries of slots, in the order of coli_slots.inc */
  const coli_slot *slots; /* static storage */
  const char *name;       /* "cpu-x86-64-v4", "cuda-generic", ... */
  /* Sizes that both sides must agree on. */
  uint32_t error_size, matrix_size, weight_desc_size, weight_list_size, context_config_size, device_info_size,
      memory_info_size;
  uint32_t reserved;
} coli_backend;

/* Never fails; static storage, the same pointer on every call. */
typedef const coli_backend *(*coli_backend_query_fn)(void);

static inline uint64_t coli_signature(const char *text) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *text; ++text) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  return hash;
}

#ifdef __cplusplus
}
#endif
#endif
