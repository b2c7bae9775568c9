/* orders.cpp: what this machine can do, measured beside the kernels: bytes read a second, and f32 fma a second. */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include <vector>

namespace {

double now() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
}

typedef float Wide __attribute__((vector_size(BYTES)));
typedef uint64_t Words __attribute__((vector_size(BYTES)));

struct Task {
  const unsigned char *data;
  uint64_t bytes;
  uint64_t seen;
  float left;
};

void *read_all(void *argument) {
  Task *task = static_cast<Task *>(argument);
  const Words *at = reinterpret_cast<const Words *>(task->data);
  Words a = {}, b = {}, c = {}, d = {};
  for (uint64_t index = 0; index + 4 <= task->bytes / sizeof(Words); index += 4) {
    a ^= at[index];
    b ^= at[index + 1];
    c ^= at[index + 2];
    d ^= at[index + 3];
  }
  a ^= b ^ c ^ d;
  task->seen = a[0] ^ a[1];
  return nullptr;
}

constexpr int kChains = 12;
constexpr int64_t kRounds = 2000000;

void *multiply(void *argument) {
  Task *task = static_cast<Task *>(argument);
  Wide acc[kChains];
  const Wide x = task->left + Wide{}, y = 0.5f + Wide{};
  for (int chain = 0; chain < kChains; ++chain) acc[chain] = static_cast<float>(chain) + Wide{};
  for (int64_t round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain)
      acc[chain] = acc[chain] * x + y; /* contracted: compiled with -ffp-contract=fast */
  for (int chain = 1; chain < kChains; ++chain) acc[0] += acc[chain];
  task->left = acc[0][0];
  return nullptr;
}

double timed(void *(*work)(void *), std::vector<Task> *tasks) {
  std::vector<pthread_t> threads(tasks->size());
  const double start = now();
  for (size_t index = 1; index < threads.size(); ++index)
    pthread_create(&threads[index], nullptr, work, &(*tasks)[index]);
  work(&(*tasks)[0]);
  for (size_t index = 1; index < threads.size(); ++index) pthread_join(threads[index], nullptr);
  return now() - start;
}

}  // namespace

/* Bytes a second with which `threads` threads read `bytes` bytes, each its own part. */
extern "C" double read_rate(const unsigned char *data, uint64_t bytes, int threads) {
  std::vector<Task> tasks(static_cast<size_t>(threads));
  const uint64_t part = bytes / static_cast<uint64_t>(threads) / 4096 * 4096;
  for (size_t index = 0; index < tasks.size(); ++index) tasks[index] = Task{data + part * index, part, 0, 0};
  return static_cast<double>(part * static_cast<uint64_t>(threads)) / timed(read_all, &tasks);
}

/* Floating point operations a second of f32 fma (two each) on vectors of BYTES bytes. */
extern "C" double fma_rate(int threads) {
  std::vector<Task> tasks(static_cast<size_t>(threads), Task{nullptr, 0, 0, 0.999f});
  const double each = 2.0 * kChains * kRounds * (BYTES / 4.0);
  return each * threads / timed(multiply, &tasks);
}
