/* device.cuh: what kernels use of CUDA beyond C++, so that the same kernels compile for the CPU: tests put a cuda_runtime.h of
 * their own on the include path. Launches and dynamic shared memory are macros; the one piece of assembly has a twin beside it. */
#ifndef COLI_CUDA_DEVICE_CUH
#define COLI_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "../cpu/coli_math.h"

#if defined(__CUDACC__)
#define COLI_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define COLI_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#else
#define COLI_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  coli_shim::launch([=]() { kernel(__VA_ARGS__); }, (grid), (block), (shared_bytes), (stream))
#define COLI_DYNAMIC_SHARED(name) unsigned char *const name = coli_shim::dynamic_shared()
#endif

namespace coli_cuda {

constexpr uint32_t kAllLanes = 0xffffffffu;

/* The two halves of a word as f32, exactly, subnormal ones too; the low half is the first. */
static __device__ __forceinline__ float2 floats_of_halves(uint32_t word) {
  float2 pair;
#if defined(__CUDA_ARCH__)
  asm("{\n .reg .f16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
      : "=f"(pair.x), "=f"(pair.y)
      : "r"(word));
#else
  float *const to[2] = {&pair.x, &pair.y};
  for (int at = 0; at < 2; ++at, word >>= 16) {
    const uint32_t exponent = (word >> 10) & 31u, mantissa = word & 1023u, sign = (word & 0x8000u) << 16;
    if (exponent == 0)
      *to[at] = coli_float(coli_bits(static_cast<float>(mantissa) * 5.9604644775390625e-8f) | sign); /* * 2^-24 */
    else
      *to[at] = coli_float(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | (mantissa << 13));
  }
#endif
  return pair;
}

}  // namespace coli_cuda

#endif
