/* What a kernel sees, played by the CPU: each thread of a block is a fiber, which gives way at barriers and shuffles only.
 *
 * Found: a barrier or a shuffle that not all arrive at, a shuffle whose mask names other lanes than those that come, reads of shared
 * memory that nobody wrote (NaN before each block), results that depend on the order of threads or blocks (three devices).
 * Not found: races within a warp between two such points. */
#ifndef COLI_SHIM_CUDA_RUNTIME_H
#define COLI_SHIM_CUDA_RUNTIME_H

#include <math.h>
#include <string.h>

#include <functional>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

namespace coli_shim {

/* Run the body once for every thread of the grid. Errors show when the stream is waited for. */
void launch(const std::function<void()> &body, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream);

/* The shared memory of the running block. */
unsigned char *dynamic_shared();

/* Give `value`, wait for the lanes of `mask`, and take that of lane `from`. */
uint32_t exchange(uint32_t mask, uint32_t value, int from);

/* End the launch with a text. */
[[noreturn]] void stop(const char *what);

}  // namespace coli_shim

void __syncthreads();

template <class Value>
Value __shfl_down_sync(uint32_t mask, Value value, unsigned distance) {
  static_assert(sizeof(Value) == 4, "words only");
  const int lane = static_cast<int>(threadIdx.x % 32), from = lane + static_cast<int>(distance);
  uint32_t word;
  memcpy(&word, &value, 4);
  word = coli_shim::exchange(mask, word, from < 32 ? from : lane);
  memcpy(&value, &word, 4);
  return value;
}

template <class Value>
Value __shfl_xor_sync(uint32_t mask, Value value, int distance) {
  static_assert(sizeof(Value) == 4, "words only");
  uint32_t word;
  memcpy(&word, &value, 4);
  word = coli_shim::exchange(mask, word, static_cast<int>(threadIdx.x % 32) ^ distance);
  memcpy(&value, &word, 4);
  return value;
}

template <class Value>
Value __ldg(const Value *from) {
  return *from;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }

inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t pick) {
  if (pick & 0xffff8888u) coli_shim::stop("__byte_perm: a selector above 7 repeats signs on the device");
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int at = 0; at < 4; ++at)
    result |= static_cast<uint32_t>(bytes >> (8 * (pick >> (4 * at) & 7u)) & 0xffu) << (8 * at);
  return result;
}

#endif
