/* hyper.cpp: the mixing of the residual streams (mHC). */
#include "check.h"
#include "exact.h"
#include "rows.h"
#include "slots.h"

namespace coli_cpu {

namespace {

constexpr int64_t kMaxStreams = 16;
constexpr int64_t kMaxMix = (2 + kMaxStreams) * kMaxStreams;

/* Sum in index order, from +0. */
float sum_of(const float *values, int64_t count, int64_t step) {
  float sum = 0.0f;
  for (int64_t index = 0; index < count; ++index) sum = sum + values[index * step];
  return sum;
}

/* Row softmax, then `iterations` column and `iterations - 1` row normalizations, alternating; both begin and end with columns. */
void sinkhorn(float *comb, int64_t n, int64_t iterations, float epsilon) {
  for (int64_t row = 0; row < n; ++row) {
    float *at = comb + row * n;
    float most = at[0];
    for (int64_t col = 1; col < n; ++col) most = at[col] > most ? at[col] : most;
    for (int64_t col = 0; col < n; ++col) at[col] = coli_exp(at[col] - most);
    const float sum = sum_of(at, n, 1);
    for (int64_t col = 0; col < n; ++col) at[col] = at[col] / sum + epsilon;
  }
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    for (int64_t row = 0; iteration > 0 && row < n; ++row) {
      const float sum = sum_of(comb + row * n, n, 1) + epsilon;
      for (int64_t col = 0; col < n; ++col) comb[row * n + col] = comb[row * n + col] / sum;
    }
    for (int64_t col = 0; col < n; ++col) {
      const float sum = sum_of(comb + col, n, n) + epsilon;
      for (int64_t row = 0; row < n; ++row) comb[row * n + col] = comb[row * n + col] / sum;
    }
  }
}

/* x[c] = sum over j of pre[j] * streams[j * width + c]. */
void collapse(const float *pre, const float *streams, int64_t n, int64_t width, int64_t begin, int64_t end, float *x) {
  for (int64_t col = begin; col < end; ++col) {
    float acc = 0.0f;
    for (int64_t stream = 0; stream < n; ++stream) acc = coli_fma(pre[stream], streams[stream * width + col], acc);
    x[col] = acc;
  }
}

/* z[t, r] = dot(fn row r, streams[t]) * norm factor of streams[t], for tokens first .. first + count. */
void mix(coli_context *context, const coli_matrix *streams, const coli_weight *fn, float epsilon, int64_t first,
         int64_t count, float *z) {
  const int64_t rows = fn->rows;
  parallel(context, count * rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item)
      z[item] = dot_exact(fn, item % rows, row_of(streams, first + item / rows));
  });
  parallel(context, count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      const float factor = norm_factor(row_of(streams, first + token), epsilon, fn->cols);
      for (int64_t row = 0; row < rows; ++row) z[token * rows + row] = z[token * rows + row] * factor;
    }
  });
}

/* Tokens whose z fit the scratch. */
constexpr int64_t kTokens = (INT64_C(1) << 20) / kMaxMix;

}  // namespace

coli_status hc_pre(coli_context *context, coli_stream *, const coli_matrix *streams, const coli_weight *fn,
                   const coli_matrix *scale, const coli_matrix *base, int64_t iterations, float norm_epsilon,
                   float hc_epsilon, coli_matrix *x, coli_matrix *post, coli_matrix *comb, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "streams", streams, kAny, kAny));
  const int64_t tokens = streams->rows;
  COLI_TRY(check_floats(error, "x", x, tokens, kAny));
  COLI_TRY(check_floats(error, "post", post, tokens, kAny));
  const int64_t n = post->cols, width = x->cols;
  COLI_TRY(check_range(error, "post.cols (n)", n, 1, kMaxStreams));
  COLI_TRY(check_floats(error, "streams", streams, tokens, n * width));
  COLI_TRY(check_weight(error, "fn", fn, COLI_FORMAT_F32, (2 + n) * n, n * width));
  COLI_TRY(check_floats(error, "scale", scale, 1, 3));
  COLI_TRY(check_floats(error, "base", base, 1, (2 + n) * n));
  COLI_TRY(check_floats(error, "comb", comb, tokens, n * n));
  COLI_TRY(check_range(error, "iterations", iterations, 1, 1 << 20));
  COLI_TRY(check_range(error, "x.cols", width, 1, INT64_C(1) << 40));
  float *z = shared_scratch(context);
  const float *factors = row_of(scale, 0), *bases = row_of(base, 0);
  for (int64_t first = 0; first < tokens; first += kTokens) {
    const int64_t count = tokens - first < kTokens ? tokens - first : kTokens;
    mix(context, streams, fn, norm_epsilon, first, count, z);
    parallel(context, count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t token = begin; token < end; ++token) {
        const float *in = z + token * (2 + n) * n;
        float *after = row_of(post, first + token), *mixed = row_of(comb, first + token);
        float pre[kMaxStreams];
        for (int64_t stream = 0; stream < n; ++stream) {
          pre[stream] = coli_sigmoid(coli_fma(in[stream], factors[0], bases[stream])) + hc_epsilon;
          after[stream] = 2.0f * coli_sigmoid(coli_fma(in[n + stream], factors[1], bases[n + stream]));
        }
        for (int64_t index = 0; index < n * n; ++index)
          mixed[index] = coli_fma(in[2 * n + index], factors[2], bases[2 * n + index]);
        sinkhorn(mixed, n, iterations, hc_epsilon);
        collapse(pre, row_of(streams, first + token), n, width, 0, width, row_of(x, first + token));
      }
    });
  }
  return COLI_DONE;
}

coli_status hc_post(coli_context *context, coli_stream *, const coli_matrix *y, const coli_matrix *post,
                    const coli_matrix *comb, coli_matrix *streams, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "y", y, kAny, kAny));
  COLI_TRY(check_floats(error, "post", post, y->rows, kAny));
  const int64_t n = post->cols, width = y->cols;
  COLI_TRY(check_range(error, "post.cols (n)", n, 1, kMaxStreams));
  COLI_TRY(check_floats(error, "comb", comb, y->rows, n * n));
  COLI_TRY(check_floats(error, "streams", streams, y->rows, n * width));
  for_spans(context, y->rows, width, [&](int64_t row, int64_t col, int64_t count) {
    const float *in = row_of(y, row), *after = row_of(post, row), *mixed = row_of(comb, row);
    float *kept = row_of(streams, row);
    for (int64_t at = col; at < col + count; ++at) {
      float made[kMaxStreams];
      for (int64_t k = 0; k < n; ++k) {
        float acc = after[k] * in[at];
        for (int64_t j = 0; j < n; ++j) acc = coli_fma(mixed[j * n + k], kept[j * width + at], acc);
        made[k] = acc;
      }
      for (int64_t k = 0; k < n; ++k) kept[k * width + at] = made[k];
    }
  });
  return COLI_DONE;
}

coli_status hc_head(coli_context *context, coli_stream *, const coli_matrix *streams, const coli_weight *fn,
                    const coli_matrix *scale, const coli_matrix *base, float norm_epsilon, float hc_epsilon,
                    coli_matrix *x, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "streams", streams, kAny, kAny));
  const int64_t tokens = streams->rows;
  COLI_TRY(check_floats(error, "x", x, tokens, kAny));
  COLI_TRY(check_floats(error, "base", base, 1, kAny));
  const int64_t n = base->cols, width = x->cols;
  COLI_TRY(check_range(error, "base.cols (n)", n, 1, kMaxStreams));
  COLI_TRY(check_range(error, "x.cols", width, 1, INT64_C(1) << 40));
  COLI_TRY(check_floats(error, "streams", streams, tokens, n * width));
  COLI_TRY(check_weight(error, "fn", fn, COLI_FORMAT_F32, n, n * width));
  COLI_TRY(check_floats(error, "scale", scale, 1, 1));
  float *z = shared_scratch(context);
  for (int64_t first = 0; first < tokens; first += kTokens) {
    const int64_t count = tokens - first < kTokens ? tokens - first : kTokens;
    mix(context, streams, fn, norm_epsilon, first, count, z);
    parallel(context, count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t token = begin; token < end; ++token) {
        float pre[kMaxStreams];
        for (int64_t stream = 0; stream < n; ++stream)
          pre[stream] =
              coli_sigmoid(coli_fma(z[token * n + stream], row_of(scale, 0)[0], row_of(base, 0)[stream])) + hc_epsilon;
        collapse(pre, row_of(streams, first + token), n, width, 0, width, row_of(x, first + token));
      }
    });
  }
  return COLI_DONE;
}

}  // namespace coli_cpu
