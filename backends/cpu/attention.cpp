/* attention.cpp: the indexer's scores, and attention over the ring and the compressed entries. */
#include "check.h"
#include "exact.h"
#include "slots.h"

namespace coli_cpu {

namespace {

constexpr int64_t kMaxPosition = INT64_C(1) << 40;
constexpr int64_t kBlock = 64; /* keys whose probabilities are summed before they join the total: docs/numerics.md */

int64_t visible_entries(int64_t position, int64_t ratio, int64_t entries) {
  const int64_t closed = (position + 1) / ratio;
  return closed < entries ? closed : entries;
}

}  // namespace

coli_status index_scores(coli_context *context, coli_stream *, const coli_matrix *q, const coli_matrix *head_weights, float scale,
                         const coli_matrix *keys, int64_t position, int64_t ratio, coli_matrix *scores, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "head_weights", head_weights, kAny, kAny));
  COLI_TRY(check_floats(error, "keys", keys, kAny, kAny));
  const int64_t tokens = head_weights->rows, heads = head_weights->cols, width = keys->cols;
  COLI_TRY(check_range(error, "head_weights.cols", heads, 1, INT64_C(1) << 20));
  COLI_TRY(check_range(error, "keys.cols", width, 0, INT64_C(1) << 24));
  COLI_TRY(check_floats(error, "q", q, tokens, heads * width));
  COLI_TRY(check_floats(error, "scores", scores, tokens, keys->rows));
  COLI_TRY(check_range(error, "position", position, 0, kMaxPosition));
  COLI_TRY(check_range(error, "ratio", ratio, 1, kMaxPosition));
  parallel(context, tokens * keys->rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t token = item / keys->rows, key = item % keys->rows;
      float *out = row_of(scores, token) + key;
      if (key >= visible_entries(position + token, ratio, keys->rows)) {
        *out = coli_float(0xff800000u);
        continue;
      }
      float acc = 0.0f;
      for (int64_t head = 0; head < heads; ++head) {
        const float dot = dot_exact(row_of(q, token) + head * width, row_of(keys, key), width);
        acc = coli_fma(row_of(head_weights, token)[head] * scale, dot < 0.0f ? 0.0f : dot, acc);
      }
      *out = acc;
    }
  });
  return COLI_DONE;
}

namespace {

struct Request {
  const coli_matrix *q, *ring, *entries, *selected, *sinks;
  int64_t heads, width, position, window, ratio;
  float scale;
};

/* The keys that one token sees, in their order: raw positions, then entries. */
struct Keys {
  const Request *request;
  int64_t first_raw, raw;
  int64_t entries;
  const int32_t *chosen; /* or null: entry i is rank i */

  int64_t count() const { return raw + entries; }
  const float *row(int64_t rank) const {
    if (rank < raw) return row_of(request->ring, (first_raw + rank) % request->ring->rows);
    return row_of(request->entries, chosen ? chosen[rank - raw] : rank - raw);
  }
  /* One past the last key of the block that `rank` begins. */
  int64_t block_end(int64_t rank) const {
    if (rank < raw) {
      const int64_t end = rank + kBlock - (first_raw + rank) % kBlock;
      return end < raw ? end : raw;
    }
    const int64_t end = rank + kBlock - (rank - raw) % kBlock;
    return end < count() ? end : count();
  }
};

Keys keys_of(const Request &request, int64_t token) {
  const int64_t at = request.position + token;
  Keys keys = {&request, at - request.window + 1 > 0 ? at - request.window + 1 : 0, 0, 0, nullptr};
  keys.raw = at + 1 - keys.first_raw;
  if (request.entries && request.ratio > 0) {
    keys.entries = visible_entries(at, request.ratio, request.entries->rows);
    if (request.selected) {
      keys.chosen = ints_of(request.selected, token);
      keys.entries = 0;
      while (keys.entries < request.selected->cols && keys.chosen[keys.entries] >= 0) ++keys.entries;
    }
  }
  return keys;
}

/* Selected entries ascend, are visible to their token, and -1 only ends them. */
coli_status check_selected(const Request &request, coli_error *error) {
  for (int64_t token = 0; token < request.q->rows; ++token) {
    const int64_t visible = visible_entries(request.position + token, request.ratio, request.entries->rows);
    const int32_t *chosen = ints_of(request.selected, token);
    int64_t last = -1;
    bool ended = false;
    for (int64_t rank = 0; rank < request.selected->cols; ++rank) {
      const int64_t entry = chosen[rank];
      if (entry == -1) {
        ended = true;
        continue;
      }
      if (ended || entry <= last || entry >= visible)
        return fail(error, COLI_SITE_ARGUMENT, "selected[%lld, %lld] is %lld: not ascending, after -1, or not among the %lld visible entries",
                    static_cast<long long>(token), static_cast<long long>(rank), static_cast<long long>(entry), static_cast<long long>(visible));
      last = entry;
    }
  }
  return COLI_DONE;
}

float score_of(const Request &request, const Keys &keys, const float *q, int64_t rank) {
  return dot_exact(q, keys.row(rank), request.width) * request.scale;
}

/* One head of one token; acc has room for `width` floats. */
void attend(const Request &request, const Keys &keys, int64_t token, int64_t head, float *acc, float *out) {
  const float *q = row_of(request.q, token) + head * request.width;
  const float sink = row_of(request.sinks, 0)[head];
  float most = sink;
  for (int64_t rank = 0; rank < keys.count(); ++rank) {
    const float score = score_of(request, keys, q, rank);
    most = score > most ? score : most;
  }
  float total = 0.0f;
  for (int64_t channel = 0; channel < request.width; ++channel) out[channel] = 0.0f;
  for (int64_t begin = 0; begin < keys.count();) {
    const int64_t end = keys.block_end(begin);
    float sum = 0.0f;
    for (int64_t channel = 0; channel < request.width; ++channel) acc[channel] = 0.0f;
    for (int64_t rank = begin; rank < end; ++rank) {
      const float p = coli_exp(score_of(request, keys, q, rank) - most);
      const float *key = keys.row(rank);
      sum = sum + p;
      for (int64_t channel = 0; channel < request.width; ++channel) acc[channel] = coli_fma(p, key[channel], acc[channel]);
    }
    total = total + sum;
    for (int64_t channel = 0; channel < request.width; ++channel) out[channel] = out[channel] + acc[channel];
    begin = end;
  }
  total = total + coli_exp(sink - most);
  for (int64_t channel = 0; channel < request.width; ++channel) out[channel] = out[channel] / total;
}

}  // namespace

coli_status attention(coli_context *context, coli_stream *, const coli_matrix *q, int64_t heads, const coli_matrix *ring, int64_t position,
                      int64_t window, const coli_matrix *entries, int64_t ratio, const coli_matrix *selected, const coli_matrix *sinks, float scale,
                      coli_matrix *y, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "ring", ring, kAny, kAny));
  const int64_t width = ring->cols;
  COLI_TRY(check_range(error, "heads", heads, 1, INT64_C(1) << 20));
  COLI_TRY(check_range(error, "ring.cols", width, 1, kThreadScratchFloats / 4));
  COLI_TRY(check_floats(error, "q", q, kAny, heads * width));
  const int64_t tokens = q->rows;
  COLI_TRY(check_floats(error, "sinks", sinks, 1, heads));
  COLI_TRY(check_floats(error, "y", y, tokens, heads * width));
  COLI_TRY(check_range(error, "position", position, 0, kMaxPosition));
  COLI_TRY(check_range(error, "window", window, 1, kMaxPosition));
  COLI_TRY(check_range(error, "ratio", ratio, 0, kMaxPosition));
  const int64_t oldest = position - window + 1 > 0 ? position - window + 1 : 0;
  COLI_TRY(check_range(error, "ring.rows", ring->rows, position + tokens - oldest, INT64_C(1) << 48));
  if (entries) COLI_TRY(check_floats(error, "entries", entries, kAny, width));
  if (selected) {
    if (!entries || ratio == 0) return fail(error, COLI_SITE_ARGUMENT, "selected is given without entries and ratio");
    COLI_TRY(check_matrix(error, "selected", selected, tokens, kAny, COLI_TYPE_I32));
  }
  const Request request = {q, ring, entries, selected, sinks, heads, width, position, window, ratio, scale};
  if (selected) COLI_TRY(check_selected(request, error));
  for (int64_t head = 0; head < heads; ++head)
    if (!is_finite(row_of(sinks, 0)[head])) return fail(error, COLI_SITE_NONFINITE, "sinks[%lld] is not finite", static_cast<long long>(head));

  int64_t bad = -1; /* token * heads + head of a score that is not finite */
  parallel(context, tokens * heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const Keys keys = keys_of(request, item / heads);
      for (int64_t rank = 0; rank < keys.count(); ++rank)
        if (!is_finite(score_of(request, keys, row_of(q, item / heads) + item % heads * width, rank))) __atomic_store_n(&bad, item, __ATOMIC_RELAXED);
    }
  });
  if (bad >= 0)
    return fail(error, COLI_SITE_NONFINITE, "a score of token %lld, head %lld is not finite", static_cast<long long>(bad / heads),
                static_cast<long long>(bad % heads));
  parallel(context, tokens * heads, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t token = item / heads, head = item % heads;
      attend(request, keys_of(request, token), token, head, thread_scratch(context, worker), row_of(y, token) + head * width);
    }
  });
  return COLI_DONE;
}

}  // namespace coli_cpu
