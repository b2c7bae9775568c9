/* decode.h: how each weight format becomes vectors of f32: decode(words, column in piece) and the factor at the end of a piece. */
#ifndef COLI_CPU_DECODE_H
#define COLI_CPU_DECODE_H

#include "context.h"
#include "simd.h"

namespace coli_cpu {

constexpr int kPassBytes = 512; /* weight bytes of one pass over all 32 lanes */

/* kPiece: columns in 16 bytes, kPerWord in a dword. next(word) gives the value of the lowest column left and drops it from the word:
 * one body for all columns, so that the loop over them stays a loop. */
struct Fp4 {
  static constexpr int kPiece = 32, kPerWord = 8, kScaleCols = 32;
  static constexpr bool kScaled = true;
  static constexpr uint32_t kBias = 1;
  static inline Floats next(Words *word) {
    const Floats value = fp4_values(*word);
    *word = shift_right<4>(*word);
    return value;
  }
};

struct Fp8 {
  static constexpr int kPiece = 16, kPerWord = 4, kScaleCols = 128;
  static constexpr bool kScaled = true;
  static constexpr uint32_t kBias = 8;
  static inline Floats next(Words *word) {
    const Floats value = with_sign(fp8_magnitude(shift_left<20>(*word)), shift_left<24>(*word));
    *word = shift_right<8>(*word);
    return value;
  }
};

struct Bf16 {
  static constexpr int kPiece = 8, kPerWord = 2;
  static constexpr bool kScaled = false;
  static inline Floats next(Words *word) {
    const Floats value = as_floats(shift_left<16>(*word));
    *word = shift_right<16>(*word);
    return value;
  }
};

struct F32 {
  static constexpr int kPiece = 4, kPerWord = 1;
  static constexpr bool kScaled = false;
  static inline Floats next(Words *word) { return as_floats(*word); }
};

template <class Format>
constexpr int64_t pass_cols() {
  return 32 * Format::kPiece;
}

/* Floats of a packed row: whole passes. */
template <class Format>
int64_t packed_cols(int64_t cols) {
  return (cols + pass_cols<Format>() - 1) / pass_cols<Format>() * pass_cols<Format>();
}

/* One pass of codes: the row itself, or, for the last and short one, a copy with zeros behind it. */
struct PassTail {
  uint8_t bytes[kPassBytes];
};

inline const uint8_t *pass_codes(const uint8_t *row, int64_t row_bytes, int64_t pass, PassTail *tail) {
  const uint8_t *at = row + pass * kPassBytes;
  const int64_t left = row_bytes - pass * kPassBytes;
  if (left >= kPassBytes) return at;
  __builtin_memset(tail->bytes, 0, kPassBytes);
  __builtin_memcpy(tail->bytes, at, static_cast<size_t>(left));
  return tail->bytes;
}

/* The 32 factors of a pass, in order of element within each group. */
template <class Format>
inline void pass_factors(const uint8_t *scales, int64_t scale_count, int64_t pass, float out[32]) {
  constexpr int64_t per_pass = pass_cols<Format>() / Format::kScaleCols;
  const int64_t first = pass * per_pass;
  if constexpr (per_pass == 32) {
    uint8_t bytes[32];
    const uint8_t *from = scales + first;
    if (first + 32 > scale_count) { /* padding: any positive factor, for its sum is zero */
      __builtin_memset(bytes, 0, sizeof bytes);
      __builtin_memcpy(bytes, from, static_cast<size_t>(scale_count - first));
      from = bytes;
    }
    for (int group = 0; group < kGroups; ++group)
      store(out + group * kWidth, load_factors(from + group * kWidth, Format::kBias));
  } else {
    static_assert(per_pass == 4, "8 lanes a factor");
    float factors[4];
    for (int64_t block = 0; block < 4; ++block)
      factors[block] = coli_float((first + block < scale_count ? scales[first + block] + Format::kBias : 1u) << 23);
    for (int group = 0; group < kGroups; ++group)
      store(out + group * kWidth,
            block_factors(factors[group * kWidth / 8], factors[(group * kWidth + kWidth - 1) / 8]));
  }
}

/* Activations in the order in which the kernels read them: [pass][group][column in piece][element], zeros behind the row. */
template <class Format>
void pack_row(const float *x, int64_t cols, float *out) {
  constexpr int64_t piece = Format::kPiece;
  const int64_t passes = packed_cols<Format>(cols) / pass_cols<Format>();
  for (int64_t pass = 0; pass < passes; ++pass)
    for (int group = 0; group < kGroups; ++group) {
      const int64_t base = pass * pass_cols<Format>() + group * kWidth * piece;
      float *to = out + base;
      if (base + kWidth * piece <= cols) {
        /* 4 columns of each piece at a time are 16 bytes of each: the same transpose, with a stride. */
        for (int element = 0; element < kWidth; ++element) {
          const float *from = x + base + piece_of(element) * piece;
          for (int64_t column = 0; column < piece; ++column) to[column * kWidth + element] = from[column];
        }
        continue;
      }
      for (int element = 0; element < kWidth; ++element)
        for (int64_t column = 0; column < piece; ++column) {
          const int64_t col = base + piece_of(element) * piece + column;
          to[column * kWidth + element] = col < cols ? x[col] : 0.0f;
        }
    }
}

/* A compile-time loop: body(Index<0>) ... body(Index<N - 1>). */
template <int N>
struct Index {
  static constexpr int value = N;
};

template <int N, int At = 0, class Body>
static inline __attribute__((always_inline)) void unroll(const Body &body) {
  if constexpr (At < N) {
    body(Index<At>());
    unroll<N, At + 1>(body);
  }
}

/* 32 lanes in kGroups vectors to one value: the tree. */
static inline float reduce(const Floats *groups) {
  Floats v[kGroups];
  for (int group = 0; group < kGroups; ++group) v[group] = groups[group];
  for (int step = kGroups / 2; step >= 1; step /= 2)
    for (int group = 0; group < step; ++group) v[group] = add(v[group], v[group + step]);
  return reduce_register(v[0]);
}

}  // namespace coli_cpu

#endif
