/* rows.h: what several stages do to one row. */
#ifndef COLI_CPU_ROWS_H
#define COLI_CPU_ROWS_H

#include "exact.h"

namespace coli_cpu {

/* 1 / sqrt(dot(x, x) / cols + epsilon). */
static inline float norm_factor(const float *x, float epsilon, int64_t cols) {
  return 1.0f / coli_sqrt(dot_exact(x, x, cols) / static_cast<float>(cols) + epsilon);
}

/* y may be x; gain may be null. */
static inline void norm_row(const float *x, const float *gain, float epsilon, int64_t cols, float *y) {
  if (cols == 0) return;
  const float factor = norm_factor(x, epsilon, cols);
  if (gain)
    for (int64_t col = 0; col < cols; ++col) y[col] = (x[col] * factor) * gain[col];
  else
    for (int64_t col = 0; col < cols; ++col) y[col] = x[col] * factor;
}

/* Turn the last 2 * pairs of `width` channels. */
static inline void rotate_row(const float *cosine, const float *sine, int64_t pairs, bool inverse, int64_t width,
                              float *x) {
  float *turned = x + (width - 2 * pairs);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const float a = turned[2 * pair], b = turned[2 * pair + 1];
    const float c = cosine[pair], s = inverse ? -sine[pair] : sine[pair];
    turned[2 * pair] = coli_fma(a, c, -(b * s));
    turned[2 * pair + 1] = coli_fma(b, c, a * s);
  }
}

/* y may be gate or up. */
static inline void swiglu_row(const float *gate, const float *up, float limit, int64_t count, float *y) {
  const float bound = limit > 0.0f ? limit : coli_float(0x7f800000u);
  for (int64_t index = 0; index < count; ++index) {
    const float g = gate[index] > bound ? bound : gate[index];
    float u = up[index] > bound ? bound : up[index];
    u = u < -bound ? -bound : u;
    y[index] = (g * coli_sigmoid(g)) * u;
  }
}

/* body(row, first column, columns) for all of a rows x cols matrix in pieces that threads share. */
template <class Body>
void for_spans(coli_context *context, int64_t rows, int64_t cols, const Body &body) {
  constexpr int64_t span = 1024;
  const int64_t spans = (cols + span - 1) / span;
  parallel(context, rows * spans, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t col = item % spans * span;
      body(item / spans, col, cols - col < span ? cols - col : span);
    }
  });
}

}  // namespace coli_cpu

#endif
