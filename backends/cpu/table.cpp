/* table.cpp: the handshake. */
#include "slots.h"

#ifndef COLI_CPU_NAME
#error "the build names the library: -DCOLI_CPU_NAME=\"cpu-...\""
#endif

namespace coli_cpu {

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

/* The stages of the fast mode have no form here that would be faster than the exact ones: absent slots. The names hide the declarations
 * of slots.h. */
constexpr decltype(nullptr) fast_matmul_fp8 = nullptr, fast_matmul_fp4 = nullptr;

/* Calls are complete on return, so there is nothing to order: the optional services (streams) are absent. */
#define COLI_SERVICE(requirement, name, ...) COLI_SERVICE_##requirement(name, #__VA_ARGS__)
#define COLI_SERVICE_OPTIONAL(name, arguments) {#name, signature(#name "(" arguments ")"), nullptr},
#define COLI_SERVICE_MANDATORY(name, arguments) \
  {#name, signature(#name "(" arguments ")"), erase(static_cast<coli_##name##_fn>(name))},
#define COLI_STAGE(requirement, name, ...) COLI_SERVICE_MANDATORY(name, #__VA_ARGS__)
const coli_slot kSlots[] = {
#include "../abi/coli_slots.inc"
};
#undef COLI_SERVICE
#undef COLI_STAGE

const coli_backend kBackend = {
    sizeof(coli_backend),
    COLI_PLATFORM_TAG,
    COLI_ABI_MAJOR,
    COLI_ABI_MINOR,
    COLI_SLOT_COUNT,
    kSlots,
    COLI_CPU_NAME,
    sizeof(coli_error),
    sizeof(coli_matrix),
    sizeof(coli_weight_desc),
    sizeof(coli_weight_list),
    sizeof(coli_context_config),
    sizeof(coli_device_info),
    sizeof(coli_memory_info),
    0,
};

}  // namespace

}  // namespace coli_cpu

extern "C" COLI_EXPORT const coli_backend *coli_backend_query(void) { return &coli_cpu::kBackend; }
