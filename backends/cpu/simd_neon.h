/* simd_neon.h: 4 lanes, aarch64. */
#ifndef COLI_CPU_SIMD_NEON_H
#define COLI_CPU_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>

namespace coli_cpu {

constexpr int kWidth = 4;
constexpr int kTileRows = 4;
constexpr int kTileTokens = 6;
constexpr int kFusedRows = 4;

typedef float32x4_t Floats;
typedef uint32x4_t Words;

static inline Floats zero() { return vdupq_n_f32(0.0f); }
static inline Floats broadcast(float value) { return vdupq_n_f32(value); }
static inline Floats load(const float *from) { return vld1q_f32(from); }
static inline void store(float *to, Floats value) { vst1q_f32(to, value); }
static inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
static inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
static inline Floats smaller(Floats a, Floats b) { return vminq_f32(a, b); }
static inline Floats as_floats(Words value) { return vreinterpretq_f32_u32(value); }
static inline Words and_words(Words value, uint32_t mask) { return vandq_u32(value, vdupq_n_u32(mask)); }
static inline Words or_words(Words value, uint32_t mask) { return vorrq_u32(value, vdupq_n_u32(mask)); }
template <int Count>
static inline Words shift_left(Words value) {
  return vshlq_u32(value, vdupq_n_s32(Count));
}
template <int Count>
static inline Words shift_right(Words value) {
  return vshlq_u32(value, vdupq_n_s32(-Count));
}
static inline Floats with_sign(Floats magnitude, Words sign) {
  return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(magnitude), and_words(sign, 0x80000000u)));
}

/* LD4 is the transpose. Little endian only, as the platform tag says. */
static inline void load_pieces(const uint8_t *from, Words out[4]) {
  uint8x16_t rows[4] = {vld1q_u8(from), vld1q_u8(from + 16), vld1q_u8(from + 32), vld1q_u8(from + 48)};
  const uint32x4_t a = vreinterpretq_u32_u8(rows[0]), b = vreinterpretq_u32_u8(rows[1]);
  const uint32x4_t c = vreinterpretq_u32_u8(rows[2]), d = vreinterpretq_u32_u8(rows[3]);
  const uint64x2_t ab_even = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), ab_odd = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
  const uint64x2_t cd_even = vreinterpretq_u64_u32(vtrn1q_u32(c, d)), cd_odd = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
  out[0] = vreinterpretq_u32_u64(vtrn1q_u64(ab_even, cd_even));
  out[1] = vreinterpretq_u32_u64(vtrn1q_u64(ab_odd, cd_odd));
  out[2] = vreinterpretq_u32_u64(vtrn2q_u64(ab_even, cd_even));
  out[3] = vreinterpretq_u32_u64(vtrn2q_u64(ab_odd, cd_odd));
}

static inline Floats load_factors(const uint8_t *scales, uint32_t bias) {
  const uint32_t bytes[4] = {scales[0], scales[1], scales[2], scales[3]};
  return vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(vld1q_u32(bytes), vdupq_n_u32(bias)), 23));
}

static inline Floats block_factors(float first, float second) {
  (void)second;
  return broadcast(first);
}

/* The top byte of each of the 16 values decides it but for 0.75 and 3: two byte tables give the upper half of the float. */
static inline Floats fp4_values(Words codes) {
  static const uint8_t high[16] = {0x00, 0x3e, 0x3f, 0x3f, 0x3f, 0x3f, 0x40, 0x40,
                                   0x80, 0xbe, 0xbf, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0};
  static const uint8_t low[16] = {0x00, 0x80, 0x00, 0x40, 0x80, 0xc0, 0x00, 0x40,
                                  0x00, 0x80, 0x00, 0x40, 0x80, 0xc0, 0x00, 0x40};
  const uint32x4_t code = and_words(codes, 15u);
  const uint8x16_t index = vreinterpretq_u8_u32(code);
  const uint32x4_t top = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(high), index)),
                   next = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(low), index));
  return vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(top, 24), vshlq_n_u32(and_words(next, 255u), 16)));
}

static inline float reduce_register(Floats v) {
  const float32x2_t half = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}

}  // namespace coli_cpu

#endif
