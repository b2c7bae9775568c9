/* vector.cpp: stages that work on one row of activations at a time. */
#include "check.h"
#include "exact.h"
#include "rows.h"
#include "slots.h"

namespace coli_cpu {

coli_status rms_norm(coli_context *context, coli_stream *, const coli_matrix *x, const coli_matrix *gain, float epsilon,
                     coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "x", x, kAny, kAny));
  if (gain) COLI_TRY(check_floats(error, "gain", gain, 1, x->cols));
  COLI_TRY(check_floats(error, "y", y, x->rows, x->cols));
  const float *weights = gain ? row_of(gain, 0) : nullptr;
  parallel(context, x->rows, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) norm_row(row_of(x, row), weights, epsilon, x->cols, row_of(y, row));
  });
  return COLI_DONE;
}

coli_status rope(coli_context *context, coli_stream *, const coli_matrix *cosine, const coli_matrix *sine,
                 int64_t heads, int64_t inverse, coli_matrix *x, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "x", x, kAny, kAny));
  COLI_TRY(check_range(error, "heads", heads, 1, x->cols > 0 ? x->cols : 1));
  if (x->cols % heads != 0)
    return fail(error, COLI_SITE_ARGUMENT, "heads is %lld, expected a divisor of %lld cols",
                static_cast<long long>(heads), static_cast<long long>(x->cols));
  COLI_TRY(check_floats(error, "cosine", cosine, x->rows, kAny));
  COLI_TRY(check_floats(error, "sine", sine, x->rows, cosine->cols));
  const int64_t width = x->cols / heads;
  COLI_TRY(check_range(error, "2 * cosine.cols", 2 * cosine->cols, 0, width));
  parallel(context, x->rows * heads, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / heads;
      rotate_row(row_of(cosine, row), row_of(sine, row), cosine->cols, inverse != 0, width,
                 row_of(x, row) + item % heads * width);
    }
  });
  return COLI_DONE;
}

coli_status swiglu(coli_context *context, coli_stream *, const coli_matrix *gate, const coli_matrix *up, float limit,
                   coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "gate", gate, kAny, kAny));
  COLI_TRY(check_floats(error, "up", up, gate->rows, gate->cols));
  COLI_TRY(check_floats(error, "y", y, gate->rows, gate->cols));
  for_spans(context, gate->rows, gate->cols, [&](int64_t row, int64_t col, int64_t count) {
    swiglu_row(row_of(gate, row) + col, row_of(up, row) + col, limit, count, row_of(y, row) + col);
  });
  return COLI_DONE;
}

coli_status add(coli_context *context, coli_stream *, const coli_matrix *x, coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "x", x, kAny, kAny));
  COLI_TRY(check_floats(error, "y", y, x->rows, x->cols));
  for_spans(context, x->rows, x->cols, [&](int64_t row, int64_t col, int64_t count) {
    const float *in = row_of(x, row) + col;
    float *out = row_of(y, row) + col;
    for (int64_t index = 0; index < count; ++index) out[index] = out[index] + in[index];
  });
  return COLI_DONE;
}

namespace {

/* The smallest power of two that is not below `ratio`, finite and positive, as the exponent of 2. */
int ceil_log2(float ratio) {
  const uint32_t bits = coli_bits(ratio);
  if (bits < 0x00800000u) { /* subnormal: position of the highest bit */
    int exponent = -149;
    uint32_t power = 1;
    while (power < bits) {
      power <<= 1;
      ++exponent;
    }
    return exponent;
  }
  return static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0 ? 1 : 0);
}

/* 2^exponent for -149 <= exponent <= 127. */
float power_of_two(int exponent) {
  if (exponent < -126) return coli_float(1u << (exponent + 149));
  return coli_float(static_cast<uint32_t>(exponent + 127) << 23);
}

/* Round to a multiple of `unit` (a power of two), ties to even, for 0 <= value < 2^22 * unit: adding 1.5 * 2^23 units does it. */
float round_to(float value, float unit) {
  const float big = 12582912.0f * unit;
  return (value + big) - big;
}

/* Nearest E4M3 value; 0 <= value <= 448. */
float round_e4m3(float value) {
  const int exponent = static_cast<int>((coli_bits(value) >> 23) & 255u) - 127;
  return round_to(value, power_of_two((exponent < -6 ? -6 : exponent) - 3));
}

/* Nearest E2M1 value; 0 <= value <= 6. */
float round_e2m1(float value) {
  const int exponent = static_cast<int>((coli_bits(value) >> 23) & 255u) - 127;
  return round_to(value, power_of_two((exponent < 0 ? 0 : exponent) - 1));
}

template <class Round>
coli_status round_groups(coli_context *context, const coli_matrix *x, int64_t group, float floor, float largest,
                         float inverse, const Round &round, coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "x", x, kAny, kAny));
  COLI_TRY(check_range(error, "group", group, 1, INT64_C(1) << 40));
  if (x->cols % group != 0)
    return fail(error, COLI_SITE_ARGUMENT, "group is %lld, expected a divisor of %lld cols",
                static_cast<long long>(group), static_cast<long long>(x->cols));
  COLI_TRY(check_floats(error, "y", y, x->rows, x->cols));
  for (int64_t row = 0; row < x->rows; ++row)
    for (int64_t col = 0; col < x->cols; ++col)
      if (!is_finite(row_of(x, row)[col]))
        return fail(error, COLI_SITE_NONFINITE, "x[%lld, %lld] is not finite", static_cast<long long>(row),
                    static_cast<long long>(col));
  const int64_t groups = x->cols / group;
  parallel(context, x->rows * groups, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const float *in = row_of(x, item / groups) + item % groups * group;
      float *out = row_of(y, item / groups) + item % groups * group;
      float amax = floor;
      for (int64_t col = 0; col < group; ++col) {
        const float magnitude = in[col] < 0.0f ? -in[col] : in[col];
        amax = magnitude > amax ? magnitude : amax;
      }
      const float scale = power_of_two(ceil_log2(amax * inverse));
      for (int64_t col = 0; col < group; ++col) {
        const float magnitude = in[col] < 0.0f ? -in[col] / scale : in[col] / scale;
        const float rounded = round(magnitude > largest ? largest : magnitude) * scale;
        out[col] = coli_float(coli_bits(rounded) | (coli_bits(in[col]) & 0x80000000u));
      }
    }
  });
  return COLI_DONE;
}

}  // namespace

coli_status round_fp8(coli_context *context, coli_stream *, const coli_matrix *x, int64_t group, coli_matrix *y,
                      coli_error *error) {
  return round_groups(context, x, group, 1e-4f, 448.0f, 1.0f / 448.0f, round_e4m3, y, error);
}

coli_status round_fp4(coli_context *context, coli_stream *, const coli_matrix *x, int64_t group, coli_matrix *y,
                      coli_error *error) {
  return round_groups(context, x, group, 7.05296610513316e-38f, 6.0f, 1.0f / 6.0f, round_e2m1, y,
                      error); /* 6 * 2^-126 */
}

coli_status hadamard(coli_context *context, coli_stream *, const coli_matrix *x, coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "x", x, kAny, kAny));
  const int64_t cols = x->cols;
  if (cols < 1 || (cols & (cols - 1)) != 0)
    return fail(error, COLI_SITE_ARGUMENT, "x has %lld cols, expected a power of two", static_cast<long long>(cols));
  COLI_TRY(check_floats(error, "y", y, x->rows, cols));
  const float scale = 1.0f / coli_sqrt(static_cast<float>(cols));
  parallel(context, x->rows, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float *in = row_of(x, row);
      float *out = row_of(y, row);
      for (int64_t col = 0; col < cols; ++col) out[col] = in[col];
      for (int64_t half = 1; half < cols; half *= 2)
        for (int64_t base = 0; base < cols; base += 2 * half)
          for (int64_t col = base; col < base + half; ++col) {
            const float a = out[col], b = out[col + half];
            out[col] = a + b;
            out[col + half] = a - b;
          }
      for (int64_t col = 0; col < cols; ++col) out[col] = out[col] * scale;
    }
  });
  return COLI_DONE;
}

}  // namespace coli_cpu
