/* orders.cu: the dot loops of docs/numerics.md for one warp per row, as a CUDA thread would run them: a lane owns 16 contiguous
 * bytes (one LDG.E.128). Compiled to look at the machine code only: run.py counts loads, contractions and slots per weight. */
#include <stdint.h>

#define ACROSS 0xffffffffu

static __device__ __forceinline__ float tree(float v) {
#pragma unroll
  for (int step = 16; step >= 1; step /= 2) v = __fadd_rn(v, __shfl_down_sync(ACROSS, v, step));
  return v;
}

/* x in the order of the lanes, 4 columns of a lane together: [pass][column / 4][lane][4], so that a warp reads 512 bytes at once. */
static __device__ __forceinline__ const float4 *lane_x(const float *x, int64_t pass, int piece) {
  return reinterpret_cast<const float4 *>(x + pass * 32 * piece) + (threadIdx.x & 31);
}

/* e2m1 / 2 from bits 3..0: sign, and a magnitude made of an exponent moved up and a subnormal put right by the smaller-of-two rule
 * of simd.h (m/2 * 2^0 instead of 2^-1 * (1 + m/2)). */
static __device__ __forceinline__ float fp4_value(uint32_t code) {
  const float raw = __uint_as_float(((code & 7u) << 22) + 0x3e800000u);
  const float magnitude = fminf(raw, __fmaf_rn(raw, 2.0f, -0.5f));
  return __uint_as_float(__float_as_uint(magnitude) | ((code & 8u) << 28));
}

extern "C" __global__ void dot_fp4(const uint4 *codes, const uint8_t *scales, const float *x, float *y,
                                   int64_t passes) {
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x & 31;
  float acc = 0.0f;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const uint4 words = codes[(row * passes + pass) * 32 + lane];
    const float factor = __uint_as_float((scales[(row * passes + pass) * 32 + lane] + 1u) << 23);
    const float4 *in = lane_x(x, pass, 32);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    float sum = 0.0f;
#pragma unroll
    for (int quad = 0; quad < 8; ++quad) {
      const float4 v = in[quad * 32];
      const uint32_t bits = word[quad / 2] >> (16 * (quad % 2));
      sum = __fmaf_rn(fp4_value(bits), v.x, sum);
      sum = __fmaf_rn(fp4_value(bits >> 4), v.y, sum);
      sum = __fmaf_rn(fp4_value(bits >> 8), v.z, sum);
      sum = __fmaf_rn(fp4_value(bits >> 12), v.w, sum);
    }
    acc = __fmaf_rn(factor, sum, acc);
  }
  acc = tree(acc);
  if (lane == 0) y[row] = acc;
}

static __device__ __forceinline__ float fp8_value(uint32_t code) {
  const float raw = __uint_as_float(((code & 0x7fu) << 20) | 0x38000000u);
  const float magnitude = fminf(raw, __fmaf_rn(raw, 2.0f, -6.103515625e-5f));
  return __uint_as_float(__float_as_uint(magnitude) | ((code & 0x80u) << 24));
}

extern "C" __global__ void dot_fp8(const uint4 *codes, const uint8_t *scales, const float *x, float *y,
                                   int64_t passes) {
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x & 31;
  float acc = 0.0f;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const uint4 words = codes[(row * passes + pass) * 32 + lane];
    const float factor = __uint_as_float((scales[row / 128 * passes * 4 + pass * 4 + lane / 8] + 8u) << 23);
    const float4 *in = lane_x(x, pass, 16);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    float sum = 0.0f;
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {
      const float4 v = in[quad * 32];
      sum = __fmaf_rn(fp8_value(word[quad]), v.x, sum);
      sum = __fmaf_rn(fp8_value(word[quad] >> 8), v.y, sum);
      sum = __fmaf_rn(fp8_value(word[quad] >> 16), v.z, sum);
      sum = __fmaf_rn(fp8_value(word[quad] >> 24), v.w, sum);
    }
    acc = __fmaf_rn(factor, sum, acc);
  }
  acc = tree(acc);
  if (lane == 0) y[row] = acc;
}

extern "C" __global__ void dot_bf16(const uint4 *codes, const float *x, float *y, int64_t passes) {
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x & 31;
  float acc = 0.0f;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const uint4 words = codes[(row * passes + pass) * 32 + lane];
    const float4 *in = lane_x(x, pass, 8);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {
      const float4 v = in[quad * 32];
      acc = __fmaf_rn(__uint_as_float(word[2 * quad] << 16), v.x, acc);
      acc = __fmaf_rn(__uint_as_float(word[2 * quad] & 0xffff0000u), v.y, acc);
      acc = __fmaf_rn(__uint_as_float(word[2 * quad + 1] << 16), v.z, acc);
      acc = __fmaf_rn(__uint_as_float(word[2 * quad + 1] & 0xffff0000u), v.w, acc);
    }
  }
  acc = tree(acc);
  if (lane == 0) y[row] = acc;
}

/* A product and a sum that the definition keeps apart: no FFMA may come of it. */
extern "C" __global__ void not_contracted(const float *a, const float *b, const float *c, float *y) {
  y[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x] + c[threadIdx.x];
}
