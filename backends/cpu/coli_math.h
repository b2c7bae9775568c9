/* coli_math.h: the elementary functions of docs/numerics.md, as code that gives the same bits on every host and device.
 *
 * Only operations that IEEE 754 rounds correctly (add, multiply, fma, divide), integer operations on the bits, and
 * compare-and-select. No libm, no conversion from float to integer, no branch: a compiler may vectorize any loop over
 * these functions without changing a bit. Compile with contraction off. */
#ifndef COLI_MATH_H
#define COLI_MATH_H

#include <stdint.h>

#if defined(__CUDACC__)
#define COLI_FN static __host__ __device__ __forceinline__
#elif defined(_MSC_VER)
#define COLI_FN static __forceinline
#else
#define COLI_FN static inline __attribute__((always_inline))
#endif

COLI_FN uint32_t coli_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

COLI_FN float coli_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

/* a * b + c rounded once, without a fused instruction: the product is exact in double (48 bits); the sum is brought to 53 bits
 * by rounding to odd, which makes the last rounding to 24 bits (or fewer, where the result is subnormal) the only one. C
 * libraries disagree here: one rounds twice, which 97, 172961 * 2^-24, 2^-60 shows. */
COLI_FN float coli_fma_soft(float a, float b, float c) {
  const double product = (double)a * (double)b;
  const double addend = (double)c;
  const double sum = product + addend;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back); /* exact (TwoSum); NaN when the sum is not finite */
  uint64_t bits, error_bits;
  __builtin_memcpy(&bits, &sum, 8);
  __builtin_memcpy(&error_bits, &error, 8);
  const uint64_t inexact = (uint64_t)((error > 0.0) | (error < 0.0));
  const uint64_t even = ~bits & inexact & 1u;
  const uint64_t apart = (bits ^ error_bits) >> 63; /* the exact sum is nearer to zero than the rounded one */
  bits = bits + even - ((even & apart) << 1);
  double odd;
  __builtin_memcpy(&odd, &bits, 8);
  return (float)odd;
}

COLI_FN float coli_fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return coli_fma_soft(a, b, c);
#endif
}

/* Correctly rounded everywhere; a builtin, so that no libm is needed. */
COLI_FN float coli_sqrt(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

/* e^x. 0 below -104, infinity above 88.73; results below 2^-126 are rounded once. */
COLI_FN float coli_exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  /* n = round(x / ln 2), found as the low bits of a float whose unit is 1: no conversion instruction, and so no difference. */
  const float shifted = coli_fma(x, 1.44269502f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const uint32_t whole = coli_bits(shifted) - 0x4b400000u;
  const float r_head = coli_fma(n, -0.693359375f, x); /* ln 2 to 9 bits: the product is exact */
  const float r = coli_fma(n, 2.12194440e-4f, r_head);
  const float r_tail = coli_fma(n, 2.12194440e-4f, r_head - r);
  float p = 0.001392691805594798f;
  p = coli_fma(p, r, 0.008363767023287037f);
  p = coli_fma(p, r, 0.0416665501627203f);
  p = coli_fma(p, r, 0.1666657342385974f);
  p = coli_fma(p, r, 0.5f);
  p = coli_fma(p, r * r, r_tail);
  const float head = 1.0f + r; /* what this addition loses is added back below */
  p = head + (((1.0f - head) + r) + p);
  /* 2^n in two factors, so that neither leaves the range of normal numbers; only the second product can round. */
  const uint32_t half = (whole >> 1) | (whole & 0x80000000u);
  return (p * coli_float((half + 127u) << 23)) * coli_float((whole - half + 127u) << 23);
}

/* 1 / (1 + e^-x), computed on the side where exp does not overflow. */
COLI_FN float coli_sigmoid(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float e = coli_exp(-magnitude);
  const float under = 1.0f + e;
  const float lost = (1.0f - under) + e; /* exact: what the addition lost, put back to first order below */
  const float quotient = (x < 0.0f ? e : 1.0f) / under;
  const float inverse = x < 0.0f ? 1.0f - quotient : quotient;
  return coli_fma(-(quotient * lost), inverse, quotient);
}

/* ln(1 + y) for y in [0, 1]. */
COLI_FN float coli_log1p_unit(float y) {
  /* Above 1/2: ln 2 + ln(1 + (y - 1) / 2), where y - 1 is exact. */
  const int upper = y > 0.5f;
  const float f = upper ? (y - 1.0f) * 0.5f : y;
  const float s = f / (2.0f + f);
  const float z = s * s;
  float p = 0.2376734026945869f;
  p = coli_fma(p, z, 0.28531740480157536f);
  p = coli_fma(p, z, 0.40000323346158834f);
  p = coli_fma(p, z, 0.6666666625699221f);
  const float half_square = 0.5f * f * f;
  const float low = coli_fma(s, coli_fma(p, z, half_square), upper ? -1.90465421e-9f : 0.0f);
  const float head = f - (half_square - low);
  return upper ? 0.693147182f + head : head;
}

/* ln(1 + e^x). */
COLI_FN float coli_softplus(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float tail = coli_log1p_unit(coli_exp(-magnitude));
  return x > 0.0f ? x + tail : tail;
}

#endif
