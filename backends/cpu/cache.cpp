/* cache.cpp: the raw ring and the compressor. */
#include "check.h"
#include "exact.h"
#include "rows.h"
#include "slots.h"

namespace coli_cpu {

namespace {
constexpr int64_t kMaxPosition = INT64_C(1) << 40;
}

coli_status kv_append(coli_context *context, coli_stream *, const coli_matrix *kv, int64_t position, coli_matrix *ring,
                      coli_error *error) {
  (void)context;
  COLI_TRY(check_floats(error, "kv", kv, kAny, kAny));
  COLI_TRY(check_floats(error, "ring", ring, kAny, kv->cols));
  COLI_TRY(check_range(error, "position", position, 0, kMaxPosition));
  COLI_TRY(check_range(error, "kv.rows", kv->rows, 0, ring->rows));
  for (int64_t token = 0; token < kv->rows; ++token)
    __builtin_memcpy(row_of(ring, (position + token) % ring->rows), row_of(kv, token),
                     static_cast<size_t>(kv->cols) * 4);
  return COLI_DONE;
}

namespace {

/* Where the compressor finds kv and gate of a position: in the rows of this call or in the state that earlier calls left. */
struct Slots {
  const coli_matrix *kv, *gate, *ape, *kv_state, *gate_state;
  int64_t position;

  const float *kv_row(int64_t at) const {
    return at >= position ? row_of(kv, at - position) : row_of(kv_state, at % kv_state->rows);
  }
  float gate_at(int64_t at, int64_t channel) const {
    if (at < position) return row_of(gate_state, at % gate_state->rows)[channel];
    return row_of(gate, at - position)[channel] + row_of(ape, at % ape->rows)[channel];
  }
};

struct Window {
  int64_t first; /* position of the first slot */
  int64_t slots;
  int64_t own; /* position from which the second half of the channels counts (overlap), else `first` */
};

/* Softmax over the slots of a window, separately for each channel, and the weighted sum. */
void pool_window(const Slots &slots, const Window &window, bool overlap, int64_t width, float *out) {
  for (int64_t channel = 0; channel < width; ++channel) {
    const int64_t late = overlap ? channel + width : channel;
    float most = slots.gate_at(window.first, window.first >= window.own ? late : channel);
    for (int64_t at = window.first + 1; at < window.first + window.slots; ++at) {
      const float gate = slots.gate_at(at, at >= window.own ? late : channel);
      most = gate > most ? gate : most;
    }
    float denominator = 0.0f, numerator = 0.0f;
    for (int64_t at = window.first; at < window.first + window.slots; ++at) {
      const int64_t from = at >= window.own ? late : channel;
      const float e = coli_exp(slots.gate_at(at, from) - most);
      denominator = denominator + e;
      numerator = coli_fma(e, slots.kv_row(at)[from], numerator);
    }
    out[channel] = numerator / denominator;
  }
}

}  // namespace

coli_status compress(coli_context *context, coli_stream *, const coli_matrix *kv, const coli_matrix *gate,
                     const coli_matrix *ape, int64_t position, int64_t overlap, const coli_matrix *gain, float epsilon,
                     const coli_matrix *cosine, const coli_matrix *sine, coli_matrix *kv_state, coli_matrix *gate_state,
                     coli_matrix *entries, coli_error *error) {
  const FloatState exact;
  COLI_TRY(check_floats(error, "gain", gain, 1, kAny));
  const int64_t width = gain->cols, wide = overlap ? 2 * width : width;
  COLI_TRY(check_floats(error, "kv", kv, kAny, wide));
  COLI_TRY(check_floats(error, "gate", gate, kv->rows, wide));
  COLI_TRY(check_floats(error, "ape", ape, kAny, wide));
  const int64_t ratio = ape->rows, tokens = kv->rows;
  COLI_TRY(check_range(error, "ape.rows", ratio, 1, INT64_C(1) << 30));
  COLI_TRY(check_range(error, "position", position, 0, kMaxPosition));
  COLI_TRY(check_floats(error, "kv_state", kv_state, overlap ? 2 * ratio : ratio, wide));
  COLI_TRY(check_floats(error, "gate_state", gate_state, kv_state->rows, wide));
  COLI_TRY(check_floats(error, "entries", entries, kAny, width));
  const int64_t first_window = position / ratio, end_window = (position + tokens) / ratio,
                windows = end_window - first_window;
  COLI_TRY(check_range(error, "entries.rows", entries->rows, windows > 0 ? end_window : 0, INT64_C(1) << 48));
  COLI_TRY(check_floats(error, "cosine", cosine, kAny, kAny));
  COLI_TRY(check_floats(error, "sine", sine, cosine->rows, cosine->cols));
  COLI_TRY(check_range(error, "cosine.rows", cosine->rows, windows, INT64_C(1) << 48));
  COLI_TRY(check_range(error, "2 * cosine.cols", 2 * cosine->cols, 0, width));

  const Slots slots = {kv, gate, ape, kv_state, gate_state, position};
  const auto window_of = [&](int64_t index) {
    const int64_t own = index * ratio;
    const int64_t first = overlap && index > 0 ? own - ratio : own;
    return Window{first, own + ratio - first, own};
  };
  /* Every gate that is stored or used now, before anything is written. */
  int64_t oldest = position;
  if (windows > 0) oldest = window_of(first_window).first < position ? window_of(first_window).first : position;
  for (int64_t at = oldest; at < position + tokens; ++at)
    for (int64_t channel = 0; channel < wide; ++channel)
      if (!is_finite(slots.gate_at(at, channel)))
        return fail(error, COLI_SITE_NONFINITE, "gate of position %lld, channel %lld is not finite",
                    static_cast<long long>(at), static_cast<long long>(channel));

  parallel(context, windows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      float *entry = row_of(entries, first_window + item);
      pool_window(slots, window_of(first_window + item), overlap != 0, width, entry);
      norm_row(entry, row_of(gain, 0), epsilon, width, entry);
      rotate_row(row_of(cosine, item), row_of(sine, item), cosine->cols, false, width, entry);
    }
  });
  const int64_t skipped = tokens > kv_state->rows ? tokens - kv_state->rows : 0;
  for (int64_t token = skipped; token < tokens; ++token) {
    const int64_t at = position + token;
    float *kept = row_of(gate_state, at % gate_state->rows);
    __builtin_memcpy(row_of(kv_state, at % kv_state->rows), row_of(kv, token), static_cast<size_t>(wide) * 4);
    for (int64_t channel = 0; channel < wide; ++channel) kept[channel] = slots.gate_at(at, channel);
  }
  return COLI_DONE;
}

}  // namespace coli_cpu
