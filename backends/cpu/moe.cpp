/* moe.cpp: routed experts. */
#include "check.h"
#include "exact.h"
#include "product.h"
#include "rows.h"
#include "slots.h"

namespace coli_cpu {

namespace {

struct Experts {
  const int32_t *ids;
  const coli_weight_list *w1, *w3, *w2;
  int64_t count, inner, width;
  int32_t format;
  float limit;
};

/* The scalar definition, pair by pair: NaN codes, and widths whose packed rows do not fit. */
coli_status moe_exact(coli_context *context, const Experts &experts, const coli_matrix *x, const coli_matrix *picks,
                      const coli_matrix *weights, coli_matrix *y, coli_error *error) {
  if (experts.inner > shared_scratch_floats(context))
    return decline(error, COLI_REASON_SHAPE, "experts of width %lld, at most %lld",
                   static_cast<long long>(experts.inner), static_cast<long long>(shared_scratch_floats(context)));
  float *mid = shared_scratch(context);
  for (int64_t expert = 0; expert < experts.count; ++expert)
    for (int64_t token = 0; token < x->rows; ++token)
      for (int64_t pick = 0; pick < picks->cols; ++pick) {
        if (ints_of(picks, token)[pick] != experts.ids[expert]) continue;
        const float share = row_of(weights, token)[pick];
        parallel(context, experts.inner, 1, [&](int64_t begin, int64_t end, int) {
          for (int64_t row = begin; row < end; ++row) {
            const float gate = dot_exact(experts.w1->items[expert], row, row_of(x, token)),
                        up = dot_exact(experts.w3->items[expert], row, row_of(x, token));
            swiglu_row(&gate, &up, experts.limit, 1, mid + row);
          }
        });
        parallel(context, experts.width, 1, [&](int64_t begin, int64_t end, int) {
          float *out = row_of(y, token);
          for (int64_t row = begin; row < end; ++row)
            out[row] = coli_fma(share, dot_exact(experts.w2->items[expert], row, mid), out[row]);
        });
      }
  return COLI_DONE;
}

/* Pairs in order of expert, token, pick, as many as fit; each row has room for gate, up, and the packed middle. */
struct Batch {
  int64_t *experts;   /* of each pair */
  const float **x;    /* packed token of each pair */
  const float **mids; /* packed middle of each pair */
  float **gates, **ups, **ys;
  float *shares;
  int64_t count, room;
};

/* body(first pair, one past the last, expert) for each run of pairs of one expert. */
template <class Body>
void for_experts(const Batch &batch, const Body &body) {
  for (int64_t begin = 0; begin < batch.count;) {
    int64_t end = begin + 1;
    while (end < batch.count && batch.experts[end] == batch.experts[begin]) ++end;
    body(begin, end, batch.experts[begin]);
    begin = end;
  }
}

/* Rows are shared among threads in blocks; one block takes every expert, so few tokens cost two waits and not two an expert. */
void run_batch(coli_context *context, const Experts &experts, const Batch &batch) {
  const auto blocks = [](int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; };
  int64_t runs = 0;
  for_experts(batch, [&](int64_t, int64_t, int64_t) { ++runs; });
  const int64_t inner_blocks = blocks(experts.inner);
  parallel(context, 2 * runs * inner_blocks, 1, [&](int64_t first, int64_t last, int worker) {
    int64_t base = 0;
    for_experts(batch, [&](int64_t begin, int64_t end, int64_t expert) {
      for (int half = 0; half < 2; ++half, base += inner_blocks) {
        const int64_t from = first > base ? first - base : 0,
                      to = last - base < inner_blocks ? last - base : inner_blocks;
        if (from >= to) continue;
        const int64_t stop = to * kBlockRows < experts.inner ? to * kBlockRows : experts.inner;
        product((half ? experts.w3 : experts.w1)->items[expert], from * kBlockRows, stop, batch.x + begin, end - begin,
                thread_scratch(context, worker), Target{(half ? batch.ups : batch.gates) + begin, nullptr});
      }
    });
  });
  parallel(context, batch.count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t pair = begin; pair < end; ++pair) {
      swiglu_row(batch.gates[pair], batch.ups[pair], experts.limit, experts.inner, batch.gates[pair]);
      pack_row_for(experts.format, batch.gates[pair], experts.inner, const_cast<float *>(batch.mids[pair]));
    }
  });
  parallel(context, blocks(experts.width), 1, [&](int64_t first, int64_t last, int worker) {
    const int64_t stop = last * kBlockRows < experts.width ? last * kBlockRows : experts.width;
    for_experts(batch, [&](int64_t begin, int64_t end, int64_t expert) {
      product(experts.w2->items[expert], first * kBlockRows, stop, batch.mids + begin, end - begin,
              thread_scratch(context, worker), Target{batch.ys + begin, batch.shares + begin});
    });
  });
}

}  // namespace

coli_status moe(coli_context *context, coli_stream *, const coli_matrix *x, const coli_matrix *picks,
                const coli_matrix *weights, const coli_matrix *ids, const coli_weight_list *w1,
                const coli_weight_list *w3, const coli_weight_list *w2, float limit, coli_matrix *y,
                coli_error *error) {
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
  if (!w1->items || !w3->items || !w2->items || !w1->items[0])
    return fail(error, COLI_SITE_ARGUMENT, "w1, w3 or w2 has no items");
  const int32_t format = w1->items[0]->format;
  const int64_t inner = w1->items[0]->rows;
  if (format != COLI_FORMAT_FP4_GROUP && format != COLI_FORMAT_FP8_BLOCK)
    return decline(error, COLI_REASON_FORMAT, "experts of format %d are not served", format);
  const int32_t *id = ints_of(ids, 0);
  for (int64_t expert = 0; expert < experts; ++expert) {
    if (expert > 0 && id[expert] <= id[expert - 1])
      return fail(error, COLI_SITE_ARGUMENT, "ids are not strictly ascending at %lld", static_cast<long long>(expert));
    COLI_TRY(check_weight(error, "w1", w1->items[expert], format, inner, width));
    COLI_TRY(check_weight(error, "w3", w3->items[expert], format, inner, width));
    COLI_TRY(check_weight(error, "w2", w2->items[expert], format, width, inner));
  }
  const Experts all = {id, w1, w3, w2, experts, inner, width, format, limit};
  bool has_nan = false;
  for (int64_t expert = 0; expert < experts; ++expert)
    has_nan = has_nan || w1->items[expert]->has_nan || w3->items[expert]->has_nan || w2->items[expert]->has_nan;

  /* Half of the scratch for packed tokens, half for pairs. */
  const int64_t half = shared_scratch_floats(context) / 2;
  const int64_t packed_x = packed_cols_of(format, width), packed_mid = packed_cols_of(format, inner);
  constexpr int64_t pair_pointers = (sizeof(int64_t) + 5 * sizeof(void *) + sizeof(float)) / 4 + 1;
  const int64_t token_room = half / (packed_x > 0 ? packed_x : 1),
                pair_room = half / (2 * inner + packed_mid + pair_pointers);
  if (has_nan || token_room == 0 || pair_room == 0) return moe_exact(context, all, x, picks, weights, y, error);

  float *packed = shared_scratch(context);
  Batch batch = {};
  batch.room = pair_room;
  batch.experts = reinterpret_cast<int64_t *>(packed + half / 2 * 2);
  batch.x = reinterpret_cast<const float **>(batch.experts + pair_room);
  batch.mids = batch.x + pair_room;
  batch.gates = const_cast<float **>(batch.mids + pair_room);
  batch.ups = batch.gates + pair_room;
  batch.ys = batch.ups + pair_room;
  batch.shares = reinterpret_cast<float *>(batch.ys + pair_room);
  float *rows = batch.shares + pair_room;
  for (int64_t first = 0; first < tokens; first += token_room) {
    const int64_t count = tokens - first < token_room ? tokens - first : token_room;
    parallel(context, count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t token = begin; token < end; ++token)
        pack_row_for(format, row_of(x, first + token), width, packed + token * packed_x);
    });
    batch.count = 0;
    for (int64_t expert = 0; expert < experts; ++expert)
      for (int64_t token = 0; token < count; ++token)
        for (int64_t pick = 0; pick < picks->cols; ++pick) {
          if (ints_of(picks, first + token)[pick] != id[expert]) continue;
          if (batch.count == batch.room) {
            run_batch(context, all, batch);
            batch.count = 0;
          }
          const int64_t pair = batch.count++;
          float *row = rows + pair * (2 * inner + packed_mid);
          batch.experts[pair] = expert;
          batch.x[pair] = packed + token * packed_x;
          batch.gates[pair] = row;
          batch.ups[pair] = row + inner;
          batch.mids[pair] = row + 2 * inner;
          batch.ys[pair] = row_of(y, first + token);
          batch.shares[pair] = row_of(weights, first + token)[pick];
        }
    if (batch.count > 0) run_batch(context, all, batch);
  }
  return COLI_DONE;
}

}  // namespace coli_cpu
