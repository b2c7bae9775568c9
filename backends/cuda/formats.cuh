/* formats.cuh: how 16 bytes of each weight format become f32 values, in the order of their columns (docs/numerics.md).
 *
 * A format has kPiece, the columns of 16 bytes; kWordCols, those of one word; decode(word, values); and, where it is scaled,
 * factor(code) and the pieces that share a scale. */
#ifndef COLI_CUDA_FORMATS_CUH
#define COLI_CUDA_FORMATS_CUH

#include "device.cuh"

namespace coli_cuda {

struct Fp4 {
  static constexpr int kPiece = 32, kWordCols = 8, kScalePieces = 1, kScaleRows = 1;
  static constexpr bool kScaled = true;

  /* e2m1 / 2 has zeros below its upper 16 bits, so eight byte pairs hold every magnitude: four codes at a time pick the upper and the
   * lower byte from a table of eight (a byte permute), get their signs, and are brought together. */
  static __device__ __forceinline__ void decode(uint32_t word, float (&values)[8]) {
    const uint32_t magnitude = word & 0x77777777u,
                   moved = word << 4; /* bit 7 of a byte: sign of its even code in `moved` */
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pick = half ? magnitude >> 16 : magnitude;
      const uint32_t between = half ? 0x7362u : 0x5140u; /* bytes of two words by turns */
      const uint32_t signs = __byte_perm(moved, word, between) & 0x80808080u;
      const uint32_t upper = __byte_perm(0x3f3f3e00u, 0x40403f3fu, pick & 0x7777u) | signs;
      const uint32_t lower = __byte_perm(0x40008000u, 0x4000c080u, pick & 0x7777u);
      const uint32_t first = __byte_perm(lower, upper, 0x5140u), second = __byte_perm(lower, upper, 0x7362u);
      values[4 * half + 0] = coli_float(first << 16);
      values[4 * half + 1] = coli_float(first & 0xffff0000u);
      values[4 * half + 2] = coli_float(second << 16);
      values[4 * half + 3] = coli_float(second & 0xffff0000u);
    }
  }
  static __device__ __forceinline__ float factor(uint32_t code) { return coli_float((code + 1u) << 23); }
};

struct Fp8 {
  static constexpr int kPiece = 16, kWordCols = 4, kScalePieces = 8, kScaleRows = 128;
  static constexpr bool kScaled = true;

  /* Seven bits of E4M3 under the sign of a half-precision number are e4m3 / 256, subnormals included. */
  static __device__ __forceinline__ void decode(uint32_t word, float (&values)[4]) {
    const uint32_t even = word << 8;
    const float2 of_even = floats_of_halves((even & 0x80008000u) | ((even >> 1) & 0x3f803f80u));
    const float2 of_odd = floats_of_halves((word & 0x80008000u) | ((word >> 1) & 0x3f803f80u));
    values[0] = of_even.x;
    values[1] = of_odd.x;
    values[2] = of_even.y;
    values[3] = of_odd.y;
  }
  static __device__ __forceinline__ float factor(uint32_t code) { return coli_float((code + 8u) << 23); }
};

/* For a weight that holds a NaN code: as a half it would be 1.875. */
struct Fp8WithNan : Fp8 {
  static __device__ __forceinline__ void decode(uint32_t word, float (&values)[4]) {
    Fp8::decode(word, values);
#pragma unroll
    for (int at = 0; at < 4; ++at)
      if (((word >> (8 * at)) & 0x7fu) == 0x7fu) values[at] = coli_float(0x7fc00000u);
  }
};

struct Bf16 {
  static constexpr int kPiece = 8, kWordCols = 2, kScalePieces = 1, kScaleRows = 1;
  static constexpr bool kScaled = false;

  static __device__ __forceinline__ void decode(uint32_t word, float (&values)[2]) {
    values[0] = coli_float(word << 16);
    values[1] = coli_float(word & 0xffff0000u);
  }
  static __device__ __forceinline__ float factor(uint32_t) { return 1.0f; }
};

}  // namespace coli_cuda

#endif
