/* pool.cpp: a caller and its helpers take items from one counter.
 *
 * The whole state of a run is one 64-bit word: run number, item count, next item. A helper that woke late, or slept through a
 * run, can only take an item by a compare-and-swap on that word, so it takes an item of the run it looked at or none. The caller
 * therefore waits for items, never for helpers: seven threads on two cores cost little more than two. */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__linux__)
#include <unistd.h>
#elif defined(_WIN32)
#include <windows.h>
#endif

namespace coli_cpu {

namespace {

constexpr int kSpins =
    4000; /* about 50 microseconds: longer than the Python between two stages of a large model's layer */

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

constexpr uint64_t pack(uint64_t run, uint64_t items) { return (run << 32) | (items << 16); }
constexpr uint64_t items_of(uint64_t state) { return (state >> 16) & 0xffffu; }
constexpr uint64_t next_of(uint64_t state) { return state & 0xffffu; }

}  // namespace

struct Worker {
  Pool *pool;
  int index;
  pthread_t thread;
};

struct Pool {
  alignas(64) uint64_t state;
  alignas(64) uint64_t done;
  alignas(64) void (*run)(void *, int64_t, int);
  void *argument;
  int spins;
  int helpers;
  Worker *workers;
  int sleepers;
  int stopping;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
};

namespace {

/* Take and run items of the run that is on; false when there was none. */
bool help(Pool *pool, int worker) {
  bool any = false;
  uint64_t state = __atomic_load_n(&pool->state, __ATOMIC_SEQ_CST);
  while (next_of(state) < items_of(state)) {
    auto run = __atomic_load_n(&pool->run, __ATOMIC_RELAXED);
    void *argument = __atomic_load_n(&pool->argument, __ATOMIC_RELAXED);
    if (!__atomic_compare_exchange_n(&pool->state, &state, state + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      continue;
    run(argument, static_cast<int64_t>(next_of(state)), worker);
    __atomic_fetch_add(&pool->done, 1, __ATOMIC_RELEASE);
    any = true;
    state = __atomic_load_n(&pool->state, __ATOMIC_SEQ_CST);
  }
  return any;
}

bool has_work(Pool *pool) {
  const uint64_t state = __atomic_load_n(&pool->state, __ATOMIC_SEQ_CST);
  return next_of(state) < items_of(state);
}

void *work(void *argument) {
  Worker *self = static_cast<Worker *>(argument);
  Pool *pool = self->pool;
  const FloatState exact;
  while (!__atomic_load_n(&pool->stopping, __ATOMIC_ACQUIRE)) {
    if (help(pool, self->index)) continue;
    bool found = false;
    for (int spin = 0; spin < pool->spins && !found; ++spin) {
      relax();
      found = has_work(pool) || __atomic_load_n(&pool->stopping, __ATOMIC_ACQUIRE);
    }
    if (found) continue;
    pthread_mutex_lock(&pool->mutex);
    __atomic_fetch_add(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
    while (!has_work(pool) && !__atomic_load_n(&pool->stopping, __ATOMIC_ACQUIRE))
      pthread_cond_wait(&pool->wake, &pool->mutex);
    __atomic_fetch_sub(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&pool->mutex);
  }
  return nullptr;
}

int cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#elif defined(_WIN32)
  DWORD_PTR mine = 0, all = 0; /* both 0 for a process in several groups of 64 processors: it has enough of them */
  if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && mine) return __builtin_popcountll(mine);
#endif
  return 1 << 20;
}

}  // namespace

Pool *pool_create(int threads) {
  void *memory = nullptr;
#if defined(_WIN32)
  memory = _aligned_malloc(sizeof(Pool), 64);
#else
  if (posix_memalign(&memory, 64, sizeof(Pool)) != 0) memory = nullptr;
#endif
  if (!memory) return nullptr;
  __builtin_memset(memory, 0, sizeof(Pool));
  Pool *pool = static_cast<Pool *>(memory);
  pthread_mutex_init(&pool->mutex, nullptr);
  pthread_cond_init(&pool->wake, nullptr);
  pool->spins = threads <= cores() ? kSpins : 0;
  pool->workers = static_cast<Worker *>(calloc(static_cast<size_t>(threads), sizeof(Worker)));
  if (!pool->workers) {
    pool_destroy(pool);
    return nullptr;
  }
  for (int index = 1; index < threads; ++index) {
    Worker *worker = &pool->workers[pool->helpers];
    worker->pool = pool;
    worker->index = index;
    if (pthread_create(&worker->thread, nullptr, work, worker) != 0) {
      pool_destroy(pool);
      return nullptr;
    }
    ++pool->helpers;
  }
  return pool;
}

void pool_destroy(Pool *pool) {
  if (!pool) return;
  pthread_mutex_lock(&pool->mutex);
  __atomic_store_n(&pool->stopping, 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
  for (int index = 0; index < pool->helpers; ++index) pthread_join(pool->workers[index].thread, nullptr);
  free(pool->workers);
  pthread_cond_destroy(&pool->wake);
  pthread_mutex_destroy(&pool->mutex);
#if defined(_WIN32)
  _aligned_free(pool);
#else
  free(pool);
#endif
}

void pool_run(Pool *pool, void (*run)(void *, int64_t, int), void *argument, int64_t items) {
  if (items <= 0) return;
  const uint64_t before = __atomic_load_n(&pool->state, __ATOMIC_RELAXED);
  __atomic_store_n(&pool->run, run, __ATOMIC_RELAXED);
  __atomic_store_n(&pool->argument, argument, __ATOMIC_RELAXED);
  __atomic_store_n(&pool->done, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&pool->state, pack((before >> 32) + 1, static_cast<uint64_t>(items)), __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool->sleepers, __ATOMIC_SEQ_CST) > 0) {
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
  }
  help(pool, 0);
  for (int spin = 0; __atomic_load_n(&pool->done, __ATOMIC_ACQUIRE) != static_cast<uint64_t>(items); ++spin) {
    if (spin < kSpins)
      relax();
    else
      sched_yield();
  }
}

#if defined(__x86_64__)
FloatState::FloatState() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80u); }
FloatState::~FloatState() { _mm_setcsr(static_cast<uint32_t>(saved_)); }
#elif defined(__aarch64__)
FloatState::FloatState() {
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(saved_));
  __asm__ __volatile__("msr fpcr, %0" : : "r"(UINT64_C(0)));
}
FloatState::~FloatState() { __asm__ __volatile__("msr fpcr, %0" : : "r"(saved_)); }
#else
FloatState::FloatState() : saved_(0) {}
FloatState::~FloatState() {}
#endif

}  // namespace coli_cpu
