/* faults.cu: kernels with one mistake each, which the shim must find. FAULT numbers: see test_shim.py. */
#include "../../../../backends/cuda/device.cuh"

using coli_cuda::kAllLanes;

static void ends_before_barrier() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}

static void barrier_in_half_a_warp(float *y) {
  if (threadIdx.x < 16) __syncthreads();
  y[threadIdx.x] = __shfl_down_sync(kAllLanes, 1.0f, 1);
}

static void mask_of_too_many(float *y) {
  if (threadIdx.x >= 16) return;
  y[threadIdx.x] = __shfl_down_sync(kAllLanes, 1.0f, 1);
}

static void masks_differ(float *y) {
  y[threadIdx.x] = __shfl_down_sync(threadIdx.x == 3 ? 0x0000ffffu : kAllLanes, 1.0f, 1);
}

static void mask_without_itself(float *y) { y[threadIdx.x] = __shfl_down_sync(0x7fffffffu, 1.0f, 1); }

static void reads_what_nobody_wrote(float *y) {
  COLI_DYNAMIC_SHARED(shared);
  y[threadIdx.x] = reinterpret_cast<float *>(shared)[threadIdx.x];
}

/* Each thread reads what its neighbour writes, without a barrier between. */
static void missing_barrier(float *y) {
  COLI_DYNAMIC_SHARED(shared);
  float *const values = reinterpret_cast<float *>(shared);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  y[threadIdx.x] = values[(threadIdx.x + 1) % 64];
}

static void selector_with_signs(float *y) { y[threadIdx.x] = static_cast<float>(__byte_perm(1, 2, 0x8000)); }

static void sound(float *y) {
  COLI_DYNAMIC_SHARED(shared);
  float *const values = reinterpret_cast<float *>(shared);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  y[threadIdx.x] = values[(threadIdx.x + 1) % 64] + __shfl_down_sync(kAllLanes, values[threadIdx.x], 2);
}

/* Run one fault on a device with 64 threads; `y` [64] lies on the host. Returns what CUDA says of the stream. */
extern "C" __attribute__((visibility("default"))) int run_fault(int fault, int device, float *y, const char **text) {
  cudaSetDevice(device);
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const dim3 grid(1), block(64);
  switch (fault) {
    case 0:
      COLI_LAUNCH(ends_before_barrier, grid, block, 256, stream);
      break;
    case 1:
      COLI_LAUNCH(barrier_in_half_a_warp, grid, block, 256, stream, y);
      break;
    case 2:
      COLI_LAUNCH(mask_of_too_many, grid, block, 256, stream, y);
      break;
    case 3:
      COLI_LAUNCH(masks_differ, grid, block, 256, stream, y);
      break;
    case 4:
      COLI_LAUNCH(mask_without_itself, grid, block, 256, stream, y);
      break;
    case 5:
      COLI_LAUNCH(reads_what_nobody_wrote, grid, block, 256, stream, y);
      break;
    case 6:
      COLI_LAUNCH(missing_barrier, grid, block, 256, stream, y);
      break;
    case 7:
      COLI_LAUNCH(selector_with_signs, grid, block, 256, stream, y);
      break;
    default:
      COLI_LAUNCH(sound, grid, block, 256, stream, y);
  }
  const cudaError_t status = cudaStreamSynchronize(stream);
  *text = cudaGetErrorString(status);
  cudaStreamDestroy(stream);
  cudaSetDevice(0);
  return status;
}
