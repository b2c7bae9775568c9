/* slots.h: the functions behind the table, declared from the one list. */
#ifndef COLI_CPU_SLOTS_H
#define COLI_CPU_SLOTS_H

#include "../abi/coli_backend.h"

namespace coli_cpu {

#define COLI_SERVICE(requirement, name, ...) coli_status name(__VA_ARGS__, coli_error *error);
#define COLI_STAGE(requirement, name, ...) \
  coli_status name(coli_context *context, coli_stream *stream, __VA_ARGS__, coli_error *error);
#include "../abi/coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE

}  // namespace coli_cpu

#endif
