/* moe.cpp: routed experts. */
#include "check.h"
#include "exact.h"
#include "rows.h"
#include "slots.h"

namespace coli_cpu {

coli_status moe(coli_context *context, coli_stream *, const coli_matrix *x, const coli_matrix *picks, const coli_matrix *weights,
                const coli_matrix *ids, const coli_weight_list *w1, const coli_weight_list *w3, const coli_weight_list *w2, float limit,
                coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "x", x, kAny, kAny));
  const int64_t tokens = x->rows, width = x->cols;
  COLI_TRY(check_matrix(error, "picks", picks, tokens, kAny, COLI_TYPE_I32));
  COLI_TRY(check_floats(error, "weights", weights, tokens, picks->cols));
  COLI_TRY(check_matrix(error, "ids", ids, 1, kAny, COLI_TYPE_I32));
  COLI_TRY(check_floats(error, "y", y, tokens, width));
  const int64_t experts = ids->cols;
  if (!w1 || !w3 || !w2 || w1->count != experts || w3->count != experts || w2->count != experts)
    return fail(error, COLI_SITE_ARGUMENT, "w1, w3, w2: expected %lld weights each", static_cast<long long>(experts));
  if (experts == 0) return COLI_DONE;
  if (!w1->items || !w3->items || !w2->items || !w1->items[0]) return fail(error, COLI_SITE_ARGUMENT, "w1, w3 or w2 has no items");
  const int32_t format = w1->items[0]->format;
  const int64_t inner = w1->items[0]->rows;
  if (format != COLI_FORMAT_FP4_GROUP && format != COLI_FORMAT_FP8_BLOCK)
    return decline(error, COLI_REASON_FORMAT, "experts of format %d are not served", format);
  const int32_t *id = ints_of(ids, 0);
  for (int64_t expert = 0; expert < experts; ++expert) {
    if (expert > 0 && id[expert] <= id[expert - 1]) return fail(error, COLI_SITE_ARGUMENT, "ids are not strictly ascending at %lld", static_cast<long long>(expert));
    COLI_TRY(check_weight(error, "w1", w1->items[expert], format, inner, width));
    COLI_TRY(check_weight(error, "w3", w3->items[expert], format, inner, width));
    COLI_TRY(check_weight(error, "w2", w2->items[expert], format, width, inner));
  }
  if (inner > shared_scratch_floats(context))
    return decline(error, COLI_REASON_SHAPE, "experts of width %lld, at most %lld", static_cast<long long>(inner),
                   static_cast<long long>(shared_scratch_floats(context)));
  float *mid = shared_scratch(context);
  for (int64_t expert = 0; expert < experts; ++expert)
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t pick = 0; pick < picks->cols; ++pick) {
        if (ints_of(picks, token)[pick] != id[expert]) continue;
        const float *in = row_of(x, token);
        const float share = row_of(weights, token)[pick];
        parallel(context, inner, 1, [&](int64_t begin, int64_t end, int) {
          for (int64_t row = begin; row < end; ++row) {
            const float gate = dot_exact(w1->items[expert], row, in), up = dot_exact(w3->items[expert], row, in);
            swiglu_row(&gate, &up, limit, 1, mid + row);
          }
        });
        parallel(context, width, 1, [&](int64_t begin, int64_t end, int) {
          float *out = row_of(y, token);
          for (int64_t row = begin; row < end; ++row) out[row] = coli_fma(share, dot_exact(w2->items[expert], row, mid), out[row]);
        });
      }
  return COLI_DONE;
}

}  // namespace coli_cpu
