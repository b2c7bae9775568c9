/* simd_portable.h: 4 lanes in plain C++, for any machine; fma is our own where the machine has none. */
#ifndef COLI_CPU_SIMD_PORTABLE_H
#define COLI_CPU_SIMD_PORTABLE_H

#include <stdint.h>

#include "coli_math.h"

namespace coli_cpu {

constexpr int kWidth = 4;
constexpr int kTileRows = 2;
constexpr int kTileTokens = 2;
constexpr int kFusedRows = 2;

struct Floats {
  float at[4];
};
struct Words {
  uint32_t at[4];
};

#define COLI_EACH for (int lane = 0; lane < 4; ++lane)

static inline Floats broadcast(float value) { return {{value, value, value, value}}; }
static inline Floats zero() { return broadcast(0.0f); }
static inline Floats load(const float *from) { return {{from[0], from[1], from[2], from[3]}}; }
static inline void store(float *to, Floats value) { COLI_EACH to[lane] = value.at[lane]; }
static inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  COLI_EACH c.at[lane] = coli_fma(a.at[lane], b.at[lane], c.at[lane]);
  return c;
#else
  /* The product is exact in double. Rounding the sum to 53 bits and then to 24 differs from rounding once only where the
   * first result lies exactly between two floats, or where the float is subnormal and keeps fewer bits. Both are rare: about
   * one sum in 2^29, zeros apart. */
  double sum[4];
  uint64_t bits[4], doubt = 0;
  COLI_EACH sum[lane] = (double)a.at[lane] * (double)b.at[lane] + (double)c.at[lane];
  __builtin_memcpy(bits, sum, sizeof(bits));
  COLI_EACH doubt |= (uint64_t)((bits[lane] & 0x1fffffffu) == 0x10000000u) |
                     (uint64_t)((bits[lane] << 1) < (UINT64_C(0x381) << 53));
  Floats made;
  if (__builtin_expect(doubt != 0, 0)) {
    COLI_EACH made.at[lane] = coli_fma_soft(a.at[lane], b.at[lane], c.at[lane]);
  } else {
    COLI_EACH made.at[lane] = (float)sum[lane];
  }
  return made;
#endif
}
static inline Floats add(Floats a, Floats b) {
  COLI_EACH a.at[lane] = a.at[lane] + b.at[lane];
  return a;
}
static inline Floats smaller(Floats a, Floats b) {
  COLI_EACH a.at[lane] = a.at[lane] < b.at[lane] ? a.at[lane] : b.at[lane];
  return a;
}
static inline Floats as_floats(Words value) {
  Floats made;
  COLI_EACH made.at[lane] = coli_float(value.at[lane]);
  return made;
}
static inline Words and_words(Words value, uint32_t mask) {
  COLI_EACH value.at[lane] &= mask;
  return value;
}
static inline Words or_words(Words value, uint32_t mask) {
  COLI_EACH value.at[lane] |= mask;
  return value;
}
template <int Count>
static inline Words shift_left(Words value) {
  COLI_EACH value.at[lane] <<= Count;
  return value;
}
template <int Count>
static inline Words shift_right(Words value) {
  COLI_EACH value.at[lane] >>= Count;
  return value;
}
static inline Floats with_sign(Floats magnitude, Words sign) {
  COLI_EACH magnitude.at[lane] = coli_float(coli_bits(magnitude.at[lane]) | (sign.at[lane] & 0x80000000u));
  return magnitude;
}

static inline void load_pieces(const uint8_t *from, Words out[4]) {
  for (int word = 0; word < 4; ++word)
    COLI_EACH __builtin_memcpy(&out[word].at[lane], from + 16 * lane + 4 * word, 4);
}

static inline Floats load_factors(const uint8_t *scales, uint32_t bias) {
  Floats made;
  COLI_EACH made.at[lane] = coli_float((scales[lane] + bias) << 23);
  return made;
}

static inline Floats block_factors(float first, float second) {
  (void)second;
  return broadcast(first);
}

static inline Floats fp4_values(Words codes) {
  static const float table[16] = {0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f, 3.0f, -0.0f, -0.25f, -0.5f, -0.75f, -1.0f, -1.5f, -2.0f, -3.0f};
  Floats made;
  COLI_EACH made.at[lane] = table[codes.at[lane] & 15u];
  return made;
}

static inline float reduce_register(Floats v) { return (v.at[0] + v.at[2]) + (v.at[1] + v.at[3]); }

#undef COLI_EACH

}  // namespace coli_cpu

#endif
