/* product.cpp: the kernels of all products. Templates over the format; everything else is a plain loop. */
#include "product.h"

#include "decode.h"

namespace coli_cpu {

namespace {

/* The loops over rows, tokens and columns are unrolled by hand-written templates: sums stay in registers whatever the compiler
 * thinks of the loop. */
#define COLI_UNROLL(count, name) unroll<count>([&](auto name##_) __attribute__((always_inline)) { constexpr int name = decltype(name##_)::value; (void)name;
#define COLI_END \
  });

/* Few tokens: weights are decoded in registers, and kFusedRows rows share each load of x. */
template <class Format, int Tokens>
void fused_rows(const uint8_t *const *codes, const uint8_t *const *scales, int64_t scale_count, int64_t row_bytes,
                const float *const *x, int64_t passes, float *results) {
  constexpr int P = Format::kPiece, R = kFusedRows;
  Floats acc[kGroups][R][Tokens];
  for (int group = 0; group < kGroups; ++group)
    for (int row = 0; row < R; ++row)
      for (int token = 0; token < Tokens; ++token) acc[group][row][token] = zero();
  const int64_t ahead = R * row_bytes;
  PassTail tails[R];
  const uint8_t *at[R];
  float factors[R][32];
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (int row = 0; row < R; ++row) {
      at[row] = pass_codes(codes[row], row_bytes, pass, &tails[row]);
      if constexpr (Format::kScaled) pass_factors<Format>(scales[row], scale_count, pass, factors[row]);
    }
    for (int group = 0; group < kGroups; ++group) {
      const int64_t offset = (pass * kGroups + group) * P * kWidth;
      Words words[4][R];
      Floats sum[R][Tokens];
      COLI_UNROLL(R, row)
      Words transposed[4];
      load_pieces(at[row] + group * kWidth * 16, transposed);
      /* The same place in the next rows: four short streams are too many for the hardware's prefetcher (one core of a Zen 4: bf16 12 to 22 GB/s, fp4 6 to 11). */
      COLI_UNROLL((kWidth * 16 + 63) / 64, line)
      __builtin_prefetch(codes[row] + pass * kPassBytes + group * kWidth * 16 + line * 64 + ahead, 0, 2);
      COLI_END
      COLI_UNROLL(4, word) words[word][row] = transposed[word];
      COLI_END
      COLI_UNROLL(Tokens, token) sum[row][token] = Format::kScaled ? zero() : acc[group][row][token];
      COLI_END
      COLI_END
      const float *in_from[Tokens];
      COLI_UNROLL(Tokens, token) in_from[token] = x[token] + offset;
      COLI_END
      int64_t column = 0;
      for (int word = 0; word < 4; ++word) {
        Words left[R];
        COLI_UNROLL(R, row) left[row] = words[word][row];
        COLI_END
        for (int step = 0; step < Format::kPerWord; ++step, column += kWidth) {
          Floats in[Tokens];
          COLI_UNROLL(Tokens, token) in[token] = load(in_from[token] + column);
          COLI_END
          COLI_UNROLL(R, row)
          const Floats weight = Format::next(&left[row]);
          COLI_UNROLL(Tokens, token) sum[row][token] = fma(weight, in[token], sum[row][token]);
          COLI_END
          COLI_END
        }
      }
      COLI_UNROLL(R, row)
      COLI_UNROLL(Tokens, token)
      if constexpr (Format::kScaled) {
        acc[group][row][token] = fma(load(factors[row] + group * kWidth), sum[row][token], acc[group][row][token]);
      } else {
        acc[group][row][token] = sum[row][token];
      }
      COLI_END COLI_END
    }
  }
  for (int row = 0; row < R; ++row)
    for (int token = 0; token < Tokens; ++token) {
      Floats groups[kGroups];
      for (int group = 0; group < kGroups; ++group) groups[group] = acc[group][row][token];
      results[row * Tokens + token] = reduce(groups);
    }
}

/* `passes` passes of Rows decoded rows against Tokens packed tokens, added to sums kept as [32] floats. Decoded rows and tokens
 * have one layout; factors are [pass][32] of each row. */
template <int Rows, int Tokens, bool Scaled>
inline void tile(const float *const *rows, const float *const *factors, const float *const *x, int piece,
                 int64_t passes, float *const *acc) {
  for (int group = 0; group < kGroups; ++group) {
    Floats sum[Rows][Tokens];
    COLI_UNROLL(Rows, row)
    COLI_UNROLL(Tokens, token) sum[row][token] = Scaled ? zero() : load(acc[row * Tokens + token] + group * kWidth);
    COLI_END COLI_END const float *from[Rows], *in_from[Tokens];
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t offset = (pass * kGroups + group) * piece * kWidth;
      COLI_UNROLL(Rows, row) from[row] = rows[row] + offset;
      COLI_END
      COLI_UNROLL(Tokens, token) in_from[token] = x[token] + offset;
      COLI_END
      for (int at = 0; at < piece * kWidth; at += kWidth) {
        Floats in[Tokens];
        COLI_UNROLL(Tokens, token) in[token] = load(in_from[token] + at);
        COLI_END
        COLI_UNROLL(Rows, row)
        const Floats weight = load(from[row] + at);
        COLI_UNROLL(Tokens, token) sum[row][token] = fma(weight, in[token], sum[row][token]);
        COLI_END
        COLI_END
      }
      if constexpr (Scaled) {
        COLI_UNROLL(Rows, row)
        const Floats factor = load(factors[row] + pass * 32 + group * kWidth);
        COLI_UNROLL(Tokens, token)
        float *to = acc[row * Tokens + token] + group * kWidth;
        store(to, fma(factor, sum[row][token], load(to)));
        sum[row][token] = zero();
        COLI_END
        COLI_END
      }
    }
    if constexpr (!Scaled) {
      COLI_UNROLL(Rows, row)
      COLI_UNROLL(Tokens, token) store(acc[row * Tokens + token] + group * kWidth, sum[row][token]);
      COLI_END COLI_END
    }
  }
}

/* tile() for 1 to kTileTokens tokens. */
template <int Rows, bool Scaled, int Tokens = kTileTokens>
inline void tile_tokens(int64_t tokens, const float *const *rows, const float *const *factors, const float *const *x,
                        int piece, int64_t passes, float *const *acc) {
  if constexpr (Tokens > 1) {
    if (tokens < Tokens) return tile_tokens<Rows, Scaled, Tokens - 1>(tokens, rows, factors, x, piece, passes, acc);
  }
  tile<Rows, Tokens, Scaled>(rows, factors, x, piece, passes, acc);
}

/* Where the rows of a weight lie. */
struct Rows {
  const uint8_t *codes, *scales;
  int64_t cols, row_bytes, scale_count, scale_rows; /* scale_rows: rows that share a row of scales */

  explicit Rows(const coli_weight *weight) : codes(weight->codes), scales(weight->scales), cols(weight->cols) {
    scale_rows = 1;
    scale_count = 0;
    switch (weight->format) {
      case COLI_FORMAT_F32:
        row_bytes = cols * 4;
        break;
      case COLI_FORMAT_BF16:
        row_bytes = cols * 2;
        break;
      case COLI_FORMAT_FP8_BLOCK:
        row_bytes = cols;
        scale_rows = 128;
        scale_count = (cols + 127) / 128;
        break;
      default:
        row_bytes = cols / 2;
        scale_count = cols / 32;
    }
  }
  const uint8_t *codes_of(int64_t row) const { return codes + row * row_bytes; }
  const uint8_t *scales_of(int64_t row) const { return scales ? scales + row / scale_rows * scale_count : nullptr; }
};

void put(const Target &target, int64_t token, int64_t row, float value) {
  float *to = target.y[token] + row;
  *to = target.share ? coli_fma(target.share[token], value, *to) : value;
}

template <class Format, int Tokens>
void product_fused(const Rows &weight, int64_t begin, int64_t end, const float *const *x, int64_t first_token,
                   const Target &target) {
  const int64_t passes = packed_cols<Format>(weight.cols) / pass_cols<Format>();
  for (int64_t row = begin; row < end; row += kFusedRows) {
    const uint8_t *codes[kFusedRows], *scales[kFusedRows];
    float results[kFusedRows * Tokens];
    for (int index = 0; index < kFusedRows; ++index) { /* the last row again where there are fewer */
      const int64_t from = row + index < end ? row + index : end - 1;
      codes[index] = weight.codes_of(from);
      scales[index] = weight.scales_of(from);
    }
    fused_rows<Format, Tokens>(codes, scales, weight.scale_count, weight.row_bytes, x, passes, results);
    for (int index = 0; index < kFusedRows && row + index < end; ++index)
      for (int token = 0; token < Tokens; ++token)
        put(target, first_token + token, row + index, results[index * Tokens + token]);
  }
}

/* Decode `passes` passes of one row into the layout of packed activations. */
template <class Format>
void decode_passes(const Rows &weight, int64_t row, int64_t first_pass, int64_t passes, float *out, float *factors) {
  constexpr int P = Format::kPiece;
  PassTail tail;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const uint8_t *codes = pass_codes(weight.codes_of(row), weight.row_bytes, first_pass + pass, &tail);
    if constexpr (Format::kScaled)
      pass_factors<Format>(weight.scales_of(row), weight.scale_count, first_pass + pass, factors + pass * 32);
    for (int group = 0; group < kGroups; ++group) {
      Words words[4];
      load_pieces(codes + group * kWidth * 16, words);
      float *to = out + (pass * kGroups + group) * P * kWidth;
      for (int word = 0; word < 4; ++word) {
        Words left = words[word];
        for (int step = 0; step < Format::kPerWord; ++step, to += kWidth) store(to, Format::next(&left));
      }
    }
  }
}

/* Many tokens: a block of rows is decoded once, pass by pass, and used for all of up to kBlockTokens tokens. */
template <class Format>
void product_block(const Rows &weight, int64_t begin, int64_t end, const float *const *x, int64_t first_token,
                   int64_t tokens, float *scratch, const Target &target) {
  const int64_t passes = packed_cols<Format>(weight.cols) / pass_cols<Format>();
  constexpr int64_t step = kBlockCols / pass_cols<Format>();
  float *decoded = scratch;
  float *factors = decoded + kBlockRows * kBlockCols;
  float *acc = factors + kBlockRows * step * 32;
  for (int64_t block = begin; block < end; block += kBlockRows) {
    const int64_t rows = end - block < kBlockRows ? end - block : kBlockRows;
    __builtin_memset(acc, 0, static_cast<size_t>(kBlockRows * tokens * 32 * 4));
    for (int64_t first = 0; first < passes; first += step) {
      const int64_t count = passes - first < step ? passes - first : step;
      for (int64_t row = 0; row < rows; ++row)
        decode_passes<Format>(weight, block + row, first, count, decoded + row * kBlockCols, factors + row * step * 32);
      for (int64_t token = 0; token < tokens; token += kTileTokens) {
        const int64_t width = tokens - token < kTileTokens ? tokens - token : kTileTokens;
        const float *in[kTileTokens];
        for (int64_t index = 0; index < width; ++index) in[index] = x[token + index] + first * pass_cols<Format>();
        /* Rows beyond the last are computed from old rows of the buffer and never read: their sums have room of their own. */
        for (int64_t row = 0; row < rows; row += kTileRows) {
          const float *from[kTileRows], *scale[kTileRows];
          float *to[kTileRows * kTileTokens];
          for (int64_t index = 0; index < kTileRows; ++index) {
            from[index] = decoded + (row + index) * kBlockCols;
            scale[index] = factors + (row + index) * step * 32;
            for (int64_t other = 0; other < width; ++other)
              to[index * width + other] = acc + ((row + index) * tokens + token + other) * 32;
          }
          tile_tokens<kTileRows, Format::kScaled>(width, from, scale, in, Format::kPiece, count, to);
        }
      }
    }
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t token = 0; token < tokens; ++token) {
        Floats groups[kGroups];
        for (int group = 0; group < kGroups; ++group)
          groups[group] = load(acc + (row * tokens + token) * 32 + group * kWidth);
        put(target, first_token + token, block + row, reduce(groups));
      }
  }
}

/* out(row, token, dot(row, x[token])) for rows [begin, end) and packed tokens; scratch holds kThreadScratchFloats. */
template <class Format>
void product_as(const coli_weight *weight, int64_t begin, int64_t end, const float *const *x, int64_t tokens,
                float *scratch, const Target &target) {
  static_assert(kBlockRows * kBlockCols + kBlockRows * 32 * 32 + kBlockRows * kBlockTokens * 32 <= kThreadScratchFloats,
                "scratch");
  const Rows rows(weight);
  for (int64_t first = 0; first < tokens; first += kBlockTokens) {
    const int64_t count = tokens - first < kBlockTokens ? tokens - first : kBlockTokens;
    if (count == 1)
      product_fused<Format, 1>(rows, begin, end, x + first, first, target);
    else if (count == 2)
      product_fused<Format, 2>(rows, begin, end, x + first, first, target);
    else if (count == kFusedTokens)
      product_fused<Format, kFusedTokens>(rows, begin, end, x + first, first, target);
    else
      product_block<Format>(rows, begin, end, x + first, first, count, scratch, target);
  }
}

/* Heads x Vectors of output channels, from channel `at`. */
template <int Heads, int Vectors>
void weigh_tile(const float *p, int64_t stride, const float *const *keys, int64_t count, int64_t at, float *const *y) {
  Floats acc[Heads][Vectors];
  COLI_UNROLL(Heads, head) COLI_UNROLL(Vectors, vector) acc[head][vector] = zero();
  COLI_END COLI_END for (int64_t key = 0; key < count; ++key) {
    Floats value[Vectors];
    COLI_UNROLL(Vectors, vector) value[vector] = load(keys[key] + at + vector * kWidth);
    COLI_END
    COLI_UNROLL(Heads, head)
    const Floats share = broadcast(p[head * stride + key]);
    COLI_UNROLL(Vectors, vector) acc[head][vector] = fma(share, value[vector], acc[head][vector]);
    COLI_END
    COLI_END
  }
  COLI_UNROLL(Heads, head) COLI_UNROLL(Vectors, vector) float *to = y[head] + at + vector * kWidth;
  store(to, add(load(to), acc[head][vector]));
  COLI_END COLI_END
}

template <int Heads>
void weigh_heads(const float *p, int64_t stride, const float *const *keys, int64_t count, int64_t width,
                 float *const *y) {
  constexpr int wide = kTileTokens;
  int64_t at = 0;
  for (; at + wide * kWidth <= width; at += wide * kWidth) weigh_tile<Heads, wide>(p, stride, keys, count, at, y);
  for (; at + kWidth <= width; at += kWidth) weigh_tile<Heads, 1>(p, stride, keys, count, at, y);
  for (; at < width; ++at)
    for (int head = 0; head < Heads; ++head) {
      float acc = 0.0f;
      for (int64_t key = 0; key < count; ++key) acc = coli_fma(p[head * stride + key], keys[key][at], acc);
      y[head][at] = y[head][at] + acc;
    }
}

}  // namespace

void weigh(const float *p, int64_t stride, int64_t heads, const float *const *keys, int64_t count, int64_t width,
           float *const *y) {
  int64_t head = 0;
  for (; head + kTileRows <= heads; head += kTileRows)
    weigh_heads<kTileRows>(p + head * stride, stride, keys, count, width, y + head);
  for (; head < heads; ++head) weigh_heads<1>(p + head * stride, stride, keys, count, width, y + head);
}

#undef COLI_UNROLL
#undef COLI_END

void product(const coli_weight *weight, int64_t begin, int64_t end, const float *const *x, int64_t tokens,
             float *scratch, const Target &target) {
  switch (weight->format) {
    case COLI_FORMAT_F32:
      return product_as<F32>(weight, begin, end, x, tokens, scratch, target);
    case COLI_FORMAT_BF16:
      return product_as<Bf16>(weight, begin, end, x, tokens, scratch, target);
    case COLI_FORMAT_FP8_BLOCK:
      return product_as<Fp8>(weight, begin, end, x, tokens, scratch, target);
    default:
      return product_as<Fp4>(weight, begin, end, x, tokens, scratch, target);
  }
}

void dots(const float *const *rows_a, int64_t count_a, const float *const *rows_b, int64_t count_b, int64_t packed,
          float *out, int64_t stride) {
  float sums[kTileRows * kTileTokens][32];
  for (int64_t a = 0; a < count_a; a += kTileRows)
    for (int64_t b = 0; b < count_b; b += kTileTokens) {
      const int64_t width = count_b - b < kTileTokens ? count_b - b : kTileTokens;
      const float *left[kTileRows];
      float *to[kTileRows * kTileTokens];
      for (int64_t index = 0; index < kTileRows; ++index)
        left[index] = rows_a[a + index < count_a ? a + index : count_a - 1];
      for (int64_t index = 0; index < kTileRows * width; ++index) {
        to[index] = sums[index];
        __builtin_memset(sums[index], 0, sizeof sums[index]);
      }
      tile_tokens<kTileRows, false>(width, left, nullptr, rows_b + b, F32::kPiece, packed / pass_cols<F32>(), to);
      for (int64_t row = 0; row < kTileRows && a + row < count_a; ++row)
        for (int64_t token = 0; token < width; ++token) {
          Floats groups[kGroups];
          for (int group = 0; group < kGroups; ++group)
            groups[group] = load(sums[row * width + token] + group * kWidth);
          out[(a + row) * stride + b + token] = reduce(groups);
        }
    }
}

int64_t packed_cols_of(int32_t format, int64_t cols) {
  switch (format) {
    case COLI_FORMAT_F32:
      return packed_cols<F32>(cols);
    case COLI_FORMAT_BF16:
      return packed_cols<Bf16>(cols);
    case COLI_FORMAT_FP8_BLOCK:
      return packed_cols<Fp8>(cols);
    default:
      return packed_cols<Fp4>(cols);
  }
}

void pack_row_for(int32_t format, const float *x, int64_t cols, float *out) {
  switch (format) {
    case COLI_FORMAT_F32:
      return pack_row<F32>(x, cols, out);
    case COLI_FORMAT_BF16:
      return pack_row<Bf16>(x, cols, out);
    case COLI_FORMAT_FP8_BLOCK:
      return pack_row<Fp8>(x, cols, out);
    default:
      return pack_row<Fp4>(x, cols, out);
  }
}

}  // namespace coli_cpu
