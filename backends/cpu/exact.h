/* exact.h: docs/numerics.md word by word. The fast kernels must equal these functions bit for bit; they also serve what the fast
 * kernels leave aside: NaN codes, and rows too long for the scratch. */
#ifndef COLI_CPU_EXACT_H
#define COLI_CPU_EXACT_H

#include "coli_math.h"
#include "context.h"

namespace coli_cpu {

static inline uint16_t load_u16(const uint8_t *bytes) {
  uint16_t value;
  __builtin_memcpy(&value, bytes, 2);
  return value;
}

static inline uint32_t load_u32(const uint8_t *bytes) {
  uint32_t value;
  __builtin_memcpy(&value, bytes, 4);
  return value;
}

/* e2m1(code) / 2 for a code 0..15. */
static inline float fp4_half(uint32_t code) {
  const float values[8] = {0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f, 3.0f};
  return coli_float(coli_bits(values[code & 7u]) | ((code & 8u) << 28));
}

/* e4m3(code) / 256; NaN for the codes 0x7F and 0xFF. */
static inline float fp8_scaled(uint32_t code) {
  const uint32_t sign = (code & 0x80u) << 24, exponent = (code >> 3) & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return coli_float(sign | 0x7fc00000u);
  if (exponent == 0)
    return coli_float(coli_bits(static_cast<float>(mantissa) * 7.62939453125e-6f) | sign); /* mantissa * 2^-17 */
  return coli_float(sign | ((exponent + 112u) << 23) | (mantissa << 20));                  /* 2^(exponent - 7 - 8) */
}

static inline float fp4_factor(uint32_t scale) { return coli_float((scale + 1u) << 23); }
static inline float fp8_factor(uint32_t scale) { return coli_float((scale + 8u) << 23); }

static inline float f32_value(const uint8_t *row, int64_t col) { return coli_float(load_u32(row + 4 * col)); }
static inline float bf16_value(const uint8_t *row, int64_t col) {
  return coli_float(static_cast<uint32_t>(load_u16(row + 2 * col)) << 16);
}

/* The end of every dot product: 32 lanes to one value. */
static inline float tree(float *lanes) {
  for (int step = 16; step >= 1; step /= 2)
    for (int lane = 0; lane < step; ++lane) lanes[lane] = lanes[lane] + lanes[lane + step];
  return lanes[0];
}

/* Columns of one pass over all lanes, where a piece of 16 bytes holds `piece` columns. */
static inline int64_t padded(int64_t cols, int64_t piece) {
  return (cols + 32 * piece - 1) / (32 * piece) * (32 * piece);
}

/* dot for formats without a scale; value(col) is the weight. */
template <class Value>
float dot_plain(int64_t cols, int64_t piece, const float *x, const Value &value) {
  float lanes[32] = {};
  const int64_t all = padded(cols, piece);
  for (int64_t col = 0; col < all; ++col) {
    float *lane = &lanes[col / piece % 32];
    *lane = coli_fma(col < cols ? value(col) : 0.0f, col < cols ? x[col] : 0.0f, *lane);
  }
  return tree(lanes);
}

/* dot for formats with a scale; factor(col) is constant within a piece. */
template <class Value, class Factor>
float dot_scaled(int64_t cols, int64_t piece, const float *x, const Value &value, const Factor &factor) {
  float lanes[32] = {};
  const int64_t all = padded(cols, piece);
  for (int64_t first = 0; first < all; first += piece) {
    float sum = 0.0f;
    for (int64_t col = first; col < first + piece; ++col)
      sum = coli_fma(col < cols ? value(col) : 0.0f, col < cols ? x[col] : 0.0f, sum);
    float *lane = &lanes[first / piece % 32];
    *lane = coli_fma(first < cols ? factor(first) : 1.0f, sum, *lane);
  }
  return tree(lanes);
}

static inline float dot_exact(const float *a, const float *b, int64_t cols) {
  return dot_plain(cols, 4, b, [a](int64_t col) { return a[col]; });
}

/* dot(row of the weight, x). */
static inline float dot_exact(const coli_weight *weight, int64_t row, const float *x) {
  const int64_t cols = weight->cols;
  switch (weight->format) {
    case COLI_FORMAT_F32: {
      const uint8_t *codes = weight->codes + row * cols * 4;
      return dot_plain(cols, 4, x, [codes](int64_t col) { return f32_value(codes, col); });
    }
    case COLI_FORMAT_BF16: {
      const uint8_t *codes = weight->codes + row * cols * 2;
      return dot_plain(cols, 8, x, [codes](int64_t col) { return bf16_value(codes, col); });
    }
    case COLI_FORMAT_FP8_BLOCK: {
      const uint8_t *codes = weight->codes + row * cols;
      const uint8_t *scales = weight->scales + row / 128 * ((cols + 127) / 128);
      return dot_scaled(
          cols, 16, x, [codes](int64_t col) { return fp8_scaled(codes[col]); },
          [scales](int64_t col) { return fp8_factor(scales[col / 128]); });
    }
    default: {
      const uint8_t *codes = weight->codes + row * (cols / 2);
      const uint8_t *scales = weight->scales + row * (cols / 32);
      return dot_scaled(
          cols, 32, x,
          [codes](int64_t col) { return fp4_half(static_cast<uint32_t>(codes[col / 2]) >> (col % 2 * 4) & 15u); },
          [scales](int64_t col) { return fp4_factor(scales[col / 32]); });
    }
  }
}

/* The exact value of one element of a weight. */
static inline float element(const coli_weight *weight, int64_t row, int64_t col) {
  const int64_t cols = weight->cols;
  switch (weight->format) {
    case COLI_FORMAT_F32:
      return f32_value(weight->codes + row * cols * 4, col);
    case COLI_FORMAT_BF16:
      return bf16_value(weight->codes + row * cols * 2, col);
    case COLI_FORMAT_FP8_BLOCK:
      return fp8_scaled(weight->codes[row * cols + col]) *
             fp8_factor(weight->scales[row / 128 * ((cols + 127) / 128) + col / 128]);
    default: {
      const uint32_t codes = weight->codes[row * (cols / 2) + col / 2];
      return fp4_half(codes >> (col % 2 * 4) & 15u) * fp4_factor(weight->scales[row * (cols / 32) + col / 32]);
    }
  }
}

}  // namespace coli_cpu

#endif
