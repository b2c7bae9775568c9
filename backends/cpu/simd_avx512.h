/* simd_avx512.h: 16 lanes, x86-64-v4. */
#ifndef COLI_CPU_SIMD_AVX512_H
#define COLI_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

namespace coli_cpu {

constexpr int kWidth = 16;
constexpr int kTileRows = 4; /* batch: rows x tokens of sums in registers */
constexpr int kTileTokens = 6;
constexpr int kFusedRows = 4; /* decode without a buffer: rows that share one load of x */

typedef __m512 Floats;
typedef __m512i Words;

static inline Floats zero() { return _mm512_setzero_ps(); }
static inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
static inline Floats load(const float *from) { return _mm512_loadu_ps(from); }
static inline void store(float *to, Floats value) { _mm512_storeu_ps(to, value); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats as_floats(Words value) { return _mm512_castsi512_ps(value); }
static inline Words and_words(Words value, uint32_t mask) {
  return _mm512_and_si512(value, _mm512_set1_epi32(static_cast<int>(mask)));
}
static inline Words or_words(Words value, uint32_t mask) {
  return _mm512_or_si512(value, _mm512_set1_epi32(static_cast<int>(mask)));
}
template <int Count>
static inline Words shift_left(Words value) {
  return _mm512_slli_epi32(value, Count);
}
template <int Count>
static inline Words shift_right(Words value) {
  return _mm512_srli_epi32(value, Count);
}
static inline Floats with_sign(Floats magnitude, Words sign) { /* the top bit of `sign` */
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude), sign,
                                                       _mm512_set1_epi32(INT32_MIN), 0xf8)); /* a | (b & c) */
}

/* 4 x 4 dwords in each 128-bit block: out[j] holds dword j of kWidth pieces of 16 bytes. */
static inline void load_pieces(const uint8_t *from, Words out[4]) {
  const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64), c = _mm512_loadu_si512(from + 128),
                d = _mm512_loadu_si512(from + 192);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  out[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  out[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

/* kWidth scale bytes in order of piece to (byte + bias) << 23 in order of element. */
static inline Floats load_factors(const uint8_t *scales, uint32_t bias) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i *>(scales)), order);
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(static_cast<int>(bias))), 23));
}

/* One factor for each 8 lanes of a group: two of them where a group has 16. */
static inline Floats block_factors(float first, float second) {
  return _mm512_broadcast_f32x4(_mm_setr_ps(first, first, second, second));
}

/* e2m1 / 2 of the lowest nibble of each dword: a table of 16, of whose index the instruction reads four bits. */
static inline Floats fp4_values(Words codes) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f, 3.0f, -0.0f, -0.25f, -0.5f, -0.75f,
                                      -1.0f, -1.5f, -2.0f, -3.0f);
  return _mm512_permutexvar_ps(codes, table);
}

/* The last four levels of the tree (16 lanes in order of element): pieces apart by 8 and 4 are k apart by 2 and 1. */
static inline float reduce_register(Floats v) {
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  return _mm_cvtss_f32(quarter);
}

}  // namespace coli_cpu

#endif
