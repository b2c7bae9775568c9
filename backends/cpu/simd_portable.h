/* simd_portable.h: 4 lanes in plain C++, for any machine; fma is our own where the machine has none. */
#ifndef COLI_CPU_SIMD_PORTABLE_H
#define COLI_CPU_SIMD_PORTABLE_H

#include <stdint.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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
#if defined(__SSE2__) && !defined(__FMA__)
/* coli_fma_soft for two lanes, without a branch: products of e4m3 and e2m1 lie between two floats too often to guess. */
static inline __m128 fma_pair(__m128 a, __m128 b, __m128 c) {
  const __m128d product = _mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), addend = _mm_cvtps_pd(c);
  const __m128d sum = _mm_add_pd(product, addend);
  const __m128d back = _mm_sub_pd(sum, product);
  const __m128d error = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, back)), _mm_sub_pd(addend, back));
  const __m128d none = _mm_setzero_pd();
  const __m128i lost = _mm_castpd_si128(_mm_or_pd(_mm_cmplt_pd(error, none), _mm_cmpgt_pd(error, none)));
  const __m128i apart = _mm_srli_epi64(_mm_castpd_si128(_mm_xor_pd(sum, error)), 63);
  /* Towards zero where the rest has the other sign, then odd: rounding to odd. */
  __m128i bits = _mm_sub_epi64(_mm_castpd_si128(sum), _mm_and_si128(apart, lost));
  bits = _mm_or_si128(bits, _mm_srli_epi64(lost, 63));
  return _mm_cvtpd_ps(_mm_castsi128_pd(bits));
}
static inline Floats fma(Floats a, Floats b, Floats c) {
  const __m128 x = _mm_loadu_ps(a.at), y = _mm_loadu_ps(b.at), z = _mm_loadu_ps(c.at);
  const __m128 low = fma_pair(x, y, z);
  const __m128 high = fma_pair(_mm_movehl_ps(x, x), _mm_movehl_ps(y, y), _mm_movehl_ps(z, z));
  Floats made;
  _mm_storeu_ps(made.at, _mm_movelh_ps(low, high));
  return made;
}
#else
static inline Floats fma(Floats a, Floats b, Floats c) {
  COLI_EACH c.at[lane] = coli_fma(a.at[lane], b.at[lane], c.at[lane]);
  return c;
}
#endif
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
  for (int word = 0; word < 4; ++word) COLI_EACH __builtin_memcpy(&out[word].at[lane], from + 16 * lane + 4 * word, 4);
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
  static const float table[16] = {0.0f,  0.25f,  0.5f,  0.75f,  1.0f,  1.5f,  2.0f,  3.0f,
                                  -0.0f, -0.25f, -0.5f, -0.75f, -1.0f, -1.5f, -2.0f, -3.0f};
  Floats made;
  COLI_EACH made.at[lane] = table[codes.at[lane] & 15u];
  return made;
}

static inline float reduce_register(Floats v) { return (v.at[0] + v.at[2]) + (v.at[1] + v.at[3]); }

#undef COLI_EACH

}  // namespace coli_cpu

#endif
