/* context.h: what a CPU context holds: threads, scratch, weights. */
#ifndef COLI_CPU_CONTEXT_H
#define COLI_CPU_CONTEXT_H

#include "../abi/coli_backend.h"
#include "pool.h"

struct coli_weight {
  int32_t format;
  bool has_nan; /* an FP8 code 0x7F or 0xFF: such a weight takes the scalar path, whose decoder knows NaN */
  int64_t rows;
  int64_t cols;
  const uint8_t *codes;
  const uint8_t *scales;
};

/* One stretch of scratch, mapped when the context is made: 8 MiB or more that a stage may use as a whole, then 2 MiB a thread. */
struct coli_context {
  coli_cpu::Pool *pool;
  int threads;
  uint8_t *workspace;
  uint64_t workspace_bytes;
  uint64_t shared_bytes;
  uint64_t weights;
};

namespace coli_cpu {

constexpr uint64_t kThreadScratchBytes = UINT64_C(2) << 20;

static inline float *shared_scratch(coli_context *context) { return reinterpret_cast<float *>(context->workspace); }
static inline int64_t shared_scratch_floats(const coli_context *context) {
  return static_cast<int64_t>(context->shared_bytes / 4);
}
static inline float *thread_scratch(coli_context *context, int worker) {
  return reinterpret_cast<float *>(context->workspace + context->shared_bytes +
                                   kThreadScratchBytes * static_cast<uint64_t>(worker));
}
constexpr int64_t kThreadScratchFloats = static_cast<int64_t>(kThreadScratchBytes / 4);

/* Run body(begin, end, worker) over [0, count) in ranges of at least `grain`. Which thread takes which range is chance. */
template <class Body>
void parallel(coli_context *context, int64_t count, int64_t grain, const Body &body) {
  if (count <= 0) return;
  struct Call {
    const Body *body;
    int64_t count, pieces;
    static void run(void *self, int64_t piece, int worker) {
      const Call *call = static_cast<const Call *>(self);
      const int64_t base = call->count / call->pieces, extra = call->count % call->pieces;
      const int64_t begin = piece * base + (piece < extra ? piece : extra);
      (*call->body)(begin, begin + base + (piece < extra ? 1 : 0), worker);
    }
  };
  const int64_t most = static_cast<int64_t>(context->threads) * 8;
  int64_t pieces = (count + grain - 1) / grain;
  if (pieces > most) pieces = most;
  if (pieces > kMaxItems) pieces = kMaxItems;
  if (context->threads == 1 || pieces == 1) {
    body(0, count, 0);
    return;
  }
  Call call = {&body, count, pieces};
  pool_run(context->pool, &Call::run, &call, pieces);
}

}  // namespace coli_cpu

#endif
