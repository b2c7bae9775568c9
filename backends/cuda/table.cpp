/* table.cpp: the handshake. */
#include "slots.h"

namespace coli_cuda {

namespace {

constexpr uint64_t signature(const char *text) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *text; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * UINT64_C(0x100000001b3);
  return hash;
}

template <class Function>
void (*erase(Function function))(void) {
  return reinterpret_cast<void (*)(void)>(function);
}

#define COLI_SERVICE(requirement, name, ...) \
  {#name, signature(#name "(" #__VA_ARGS__ ")"), erase(static_cast<coli_##name##_fn>(&coli_cuda::name))},
#define COLI_STAGE(requirement, name, ...) \
  {#name, signature(#name "(" #__VA_ARGS__ ")"), erase(static_cast<coli_##name##_fn>(serving::name))},
const coli_slot kSlots[] = {
#include "../abi/coli_slots.inc"
};
#undef COLI_SERVICE
#undef COLI_STAGE

const coli_backend kBackend = {
    sizeof(coli_backend),     COLI_PLATFORM_TAG,        COLI_ABI_MAJOR,
    COLI_ABI_MINOR,           COLI_SLOT_COUNT,          kSlots,
    COLI_CUDA_NAME,           sizeof(coli_error),       sizeof(coli_matrix),
    sizeof(coli_weight_desc), sizeof(coli_weight_list), sizeof(coli_context_config),
    sizeof(coli_device_info), sizeof(coli_memory_info), 0,
};

}  // namespace

}  // namespace coli_cuda

extern "C" COLI_EXPORT const coli_backend *coli_backend_query(void) { return &coli_cuda::kBackend; }
