/* e4m3.cuh: how the fast mode rounds activations (coli_slots.inc), with integers and with float operations that round once: the same codes on
 * every device, and for devices without an instruction for it. */
#ifndef COLI_CUDA_E4M3_CUH
#define COLI_CUDA_E4M3_CUH

#include "device.cuh"

namespace coli_cuda {

/* Nearest E4M3 code of 0 <= value <= 448, ties to even. */
static __device__ __forceinline__ uint32_t e4m3_of(float value) {
  const uint32_t bits = coli_bits(value);
  if (bits < 0x3c800000u) /* below 2^-6: steps of 2^-9, which are those of floats from 2^14 on */
    return coli_bits(__fadd_rn(value, 16384.0f)) - coli_bits(16384.0f);
  return ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3); /* exponent bias 127 -> 7 */
}

/* UE8M0 code of 2^ceil(log2(max(amax, 1e-4) * (1/448))). */
static __device__ __forceinline__ uint32_t scale_of(float amax) {
  const uint32_t bits = coli_bits(__fmul_rn(amax < 1e-4f ? 1e-4f : amax, 1.0f / 448.0f));
  return (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
}

}  // namespace coli_cuda

#endif
