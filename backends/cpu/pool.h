/* pool.h: the threads of one context. */
#ifndef COLI_CPU_POOL_H
#define COLI_CPU_POOL_H

#include <stdint.h>

namespace coli_cpu {

struct Pool;
constexpr int64_t kMaxItems = 65535;

/* Start `threads - 1` workers; the caller of pool_run is the last one. Null when threads cannot be had. */
Pool *pool_create(int threads);

/* Join all workers. */
void pool_destroy(Pool *pool);

/* Call run(argument, item, worker) once for every item in [0, items), 0 <= worker < threads, and return when all are done. */
void pool_run(Pool *pool, void (*run)(void *, int64_t, int), void *argument, int64_t items);

/* The floating point environment of the contract, for the life of the object: round to nearest even, subnormals kept. */
class FloatState {
 public:
  FloatState();
  ~FloatState();
  FloatState(const FloatState &) = delete;
  FloatState &operator=(const FloatState &) = delete;

 private:
  uint64_t saved_;
};

}  // namespace coli_cpu

#endif
