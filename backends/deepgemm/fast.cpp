/* fast.cpp: the fast products of a device of exactly 12.0, by DeepGEMM's kernels. */
#include "../cuda/context.h"
#include "../cuda/product.h"
#include "../cuda/slots.h"
#include "gemm.h"
#include "tensor_map.h"

namespace coli_deepgemm {

using coli_common::decline;

namespace {

constexpr int64_t kMostCols = INT64_C(1) << 25; /* the grid that spreads scales ends at 65535 blocks of 1024 columns */
constexpr int64_t kAlignment = 128;             /* of every piece of the workspace; a tensor map wants 32 */

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/* The workspace, handed out from its beginning. */
struct Pieces {
  uint8_t *data;
  int64_t used;
  uint8_t *take(int64_t bytes) {
    uint8_t *const piece = data + used;
    used += round_up(bytes, kAlignment);
    return piece;
  }
};

/* One call. */
struct Product {
  coli_context *context;
  const coli_weight *weight;
  bool fp4;
  int64_t groups, rows, cols, words; /* of a group; words: lines of scales */
  Encode encode;
};

/* `tokens` tokens of one group, whose operands lie on the device. */
struct Part {
  const float *x;
  float *y;
  int64_t tokens, x_stride, y_stride;
  uint8_t *codes, *a_scales, *b_scales; /* in the workspace */
};

int64_t code_pitch(const Product &product) { return round_up(product.cols, 16); }
int64_t scale_lines(int64_t lines) { return round_up(lines, 4); } /* rows of a tensor map are multiples of 16 bytes */

coli_status make_maps(const Product &product, const Part &part, int64_t group, Gemm *gemm, coli_error *error) {
  const TileSize tile = tile_of(part.tokens);
  const uint32_t depth = static_cast<uint32_t>(kWordCols);
  const Matrix::Kind codes = product.fp4 ? Matrix::kNibbles : Matrix::kBytes;
  const uint8_t *const weight = product.weight->codes + group * product.rows * product.weight->pitch;
  COLI_TRY(encode_map(product.encode, "activations",
                      {Matrix::kBytes, part.codes, part.tokens, product.cols, code_pitch(product), tile.rows, depth},
                      &gemm->a, error));
  COLI_TRY(encode_map(product.encode, "the weight",
                      {codes, weight, product.rows, product.cols, product.weight->pitch, tile.cols, depth}, &gemm->b,
                      error));
  const int64_t a_lines = scale_lines(part.tokens), b_lines = scale_lines(product.rows);
  COLI_TRY(encode_map(product.encode, "scales of activations",
                      {Matrix::kWords, part.a_scales, product.words, a_lines, a_lines * 4, 1, tile.rows},
                      &gemm->a_scales, error));
  COLI_TRY(encode_map(product.encode, "scales of the weight",
                      {Matrix::kWords, part.b_scales, product.words, b_lines, b_lines * 4, 1, tile.cols},
                      &gemm->b_scales, error));
  gemm->y = part.y;
  gemm->tokens = static_cast<uint32_t>(part.tokens);
  gemm->rows = static_cast<uint32_t>(product.rows);
  gemm->cols = static_cast<uint32_t>(product.cols);
  gemm->y_stride = static_cast<uint32_t>(part.y_stride);
  return COLI_DONE;
}

coli_status run_part(const Product &product, const Part &part, int64_t group, const Gemm &gemm, cudaStream_t stream,
                     coli_error *error) {
  Quantize quantize = {};
  quantize.x = part.x;
  quantize.codes = part.codes;
  quantize.scales = reinterpret_cast<uint32_t *>(part.a_scales);
  quantize.tokens = part.tokens;
  quantize.cols = product.cols;
  quantize.x_stride = part.x_stride;
  quantize.pitch = code_pitch(product);
  quantize.scale_stride = scale_lines(part.tokens);
  COLI_CUDA_TRY("rounding of activations", launch_quantize(quantize, stream));
  Spread spread = {};
  spread.from = product.weight->scales;
  spread.scales = reinterpret_cast<uint32_t *>(part.b_scales);
  spread.first_row = group * product.rows;
  spread.rows = product.rows;
  spread.cols = product.cols;
  spread.from_cols = product.weight->host.scale_cols;
  spread.scale_stride = scale_lines(product.rows);
  COLI_CUDA_TRY("scales of the weight", launch_spread(product.fp4, spread, stream));
  COLI_CUDA_TRY("product", launch_gemm(product.fp4, gemm, stream));
  return COLI_DONE;
}

coli_status check_device(const coli_context *context, coli_error *error) {
  int major = 0, minor = 0;
  COLI_CUDA_TRY("compute capability",
                cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context->device));
  COLI_CUDA_TRY("compute capability",
                cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, context->device));
  if (major == 12 && minor == 0) return COLI_DONE;
  return decline(error, COLI_REASON_DEVICE, "device %d has compute capability %d.%d; DeepGEMM's kernels are for 12.0",
                 context->device, major, minor);
}

coli_status check_shape(const coli_weight *weight, const coli_matrix *x, int64_t groups, const coli_matrix *y,
                        coli_error *error) {
  const coli_common::WeightFacts &facts = weight->host;
  if (facts.cols == 0) return decline(error, COLI_REASON_SHAPE, "a product without columns");
  if (facts.format == COLI_FORMAT_FP4_GROUP && facts.cols % kWordCols != 0)
    return decline(error, COLI_REASON_SHAPE, "%lld columns of FP4, expected a multiple of %lld",
                   static_cast<long long>(facts.cols), static_cast<long long>(kWordCols));
  const int64_t most = INT32_MAX - 256; /* the kernel counts in 32 bits, and a tile further */
  if (facts.cols > kMostCols || facts.rows / groups > most || x->rows > most || y->stride > most)
    return decline(error, COLI_REASON_SHAPE, "%lld tokens, %lld x %lld: more than the kernels count",
                   static_cast<long long>(x->rows), static_cast<long long>(facts.rows),
                   static_cast<long long>(facts.cols));
  return COLI_DONE;
}

coli_status multiply(coli_context *context, coli_stream *stream, int32_t format, const coli_weight *weight,
                     const coli_matrix *x, int64_t groups, coli_matrix *y, coli_error *error) {
  COLI_TRY(coli_cuda::check_product(context, format, weight, x, groups, y, error));
  const coli_common::WeightFacts &facts = weight->host;
  COLI_TRY(check_device(context, error));
  if (x->rows == 0 || facts.rows == 0) return COLI_DONE;
  COLI_TRY(check_shape(weight, x, groups, y, error));

  const coli_cuda::OnDevice current(context);
  const cudaStream_t on = coli_cuda::stream_of(context, stream);
  Product product = {};
  product.context = context;
  product.weight = weight;
  product.fp4 = format == COLI_FORMAT_FP4_GROUP;
  product.groups = groups;
  product.rows = facts.rows / groups;
  product.cols = facts.cols;
  product.words = round_up(facts.cols, kWordCols) / kWordCols;
  COLI_TRY(find_encode(&product.encode, error));
  COLI_CUDA_TRY("DeepGEMM's kernels", prepare_gemm());

  /* Results of all tokens and the weight's scales first, then as many tokens as fit behind them. */
  const bool own_x = x->place == COLI_PLACE_HOST, own_y = y->place == COLI_PLACE_HOST;
  const int64_t x_pitch = own_x ? round_up(x->cols * 4, 16) : x->stride * 4;
  const int64_t y_pitch = own_y ? round_up(y->cols * 4, 16) : y->stride * 4;
  const int64_t room = static_cast<int64_t>(context->workspace_bytes);
  Pieces pieces = {context->workspace, 0};
  uint8_t *const results = own_y ? pieces.take(y_pitch * x->rows) : static_cast<uint8_t *>(y->data);
  uint8_t *const b_scales = pieces.take(product.words * scale_lines(product.rows) * 4);
  const int64_t for_token = (own_x ? x_pitch : 0) + code_pitch(product) + product.words * 4;
  const int64_t for_ends = 3 * kAlignment + product.words * 3 * 4; /* pieces and lines of scales are rounded up */
  const int64_t fits = (room - pieces.used - for_ends) / for_token;
  if (fits < 1)
    return decline(error, COLI_REASON_MEMORY, "%lld tokens need %lld bytes of workspace, it has %lld",
                   static_cast<long long>(x->rows), static_cast<long long>(pieces.used + for_ends + for_token),
                   static_cast<long long>(room));
  const int64_t step = fits < x->rows ? fits : x->rows;
  Part part = {};
  uint8_t *const copied = own_x ? pieces.take(x_pitch * step) : nullptr;
  part.codes = pieces.take(code_pitch(product) * step);
  part.a_scales = pieces.take(product.words * scale_lines(step) * 4);
  part.b_scales = b_scales;
  part.x_stride = x_pitch / 4;
  part.y_stride = y_pitch / 4;

  /* Every tensor map is made before the first launch: nothing is written when one cannot be. */
  for (int round = 0; round < 2; ++round) {
    const bool rehearsal = round == 0;
    for (int64_t first = 0; first < x->rows; first += step) {
      part.tokens = x->rows - first < step ? x->rows - first : step;
      if (own_x && !rehearsal) {
        coli_matrix rows = *x;
        rows.data = static_cast<float *>(x->data) + first * x->stride;
        rows.rows = part.tokens;
        COLI_TRY(coli_cuda::copy_in(context, on, &rows, copied, x_pitch, error));
      }
      for (int64_t group = 0; group < groups; ++group) {
        const float *const from =
            own_x ? reinterpret_cast<float *>(copied) : static_cast<float *>(x->data) + first * x->stride;
        part.x = from + group * product.cols;
        part.y = reinterpret_cast<float *>(results + first * y_pitch) + group * product.rows;
        Gemm gemm = {};
        COLI_TRY(make_maps(product, part, group, &gemm, error));
        if (!rehearsal) COLI_TRY(run_part(product, part, group, gemm, on, error));
      }
    }
  }
  if (own_y) return coli_cuda::copy_out(context, on, results, y_pitch, y, error);
  /* The workspace serves the next call, on any stream. */
  COLI_CUDA_TRY("work on the device", cudaStreamSynchronize(on));
  return COLI_DONE;
}

/* What DeepGEMM declines, cuBLASLt may take, where the library has both; the first reason is the one that is told. */
coli_status fast_matmul(coli_context *context, coli_stream *stream, int32_t format, const coli_weight *weight,
                        const coli_matrix *x, int64_t groups, coli_matrix *y, coli_error *error) {
  const coli_status status = multiply(context, stream, format, weight, x, groups, y, error);
#if defined(COLI_BLOCK_SCALE)
  if (status == COLI_DECLINED) {
    coli_error other = {};
    other.size = sizeof other;
    const coli_status second = coli_cuda::block_scaled_product(context, stream, format, weight, x, groups, y, &other);
    if (second == COLI_FAILED && error) coli_common::fail(error, other.code, "%s", other.text);
    if (second != COLI_DECLINED) return second;
  }
#endif
  return status;
}

}  // namespace

}  // namespace coli_deepgemm

namespace coli_cuda {

namespace serving {

coli_status fast_matmul_fp8(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                            int64_t groups, coli_matrix *y, coli_error *error) {
  return coli_deepgemm::fast_matmul(context, stream, COLI_FORMAT_FP8_BLOCK, weight, x, groups, y, error);
}

coli_status fast_matmul_fp4(coli_context *context, coli_stream *stream, const coli_weight *weight, const coli_matrix *x,
                            int64_t groups, coli_matrix *y, coli_error *error) {
  return coli_deepgemm::fast_matmul(context, stream, COLI_FORMAT_FP4_GROUP, weight, x, groups, y, error);
}

}  // namespace serving

}  // namespace coli_cuda
