/* fast.cpp: the products of the fast mode: x is rounded, both operands are laid out, cuBLASLt multiplies. */
#include "block_scale.h"
#include "mxfp8.h"
#include "product.h"
#include "slots.h"

namespace coli_cuda {

using coli_common::decline;

namespace {

constexpr int64_t kAreaAlignment = 256;
constexpr int64_t kMostScratch = INT64_C(32) << 20; /* what the library's own advice asks for; more is not used */

/* Where things lie in the workspace: results of all tokens, rounded activations, and a rest that holds x on its way in, then pieces of
 * the weight and the library's scratch. Sizes in bytes. */
struct Areas {
  int64_t tokens, cols, y_stride; /* padded */
  int64_t results, codes, scales, rest, scratch;
  int64_t piece_rows; /* rows of the weight at a time, whole scale tiles */
  bool in_place;      /* the weight's codes serve as they lie; its scales are laid out anew */
};

coli_status plan_areas(const coli_context *context, const coli_weight *weight, const coli_matrix *x, int64_t groups,
                       Areas *areas, coli_error *error) {
  const coli_common::WeightFacts &facts = weight->host;
  const int64_t group_rows = facts.rows / groups;
  Areas made = {};
  made.tokens = round_up(x->rows, kRowAlignment);
  made.cols = round_up(facts.cols, kRunCols);
  made.y_stride = round_up(facts.rows, kRowAlignment);
  made.in_place =
      facts.format == COLI_FORMAT_FP8_BLOCK && facts.cols % kRunCols == 0 && group_rows % kRowAlignment == 0;
  made.results = round_up(made.tokens * made.y_stride * 4, kAreaAlignment);
  made.codes = round_up(groups * made.tokens * made.cols, kAreaAlignment);
  made.scales = round_up(groups * scale_bytes(made.tokens, made.cols), kAreaAlignment);
  const int64_t fixed = made.results + made.codes + made.scales;
  const int64_t tile = scale_bytes(kScaleTileRows, made.cols) + (made.in_place ? 0 : kScaleTileRows * made.cols);
  const int64_t x_row = x->place == COLI_PLACE_HOST ? round_up(x->cols * 4, 16) : 0;
  const int64_t tile_area = round_up(tile, kAreaAlignment), least = fixed + (tile_area > x_row ? tile_area : x_row);
  const int64_t have = static_cast<int64_t>(context->workspace_bytes);
  if (least > have)
    return decline(error, COLI_REASON_MEMORY, "%lld tokens need %lld bytes of workspace, it has %lld",
                   static_cast<long long>(x->rows), static_cast<long long>(least), static_cast<long long>(have));
  made.rest = have - fixed;
  made.scratch = made.rest - tile_area < made.rest / 4 ? made.rest - tile_area : made.rest / 4;
  made.scratch = (made.scratch < kMostScratch ? made.scratch : kMostScratch) / kAreaAlignment * kAreaAlignment;
  made.piece_rows = (made.rest - made.scratch) / tile * kScaleTileRows;
  *areas = made;
  return COLI_DONE;
}

class FastProduct {
 public:
  FastProduct(coli_context *context, const coli_weight *weight, int64_t groups, const Areas &areas, cudaStream_t stream)
      : context_(context), weight_(weight), groups_(groups), areas_(areas), stream_(stream) {
    results_ = context->workspace;
    codes_ = results_ + areas.results;
    scales_ = codes_ + areas.codes;
    rest_ = scales_ + areas.scales;
  }

  /* Round x, as many tokens at a time as fit on their way from the host. */
  coli_status round_activations(const coli_matrix *x, coli_error *error) const {
    const bool host = x->place == COLI_PLACE_HOST;
    const int64_t cols = weight_->host.cols, pitch = host ? round_up(x->cols * 4, 16) : x->stride * 4;
    const int64_t room = host ? areas_.rest / pitch : x->rows, step = room < x->rows ? room : x->rows;
    for (int64_t first = 0; first < x->rows; first += step) {
      const int64_t count = x->rows - first < step ? x->rows - first : step;
      const float *from = static_cast<float *>(x->data) + first * x->stride;
      if (host) {
        coli_matrix part = *x;
        part.data = const_cast<float *>(from);
        part.rows = count;
        COLI_TRY(copy_in(context_, stream_, &part, rest_, pitch, error));
        from = reinterpret_cast<const float *>(rest_);
      }
      for (int64_t group = 0; group < groups_; ++group) {
        const Quantize call = {from + group * cols, pitch / 4, cols, first, count, first + count == x->rows};
        COLI_CUDA_TRY("rounding of activations", launch_quantize(call, activations(group), stream_));
      }
    }
    return COLI_DONE;
  }

  /* The results of one group, a piece of the weight at a time. */
  coli_status multiply_group(int64_t group, coli_error *error) const {
    const coli_common::WeightFacts &facts = weight_->host;
    const int64_t group_rows = facts.rows / groups_;
    for (int64_t first = 0; first < group_rows; first += areas_.piece_rows) {
      const int64_t count = group_rows - first < areas_.piece_rows ? group_rows - first : areas_.piece_rows;
      const int64_t row = group * group_rows + first;
      MxOperand piece = {};
      piece.rows = round_up(count, kRowAlignment);
      piece.cols = areas_.cols;
      piece.scales = rest_ + areas_.scratch;
      piece.codes =
          areas_.in_place ? weight_->codes + row * weight_->pitch : piece.scales + scale_bytes(count, piece.cols);
      piece.pitch = areas_.in_place ? weight_->pitch : piece.cols;
      const Expand expand = {weight_->codes, weight_->scales, weight_->pitch, facts.scale_cols, facts.cols, row,
                             count,          facts.format,    areas_.in_place};
      COLI_CUDA_TRY("layout of a weight", launch_expand(expand, piece, stream_));
      BlockScaledProduct product = {};
      product.weight = piece;
      product.x = activations(group);
      product.y = reinterpret_cast<float *>(results_) + row;
      product.y_stride = areas_.y_stride;
      product.scratch = rest_;
      product.scratch_bytes = static_cast<uint64_t>(areas_.scratch);
      COLI_TRY(multiply(context_, product, stream_, error));
    }
    return COLI_DONE;
  }

  /* Everything went well so far: hand the results over, and wait: the workspace serves the next call, on any stream. */
  coli_status deliver(coli_matrix *y, coli_error *error) const {
    const int64_t pitch = areas_.y_stride * 4;
    if (y->place == COLI_PLACE_HOST) return copy_out(context_, stream_, results_, pitch, y, error);
    COLI_CUDA_TRY("work on the device", cudaStreamSynchronize(stream_));
    COLI_CUDA_TRY("results", cudaMemcpy2DAsync(y->data, static_cast<size_t>(y->stride) * 4, results_,
                                               static_cast<size_t>(pitch), static_cast<size_t>(y->cols) * 4,
                                               static_cast<size_t>(y->rows), cudaMemcpyDeviceToDevice, stream_));
    COLI_CUDA_TRY("work on the device", cudaStreamSynchronize(stream_));
    return COLI_DONE;
  }

 private:
  MxOperand activations(int64_t group) const {
    return {codes_ + group * areas_.tokens * areas_.cols, scales_ + group * scale_bytes(areas_.tokens, areas_.cols),
            areas_.tokens, areas_.cols, areas_.cols};
  }

  coli_context *context_;
  const coli_weight *weight_;
  int64_t groups_;
  Areas areas_;
  cudaStream_t stream_;
  uint8_t *results_, *codes_, *scales_, *rest_;
};

}  // namespace

coli_status block_scaled_product(coli_context *context, coli_stream *stream, int32_t format, const coli_weight *weight,
                                 const coli_matrix *x, int64_t groups, coli_matrix *y, coli_error *error) {
  COLI_TRY(check_product(context, format, weight, x, groups, y, error));
  const coli_common::WeightFacts &facts = weight->host;
  if (x->rows == 0 || facts.rows == 0) return COLI_DONE;
  const OnDevice current(context);
  COLI_TRY(open_block_scale(context, error));
  if (facts.cols == 0) return decline(error, COLI_REASON_SHAPE, "a weight without columns");
  if (groups > 1 && facts.rows / groups % kRowAlignment != 0)
    return decline(error, COLI_REASON_SHAPE, "%lld groups of %lld rows, expected a multiple of %lld rows",
                   static_cast<long long>(groups), static_cast<long long>(facts.rows / groups),
                   static_cast<long long>(kRowAlignment));
  Areas areas;
  COLI_TRY(plan_areas(context, weight, x, groups, &areas, error));
  const FastProduct product(context, weight, groups, areas, stream_of(context, stream));
  COLI_TRY(product.round_activations(x, error));
  for (int64_t group = 0; group < groups; ++group) COLI_TRY(product.multiply_group(group, error));
  return product.deliver(y, error);
}

#if !defined(COLI_DEEPGEMM) /* whose own products come first */
namespace serving {

coli_status fast_matmul_fp8(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                            int64_t groups, coli_matrix *y, coli_error *error) {
  return block_scaled_product(context, stream, COLI_FORMAT_FP8_BLOCK, weight, x, groups, y, error);
}

coli_status fast_matmul_fp4(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                            int64_t groups, coli_matrix *y, coli_error *error) {
  return block_scaled_product(context, stream, COLI_FORMAT_FP4_GROUP, weight, x, groups, y, error);
}

}  // namespace serving
#endif

}  // namespace coli_cuda
