/* attention.cpp: the indexer's scores, and attention over the ring and the compressed entries. */
#include "check.h"
#include "exact.h"
#include "product.h"
#include "slots.h"

namespace coli_cpu {

namespace {

constexpr int64_t kMaxPosition = INT64_C(1) << 40;
const float kMinusInfinity = coli_float(0xff800000u);
constexpr int64_t kBlock = 64; /* keys whose probabilities are summed before they join the total: docs/numerics.md */

int64_t visible_entries(int64_t position, int64_t ratio, int64_t entries) {
  const int64_t closed = (position + 1) / ratio;
  return closed < entries ? closed : entries;
}

}  // namespace

coli_status index_scores(coli_context *context, coli_stream *, const coli_matrix *q, const coli_matrix *head_weights,
                         float scale, const coli_matrix *keys, int64_t position, int64_t ratio, coli_matrix *scores,
                         coli_error *error) {
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
  const int64_t packed = packed_cols_of(COLI_FORMAT_F32, width), token_floats = heads * (packed + 2);
  const int64_t room = shared_scratch_floats(context) / token_floats;
  if (room == 0 || kBlock * (packed + 2 + heads) > kThreadScratchFloats) {
    parallel(context, tokens * keys->rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t token = item / keys->rows, key = item % keys->rows;
        float acc = 0.0f;
        for (int64_t head = 0; head < heads && key < visible_entries(position + token, ratio, keys->rows); ++head) {
          const float dot = dot_exact(row_of(q, token) + head * width, row_of(keys, key), width);
          acc = coli_fma(row_of(head_weights, token)[head] * scale, dot < 0.0f ? 0.0f : dot, acc);
        }
        row_of(scores, token)[key] = key < visible_entries(position + token, ratio, keys->rows) ? acc : kMinusInfinity;
      }
    });
    return COLI_DONE;
  }
  for (int64_t first = 0; first < tokens; first += room) {
    const int64_t count = tokens - first < room ? tokens - first : room;
    const float **at = reinterpret_cast<const float **>(shared_scratch(context));
    float *rows = shared_scratch(context) + 2 * count * heads;
    parallel(context, count * heads, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        at[item] = rows + item * packed;
        pack_row_for(COLI_FORMAT_F32, row_of(q, first + item / heads) + item % heads * width, width,
                     rows + item * packed);
      }
    });
    parallel(context, (keys->rows + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end, int worker) {
      const float **key_at = reinterpret_cast<const float **>(thread_scratch(context, worker));
      float *key_rows = thread_scratch(context, worker) + 2 * kBlock, *products = key_rows + kBlock * packed;
      for (int64_t block = begin * kBlock; block < end * kBlock && block < keys->rows; block += kBlock) {
        const int64_t size = keys->rows - block < kBlock ? keys->rows - block : kBlock;
        const int64_t seen =
            visible_entries(position + first + count - 1, ratio, keys->rows) - block; /* by the last token */
        const int64_t used = seen < 0 ? 0 : seen < size ? seen : size;
        for (int64_t key = 0; key < used; ++key) {
          key_at[key] = key_rows + key * packed;
          pack_row_for(COLI_FORMAT_F32, row_of(keys, block + key), width, key_rows + key * packed);
        }
        for (int64_t token = 0; token < count; ++token) {
          float *out = row_of(scores, first + token) + block;
          const int64_t own = visible_entries(position + first + token, ratio, keys->rows) - block;
          const int64_t visible = own < 0 ? 0 : own < used ? own : used;
          if (visible > 0) dots(at + token * heads, heads, key_at, visible, packed, products, kBlock);
          for (int64_t key = 0; key < visible; ++key) out[key] = 0.0f;
          for (int64_t head = 0; head < heads; ++head) {
            const float share = row_of(head_weights, first + token)[head] * scale;
            const float *dot = products + head * kBlock;
            for (int64_t key = 0; key < visible; ++key)
              out[key] = coli_fma(share, dot[key] < 0.0f ? 0.0f : dot[key], out[key]);
          }
          for (int64_t key = visible; key < size; ++key) out[key] = kMinusInfinity;
        }
      }
    });
  }
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
        return fail(error, COLI_SITE_ARGUMENT,
                    "selected[%lld, %lld] is %lld: not ascending, after -1, or not among the %lld visible entries",
                    static_cast<long long>(token), static_cast<long long>(rank), static_cast<long long>(entry),
                    static_cast<long long>(visible));
      last = entry;
    }
  }
  return COLI_DONE;
}

float score_of(const Request &request, const Keys &keys, const float *q, int64_t rank) {
  return dot_exact(q, keys.row(rank), request.width) * request.scale;
}

/* One head of one token, by the scalar definition: for more keys than the scratch holds scores. acc has room for `width` floats. */
void attend_exact(const Request &request, const Keys &keys, int64_t token, int64_t head, float *acc, float *out) {
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
      for (int64_t channel = 0; channel < request.width; ++channel)
        acc[channel] = coli_fma(p, key[channel], acc[channel]);
    }
    total = total + sum;
    for (int64_t channel = 0; channel < request.width; ++channel) out[channel] = out[channel] + acc[channel];
    begin = end;
  }
  total = total + coli_exp(sink - most);
  for (int64_t channel = 0; channel < request.width; ++channel) out[channel] = out[channel] / total;
}

/* How many heads of one token a thread takes at a time, and what it needs for them. */
struct Share {
  int64_t heads, packed, most_keys;
};

Share share_of(const Request &request, int threads) {
  const int64_t last = request.position + request.q->rows - 1;
  Share share = {0, packed_cols_of(COLI_FORMAT_F32, request.width),
                 last + 1 < request.window ? last + 1 : request.window};
  if (request.entries && request.ratio > 0)
    share.most_keys +=
        request.selected ? request.selected->cols : visible_entries(last, request.ratio, request.entries->rows);
  const int64_t fixed = kBlock * (share.packed + 2) + 2 * share.most_keys, each = share.packed + share.most_keys + 6;
  const int64_t room = (kThreadScratchFloats - fixed) / each;
  if (fixed >= kThreadScratchFloats || room < 1) return share;
  const int64_t even = request.q->rows >= threads ? request.heads : (request.heads + threads - 1) / threads;
  share.heads = (even + 3) / 4 * 4 < room ? (even + 3) / 4 * 4 : room;
  return share;
}

/* Heads first .. first + count of one token. */
void attend(const Request &request, const Keys &keys, const Share &share, int64_t token, int64_t first, int64_t count,
            coli_matrix *y, float *scratch) {
  const int64_t total_keys = keys.count(), packed = share.packed;
  const float **key_rows = reinterpret_cast<const float **>(scratch);
  const float **block_at = key_rows + share.most_keys, **q_at = block_at + kBlock;
  float **out = const_cast<float **>(q_at + count);
  float *sums = reinterpret_cast<float *>(out + count);
  float *block_rows = sums + 2 * count, *q_rows = block_rows + kBlock * packed, *scores = q_rows + count * packed;
  for (int64_t head = 0; head < count; ++head) {
    q_at[head] = q_rows + head * packed;
    out[head] = row_of(y, token) + (first + head) * request.width;
    pack_row_for(COLI_FORMAT_F32, row_of(request.q, token) + (first + head) * request.width, request.width,
                 q_rows + head * packed);
  }
  for (int64_t rank = 0; rank < total_keys; ++rank) key_rows[rank] = keys.row(rank);
  for (int64_t begin = 0, end = 0; begin < total_keys; begin = end) {
    end = keys.block_end(begin);
    for (int64_t rank = begin; rank < end; ++rank) {
      block_at[rank - begin] = block_rows + (rank - begin) * packed;
      pack_row_for(COLI_FORMAT_F32, key_rows[rank], request.width, block_rows + (rank - begin) * packed);
    }
    dots(q_at, count, block_at, end - begin, packed, scores + begin, total_keys);
  }
  for (int64_t head = 0; head < count; ++head) {
    const float sink = row_of(request.sinks, 0)[first + head];
    float *row = scores + head * total_keys;
    float most = sink;
    for (int64_t rank = 0; rank < total_keys; ++rank) {
      row[rank] = row[rank] * request.scale;
      most = row[rank] > most ? row[rank] : most;
    }
    for (int64_t rank = 0; rank < total_keys; ++rank) row[rank] = coli_exp(row[rank] - most);
    float total = 0.0f;
    for (int64_t begin = 0, end = 0; begin < total_keys; begin = end) {
      end = keys.block_end(begin);
      float sum = 0.0f;
      for (int64_t rank = begin; rank < end; ++rank) sum = sum + row[rank];
      total = total + sum;
    }
    sums[head] = total + coli_exp(sink - most);
    for (int64_t channel = 0; channel < request.width; ++channel) out[head][channel] = 0.0f;
  }
  for (int64_t begin = 0, end = 0; begin < total_keys; begin = end) {
    end = keys.block_end(begin);
    weigh(scores + begin, total_keys, count, key_rows + begin, end - begin, request.width, out);
  }
  for (int64_t head = 0; head < count; ++head)
    for (int64_t channel = 0; channel < request.width; ++channel) out[head][channel] = out[head][channel] / sums[head];
}

/* The largest magnitude as bits: anything from 0x7f800000 is infinity or NaN. */
uint32_t peak(const float *values, int64_t count) {
  uint32_t most = 0;
  for (int64_t index = 0; index < count; ++index) {
    const uint32_t bits = coli_bits(values[index]) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return most;
}

void raise_to(uint32_t *shared, uint32_t value) {
  uint32_t seen = __atomic_load_n(shared, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange_n(shared, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/* Whether the magnitudes of q and keys alone rule out a score that is not finite: true for all but broken inputs, and much cheaper
 * than computing every score before the first output is written. */
bool scores_stay_finite(coli_context *context, const Request &request) {
  uint32_t q_peak = 0, key_peak = 0;
  const int64_t tokens = request.q->rows;
  parallel(context, tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      raise_to(&q_peak, peak(row_of(request.q, token), request.heads * request.width));
      const Keys keys = keys_of(request, token);
      /* Raw keys and visible entries of a chunk overlap: the first token looks at all of its own, the others at what they add. */
      const int64_t before = token == 0 ? 0 : keys_of(request, token - 1).entries;
      const int64_t raw_from = token == 0 ? 0 : keys.raw - 1;
      for (int64_t rank = raw_from; rank < keys.raw; ++rank) raise_to(&key_peak, peak(keys.row(rank), request.width));
      for (int64_t rank = keys.chosen ? 0 : before; rank < keys.entries; ++rank)
        raise_to(&key_peak, peak(keys.row(keys.raw + rank), request.width));
    }
  });
  if (q_peak >= 0x7f800000u || key_peak >= 0x7f800000u || !is_finite(request.scale)) return false;
  const double dot = static_cast<double>(coli_float(q_peak)) * static_cast<double>(coli_float(key_peak)) *
                     static_cast<double>(request.width);
  const double scaled = dot * static_cast<double>(request.scale < 0.0f ? -request.scale : request.scale);
  return dot < 1e38 && scaled < 1e38;
}

}  // namespace

coli_status attention(coli_context *context, coli_stream *, const coli_matrix *q, int64_t heads,
                      const coli_matrix *ring, int64_t position, int64_t window, const coli_matrix *entries,
                      int64_t ratio, const coli_matrix *selected, const coli_matrix *sinks, float scale, coli_matrix *y,
                      coli_error *error) {
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
    if (!is_finite(row_of(sinks, 0)[head]))
      return fail(error, COLI_SITE_NONFINITE, "sinks[%lld] is not finite", static_cast<long long>(head));

  if (!scores_stay_finite(context, request)) {
    int64_t bad = -1; /* token * heads + head */
    parallel(context, tokens * heads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        const Keys keys = keys_of(request, item / heads);
        for (int64_t rank = 0; rank < keys.count(); ++rank)
          if (!is_finite(score_of(request, keys, row_of(q, item / heads) + item % heads * width, rank)))
            __atomic_store_n(&bad, item, __ATOMIC_RELAXED);
      }
    });
    if (bad >= 0)
      return fail(error, COLI_SITE_NONFINITE, "a score of token %lld, head %lld is not finite",
                  static_cast<long long>(bad / heads), static_cast<long long>(bad % heads));
  }
  const Share share = share_of(request, context->threads);
  const int64_t per_item = share.heads > 0 ? share.heads : 1, items = (heads + per_item - 1) / per_item;
  parallel(context, tokens * items, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t token = item / items, first = item % items * per_item,
                    count = heads - first < per_item ? heads - first : per_item;
      const Keys keys = keys_of(request, token);
      if (share.heads > 0)
        attend(request, keys, share, token, first, count, y, thread_scratch(context, worker));
      else
        attend_exact(request, keys, token, first, thread_scratch(context, worker), row_of(y, token) + first * width);
    }
  });
  return COLI_DONE;
}

}  // namespace coli_cpu
