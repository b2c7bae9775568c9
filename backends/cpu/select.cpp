/* select.cpp: the choices: best entries of the indexer, experts of the router. */
#include "check.h"
#include "exact.h"
#include "slots.h"

namespace coli_cpu {

namespace {

/* Order of the values as unsigned numbers; -0 counts as +0. */
uint32_t order_of(float value) {
  const uint32_t bits = coli_bits(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

const uint32_t kLowest = 0x007fffffu; /* order_of(-infinity) */

/* Write the `most` best columns above -infinity in ascending order: the value of the last one is found byte by byte, from the top. */
void select_row(const float *scores, int64_t count, int64_t most, int32_t *out) {
  uint32_t prefix = 0;
  int64_t wanted = most, above = 0;
  for (int64_t index = 0; index < count; ++index) above += order_of(scores[index]) > kLowest;
  bool all = above <= most;
  for (int shift = 24; shift >= 0 && !all && most > 0; shift -= 8) {
    int64_t histogram[256] = {};
    const uint32_t mask = shift == 24 ? 0u : ~0u << (shift + 8);
    for (int64_t index = 0; index < count; ++index) {
      const uint32_t order = order_of(scores[index]);
      if (((order ^ prefix) & mask) == 0) ++histogram[order >> shift & 255u];
    }
    uint32_t byte = 255;
    while (histogram[byte] < wanted) wanted -= histogram[byte--];
    prefix |= byte << shift;
  }
  /* Everything above `prefix`, and the first `wanted` that equal it. */
  int64_t taken = 0;
  for (int64_t index = 0; index < count && taken < most; ++index) {
    const uint32_t order = order_of(scores[index]);
    if (order <= kLowest) continue;
    const bool take = all || order > prefix || (order == prefix && wanted-- > 0);
    if (take) out[taken++] = static_cast<int32_t>(index);
  }
  while (taken < most) out[taken++] = -1;
}

}  // namespace

coli_status top_k(coli_context *context, coli_stream *, const coli_matrix *scores, coli_matrix *selected,
                  coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "scores", scores, kAny, kAny));
  COLI_TRY(check_range(error, "scores.cols", scores->cols, 0, INT32_MAX));
  COLI_TRY(check_matrix(error, "selected", selected, scores->rows, kAny, COLI_TYPE_I32));
  for (int64_t row = 0; row < scores->rows; ++row)
    for (int64_t col = 0; col < scores->cols; ++col) {
      const float value = row_of(scores, row)[col];
      if (value != value)
        return fail(error, COLI_SITE_NONFINITE, "scores[%lld, %lld] is NaN", static_cast<long long>(row),
                    static_cast<long long>(col));
    }
  parallel(context, scores->rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      select_row(row_of(scores, row), scores->cols, selected->cols, ints_of(selected, row));
  });
  return COLI_DONE;
}

namespace {

float rho_of(float logit) { return coli_sqrt(coli_softplus(logit)); }

/* The ids of one token in ascending order. Each round finds the best one after the last pick in the order (value down, id up). */
void pick_row(const float *logits, const float *bias, const int32_t *fixed, int64_t experts, int64_t count,
              int32_t *picks) {
  float last = 0.0f;
  int64_t last_id = -1;
  for (int64_t pick = 0; pick < count; ++pick) {
    int64_t best_id = -1;
    if (fixed) {
      best_id = fixed[pick];
    } else {
      float best = 0.0f;
      for (int64_t id = 0; id < experts; ++id) {
        const float value = rho_of(logits[id]) + bias[id];
        if (pick > 0 && !(value < last || (value == last && id > last_id))) continue;
        if (best_id >= 0 && !(value > best)) continue;
        best = value;
        best_id = id;
      }
      last = best;
      last_id = best_id;
    }
    int64_t place = pick;
    for (; place > 0 && picks[place - 1] > best_id; --place) picks[place] = picks[place - 1];
    picks[place] = static_cast<int32_t>(best_id);
  }
}

float sum_picked(const float *logits, const int32_t *picks, int64_t count) {
  float sum = 0.0f;
  for (int64_t pick = 0; pick < count; ++pick) sum = sum + rho_of(logits[picks[pick]]);
  return sum;
}

}  // namespace

coli_status router(coli_context *context, coli_stream *, const coli_matrix *logits, const coli_matrix *bias,
                   const coli_matrix *fixed, float scale, coli_matrix *picks, coli_matrix *weights, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "logits", logits, kAny, kAny));
  const int64_t tokens = logits->rows, experts = logits->cols;
  COLI_TRY(check_range(error, "logits.cols", experts, 0, kThreadScratchFloats / 2));
  COLI_TRY(check_matrix(error, "picks", picks, tokens, kAny, COLI_TYPE_I32));
  const int64_t count = picks->cols;
  COLI_TRY(check_range(error, "picks.cols", count, 0, INT64_C(1) << 20));
  COLI_TRY(check_floats(error, "weights", weights, tokens, count));
  if ((bias != nullptr) == (fixed != nullptr))
    return fail(error, COLI_SITE_ARGUMENT, "exactly one of bias and fixed must be given");
  if (bias) {
    COLI_TRY(check_floats(error, "bias", bias, 1, experts));
    COLI_TRY(check_range(error, "picks.cols", count, 0, experts));
    for (int64_t id = 0; id < experts; ++id)
      if (!is_finite(row_of(bias, 0)[id]))
        return fail(error, COLI_SITE_NONFINITE, "bias[%lld] is not finite", static_cast<long long>(id));
  } else {
    COLI_TRY(check_matrix(error, "fixed", fixed, tokens, count, COLI_TYPE_I32));
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t pick = 0; pick < count; ++pick) {
        const int32_t id = ints_of(fixed, token)[pick];
        if (id < 0 || id >= experts)
          return fail(error, COLI_SITE_ARGUMENT, "fixed[%lld, %lld] is %d, expected 0 to %lld",
                      static_cast<long long>(token), static_cast<long long>(pick), id,
                      static_cast<long long>(experts) - 1);
      }
  }
  bool tiny = false; /* a logit below -60: the picked rho might add up to zero */
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t id = 0; id < experts; ++id) {
      const float logit = row_of(logits, token)[id];
      if (!is_finite(logit))
        return fail(error, COLI_SITE_NONFINITE, "logits[%lld, %lld] is not finite", static_cast<long long>(token),
                    static_cast<long long>(id));
      tiny = tiny || logit < -60.0f;
    }
  for (int64_t token = 0; tiny && count > 0 && token < tokens; ++token) {
    int32_t *chosen = reinterpret_cast<int32_t *>(shared_scratch(context));
    pick_row(row_of(logits, token), bias ? row_of(bias, 0) : nullptr, fixed ? ints_of(fixed, token) : nullptr, experts,
             count, chosen);
    if (!(sum_picked(row_of(logits, token), chosen, count) > 0.0f))
      return fail(error, COLI_SITE_NONFINITE, "the picked rho of token %lld add up to zero",
                  static_cast<long long>(token));
  }
  parallel(context, tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      const float *row = row_of(logits, token);
      int32_t *out = ints_of(picks, token);
      pick_row(row, bias ? row_of(bias, 0) : nullptr, fixed ? ints_of(fixed, token) : nullptr, experts, count, out);
      const float sum = sum_picked(row, out, count);
      for (int64_t pick = 0; pick < count; ++pick)
        row_of(weights, token)[pick] = (rho_of(row[out[pick]]) / sum) * scale;
    }
  });
  return COLI_DONE;
}

}  // namespace coli_cpu
