/* simd_avx2.h: 8 lanes, x86-64-v3. */
#ifndef COLI_CPU_SIMD_AVX2_H
#define COLI_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>

namespace coli_cpu {

constexpr int kWidth = 8;
constexpr int kTileRows = 4;
constexpr int kTileTokens = 3;
constexpr int kFusedRows = 4;

typedef __m256 Floats;
typedef __m256i Words;

static inline Floats zero() { return _mm256_setzero_ps(); }
static inline Floats broadcast(float value) { return _mm256_set1_ps(value); }
static inline Floats load(const float *from) { return _mm256_loadu_ps(from); }
static inline void store(float *to, Floats value) { _mm256_storeu_ps(to, value); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
static inline Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
static inline Floats as_floats(Words value) { return _mm256_castsi256_ps(value); }
static inline Words and_words(Words value, uint32_t mask) {
  return _mm256_and_si256(value, _mm256_set1_epi32(static_cast<int>(mask)));
}
static inline Words or_words(Words value, uint32_t mask) {
  return _mm256_or_si256(value, _mm256_set1_epi32(static_cast<int>(mask)));
}
template <int Count>
static inline Words shift_left(Words value) {
  return _mm256_slli_epi32(value, Count);
}
template <int Count>
static inline Words shift_right(Words value) {
  return _mm256_srli_epi32(value, Count);
}
static inline Floats with_sign(Floats magnitude, Words sign) {
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(and_words(sign, 0x80000000u)));
}

static inline void load_pieces(const uint8_t *from, Words out[4]) {
  const __m256i *at = reinterpret_cast<const __m256i *>(from);
  const __m256i a = _mm256_loadu_si256(at), b = _mm256_loadu_si256(at + 1), c = _mm256_loadu_si256(at + 2),
                d = _mm256_loadu_si256(at + 3);
  const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
  out[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
  out[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
  out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

static inline Floats load_factors(const uint8_t *scales, uint32_t bias) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m128i bytes = _mm_shuffle_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(scales)), order);
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(static_cast<int>(bias))), 23));
}

static inline Floats block_factors(float first, float second) {
  (void)second;
  return broadcast(first);
}

/* A table of eight magnitudes, of whose index the instruction reads three bits; the sign is the fourth. */
static inline Floats fp4_values(Words codes) {
  const __m256 table = _mm256_setr_ps(0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f, 3.0f);
  return with_sign(_mm256_permutevar8x32_ps(table, codes), _mm256_slli_epi32(codes, 28));
}

static inline float reduce_register(Floats v) {
  v = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
  v = _mm256_add_ps(v, _mm256_permute_ps(v, 0xb1));
  return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}

}  // namespace coli_cpu

#endif
