/* simd.h: the vectors that the kernels are written on.
 *
 * A vector has kWidth lanes of the 32 of docs/numerics.md; 32 / kWidth vectors ("groups") make a row of partial sums. A lane owns
 * 16 contiguous bytes, so kWidth pieces of 16 bytes are loaded as they lie and transposed as 4 x 4 dwords within 128-bit
 * blocks. That puts the pieces of a group into an order of their own: element 4 * b + k of a vector is piece (kWidth / 4) * k + b.
 * Activations are packed in the same order, and reduce() knows it. */
#ifndef COLI_CPU_SIMD_H
#define COLI_CPU_SIMD_H

#include "coli_math.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "simd_avx2.h"
#elif defined(__aarch64__)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace coli_cpu {

constexpr int kGroups = 32 / kWidth;

/* The piece within a group that element `element` of a vector holds. */
constexpr int piece_of(int element) { return kWidth / 4 * (element % 4) + element / 4; }

/* e4m3 / 256 as f32 bits without its sign, from a code at bits 27..20 of each dword (other bits are cut): the exponent is moved by
 * OR, which reads a subnormal m as 2^-15 * (1 + m/8) where m/8 * 2^-14 is meant. Twice that less 2^-14 is right for subnormals and too
 * large for the rest, so the smaller of both is the value. No table, no subnormal in any operation. */
static inline Floats fp8_magnitude(Words shifted) {
  const Floats raw = as_floats(or_words(and_words(shifted, 0x07f00000u), 0x38000000u));
  return smaller(raw, fma(raw, broadcast(2.0f), broadcast(-6.103515625e-5f)));
}

}  // namespace coli_cpu

#endif
