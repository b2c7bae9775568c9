/* shim.cpp: the CPU plays a CUDA device: see cuda_runtime.h and cuda_runtime_api.h beside this file. */
#include <fenv.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

struct ShimStream {
  int device;
  cudaError_t error;
};

namespace {

constexpr int kForward = 0, kBackward = 1, kRandom = 2, kBreaking = 3, kOld = 4, kNoCode = 5, kBlackwell = 6,
              kHopper = 7, kDevices = 8;
constexpr size_t kDeviceBytes = size_t{64} << 20;
constexpr size_t kStackBytes = size_t{64} << 10;
constexpr size_t kPage = 4096;
constexpr unsigned kSeed = 20;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string last_text; /* of the last launch that was stopped */

/* ---- A block ----------------------------------------------------------------------------------------------------- */

enum class Wait { kNothing, kBarrier, kShuffle, kEnded };

struct Fiber {
  ucontext_t context;
  uint3 index;
  Wait wait;
  uint32_t mask, value, taken[32]; /* of a shuffle: taken holds what each lane gave */
};

struct Block {
  const std::function<void()> *body;
  std::vector<Fiber> fibers;
  std::vector<unsigned char> shared;
  unsigned char *stacks;
  ucontext_t scheduler;
  int running = 0;
  std::string stopped;
  std::mt19937 random{kSeed};
};

thread_local Block *active = nullptr;

void yield() { swapcontext(&active->fibers[static_cast<size_t>(active->running)].context, &active->scheduler); }

void run_fiber() {
  (*active->body)();
  active->fibers[static_cast<size_t>(active->running)].wait = Wait::kEnded;
  yield();
}

/* The next fiber that waits for nothing, in the order of the device; -1: there is none. */
int next_fiber(Block &block, int order) {
  const int count = static_cast<int>(block.fibers.size());
  const int start = order == kRandom ? static_cast<int>(block.random() % static_cast<unsigned>(count)) : block.running;
  for (int step = 0; step < count; ++step) {
    const int at = order == kBackward ? (start - step + count) % count : (start + step) % count;
    if (block.fibers[static_cast<size_t>(at)].wait == Wait::kNothing) return at;
  }
  return -1;
}

/* Nothing runs: all wait at the barrier, or have ended, or something is wrong. False: the block is over. */
bool pass_barrier(Block &block) {
  size_t at_barrier = 0, ended = 0;
  for (const Fiber &fiber : block.fibers) {
    at_barrier += fiber.wait == Wait::kBarrier;
    ended += fiber.wait == Wait::kEnded;
  }
  if (ended == block.fibers.size()) return false;
  if (at_barrier == block.fibers.size()) {
    for (Fiber &fiber : block.fibers) fiber.wait = Wait::kNothing;
    return true;
  }
  block.stopped = std::to_string(at_barrier) + " threads wait at a barrier and " +
                  std::to_string(block.fibers.size() - at_barrier - ended) + " in a shuffle for others that never come";
  return false;
}

void run_block(Block &block, int order) {
  std::fill(block.shared.begin(), block.shared.end(), static_cast<unsigned char>(0xff));
  for (size_t at = 0; at < block.fibers.size(); ++at) {
    Fiber &fiber = block.fibers[at];
    fiber.wait = Wait::kNothing;
    fiber.index = {static_cast<unsigned>(at), 0, 0};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = block.stacks + at * kStackBytes;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  block.running = order == kBackward ? static_cast<int>(block.fibers.size()) - 1 : 0;
  for (;;) {
    const int next = next_fiber(block, order);
    if (next < 0) {
      if (!pass_barrier(block)) return;
      continue;
    }
    block.running = next;
    threadIdx = block.fibers[static_cast<size_t>(next)].index;
    swapcontext(&block.scheduler, &block.fibers[static_cast<size_t>(next)].context);
    if (!block.stopped.empty()) return;
  }
}

std::vector<uint64_t> block_order(uint64_t count, int order) {
  std::vector<uint64_t> made(count);
  for (uint64_t at = 0; at < count; ++at) made[at] = order == kBackward ? count - 1 - at : at;
  if (order == kRandom) std::shuffle(made.begin(), made.end(), std::mt19937(kSeed));
  return made;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

struct Piece {
  void *mapping;
  size_t mapped_bytes, bytes;
  int device;
};

std::mutex memory_lock;
std::map<const unsigned char *, Piece> pieces; /* by address */

size_t used_bytes(int device) {
  size_t used = 0;
  for (const auto &[at, piece] : pieces) used += piece.device == device ? piece.bytes : 0;
  return used;
}

/* Whether [data, data + bytes) lies in one piece of the current device. */
bool on_device(const void *data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(memory_lock);
  const unsigned char *at = static_cast<const unsigned char *>(data);
  auto found = pieces.upper_bound(at);
  if (found == pieces.begin()) return false;
  --found;
  return found->second.device == current_device && at + bytes <= found->first + found->second.bytes;
}

cudaError_t keep(cudaError_t error) { return error == cudaSuccess ? error : (last_error = error); }

}  // namespace

namespace coli_shim {

void launch(const std::function<void()> &body, dim3 grid, dim3 block_size, size_t shared_bytes, cudaStream_t stream) {
  if (!stream || stream->device != current_device || block_size.x == 0 || block_size.x > 1024 || grid.y > 65535) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  if (stream->error != cudaSuccess) return;
  if (current_device == kBreaking) {
    last_text = "the shim's device 3 breaks every kernel off";
    stream->error = cudaErrorLaunchFailure;
    return;
  }
  fenv_t kept;
  fegetenv(&kept);
  fesetenv(FE_DFL_ENV);
  Block block;
  block.body = &body;
  block.fibers.resize(block_size.x);
  block.shared.resize(shared_bytes + 16);
  const size_t stacks_bytes = block_size.x * kStackBytes;
  void *stacks =
      mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) abort();
  block.stacks = static_cast<unsigned char *>(stacks);
  active = &block;
  blockDim = block_size;
  gridDim = grid;
  for (const uint64_t at : block_order(uint64_t{grid.x} * grid.y, current_device)) {
    blockIdx = {static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x), 0};
    run_block(block, current_device);
    if (block.stopped.empty()) continue;
    last_text = block.stopped + " (block " + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ")";
    stream->error = cudaErrorLaunchFailure;
    break;
  }
  active = nullptr;
  munmap(stacks, stacks_bytes);
  fesetenv(&kept);
}

unsigned char *dynamic_shared() {
  const uintptr_t at = reinterpret_cast<uintptr_t>(active->shared.data());
  return active->shared.data() + (16 - at % 16) % 16;
}

void stop(const char *what) {
  active->stopped = what;
  yield();
  abort(); /* never run again */
}

uint32_t exchange(uint32_t mask, uint32_t value, int from) {
  Fiber &mine = active->fibers[static_cast<size_t>(active->running)];
  Fiber *const warp = &active->fibers[static_cast<size_t>(active->running / 32 * 32)];
  const int lanes =
      static_cast<int>(std::min<size_t>(32, active->fibers.size() - static_cast<size_t>(active->running / 32 * 32)));
  if (!(mask >> (active->running % 32) & 1u)) stop("a shuffle whose mask leaves its own lane out");
  if (!(mask >> from & 1u)) stop("a shuffle from a lane that its mask leaves out");
  mine.mask = mask;
  mine.value = value;
  mine.wait = Wait::kShuffle;
  bool complete = true;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    if (lane >= lanes || warp[lane].wait == Wait::kEnded) stop("a shuffle whose mask names a lane that has ended");
    if (warp[lane].wait != Wait::kShuffle)
      complete = false;
    else if (warp[lane].mask != mask)
      stop("lanes of one shuffle came with different masks");
  }
  if (complete) {
    for (int to = 0; to < lanes; ++to) {
      if (!(mask >> to & 1u)) continue;
      for (int lane = 0; lane < lanes; ++lane) warp[to].taken[lane] = warp[lane].value;
      warp[to].wait = Wait::kNothing;
    }
  }
  yield();
  return mine.taken[from];
}

}  // namespace coli_shim

void __syncthreads() {
  active->fibers[static_cast<size_t>(active->running)].wait = Wait::kBarrier;
  yield();
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
  }
  return "unknown";
}

const char *cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? last_text.c_str() : "as the shim has it";
}

cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { return *count = kDevices, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = current_device, cudaSuccess; }

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return keep(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  const bool major = attribute == cudaDevAttrComputeCapabilityMajor;
  *value = major ? 8 : 6;
  if (device == kOld) *value = major ? 7 : 5;
  if (device == kBlackwell) *value = major ? 12 : 0;
  if (device == kHopper) *value = major ? 9 : 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  *properties = {};
  cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&properties->minor, cudaDevAttrComputeCapabilityMinor, device);
  properties->integrated = 0;
  strcpy(properties->name, "the CPU as a CUDA device");
  return cudaSuccess;
}

cudaError_t coli_shim_check_code() {
  return keep(current_device == kNoCode ? cudaErrorNoKernelImageForDevice : cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  const std::lock_guard<std::mutex> lock(memory_lock);
  *total_bytes = kDeviceBytes;
  *free_bytes = kDeviceBytes - used_bytes(current_device);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  *stream = new ShimStream{current_device, cudaSuccess};
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return keep(stream->error); }

cudaError_t cudaMalloc(void **data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(memory_lock);
  if (bytes == 0 || bytes > kDeviceBytes - used_bytes(current_device)) return keep(cudaErrorMemoryAllocation);
  const size_t held = (bytes + 15) / 16 * 16, pages = (held + kPage - 1) / kPage * kPage;
  void *mapping = mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return keep(cudaErrorMemoryAllocation);
  unsigned char *const end = static_cast<unsigned char *>(mapping) + pages;
  mprotect(end, kPage, PROT_NONE);
  memset(end - held, 0xff, held);
  pieces[end - held] = {mapping, pages + kPage, bytes, current_device};
  *data = end - held;
  return cudaSuccess;
}

cudaError_t cudaFree(void *data) {
  const std::lock_guard<std::mutex> lock(memory_lock);
  const auto found = pieces.find(static_cast<unsigned char *>(data));
  if (found == pieces.end() || found->second.device != current_device) return keep(cudaErrorInvalidValue);
  munmap(found->second.mapping, found->second.mapped_bytes);
  pieces.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void **data, size_t bytes) {
  *data = malloc(bytes);
  return keep(*data ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *data) {
  free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return keep(cudaErrorInvalidValue);
  if (stream->device != current_device) return keep(cudaErrorInvalidValue);
  if (stream->error != cudaSuccess) return cudaSuccess; /* it shows when the stream is waited for */
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  for (size_t row = 0; row < height; ++row) {
    unsigned char *const into = static_cast<unsigned char *>(to) + row * to_pitch;
    const unsigned char *const out_of = static_cast<const unsigned char *>(from) + row * from_pitch;
    if (on_device(into, width) != to_device || on_device(out_of, width) != from_device)
      return keep(cudaErrorInvalidValue);
    memcpy(into, out_of, width);
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  if (stream->device != current_device || !on_device(to, bytes)) return keep(cudaErrorInvalidValue);
  memset(to, value, bytes);
  return cudaSuccess;
}
