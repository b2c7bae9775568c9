/* replay.cpp: replay LIBRARY VECTORS [THREADS [DEVICE]]
 *
 * Opens a backend by path, shakes hands, replays every call of a vector file (format: backends/vectors.py) and compares bytes.
 * Matrices get a stride of their own and guards around their rows; every matrix is also offered in a place that no backend can
 * reach, which must be refused with all outputs as they were. Exit 0: all equal. 1: something differs. 2: cannot run. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "../../../backends/abi/coli_backend.h"

namespace {

[[noreturn]] void stop(const std::string &what) {
  std::fprintf(stderr, "replay: %s\n", what.c_str());
  std::exit(2);
}

struct Reader {
  std::vector<unsigned char> data;
  size_t at = 0;

  const unsigned char *blob(uint64_t count) {
    if (count > data.size() - at) stop("the vector file ends early");
    const unsigned char *found = data.data() + at;
    at += static_cast<size_t>((count + 7) / 8 * 8);
    return found;
  }
  int64_t word() {
    int64_t value;
    std::memcpy(&value, blob(8), 8);
    return value;
  }
};

struct Backend {
  const coli_backend *table;
  coli_context *context = nullptr;
  coli_error error{};

  template <class Function>
  Function slot(int index) const {
    return reinterpret_cast<Function>(table->slots[index].function);
  }
  const char *name_of(int index) const { return table->slots[index].name; }
  coli_error *fresh() {
    error = coli_error{};
    error.size = sizeof error;
    return &error;
  }
};

constexpr uint32_t kGuard = 0xdeadbeefu;
constexpr int32_t kNowhere = 99;
constexpr int64_t kMargin = 3; /* elements of guard behind each row */

struct Argument {
  int64_t kind = 0, integer = 0;
  float number = 0;
  std::vector<uint32_t> memory, before, expected; /* memory: rows of cols + kMargin elements */
  coli_matrix matrix{};
  std::vector<std::vector<unsigned char>> blobs;
  std::vector<coli_weight *> weights;
  coli_weight_list list{};
};

std::vector<uint32_t> spread(const unsigned char *from, int64_t rows, int64_t cols) {
  std::vector<uint32_t> made(static_cast<size_t>(rows * (cols + kMargin)), kGuard);
  for (int64_t row = 0; row < rows && cols > 0; ++row)
    std::memcpy(&made[static_cast<size_t>(row * (cols + kMargin))], from + row * cols * 4,
                static_cast<size_t>(cols) * 4);
  return made;
}

void read_matrix(Reader &reader, Argument &argument) {
  const int64_t type = reader.word(), rows = reader.word(), cols = reader.word();
  argument.before = spread(reader.blob(static_cast<uint64_t>(rows * cols * 4)), rows, cols);
  if (argument.kind == 4) argument.expected = spread(reader.blob(static_cast<uint64_t>(rows * cols * 4)), rows, cols);
  argument.memory = argument.before;
  argument.matrix = {argument.memory.data(), rows, cols, cols + kMargin, static_cast<int32_t>(type), COLI_PLACE_HOST};
}

void read_weight(Reader &reader, Argument &argument, Backend &backend) {
  coli_weight_desc desc{};
  desc.size = sizeof desc;
  desc.format = static_cast<int32_t>(reader.word());
  desc.rows = reader.word();
  desc.cols = reader.word();
  desc.codes_bytes = static_cast<uint64_t>(reader.word());
  desc.scales_bytes = static_cast<uint64_t>(reader.word());
  /* Blocks of exactly their size, so that a read past the end is seen by the sanitizers. */
  const unsigned char *codes = reader.blob(desc.codes_bytes), *scales = reader.blob(desc.scales_bytes);
  argument.blobs.emplace_back(codes, codes + desc.codes_bytes);
  desc.codes = argument.blobs.back().data();
  argument.blobs.emplace_back(scales, scales + desc.scales_bytes);
  desc.scales = desc.scales_bytes ? argument.blobs.back().data() : nullptr;
  coli_weight *weight = nullptr;
  if (backend.slot<coli_weight_bind_fn>(COLI_SLOT_weight_bind)(backend.context, &desc, &weight, backend.fresh()) !=
      COLI_DONE)
    stop(std::string("weight_bind: ") + backend.error.text);
  if (backend.slot<coli_weight_upload_fn>(COLI_SLOT_weight_upload)(backend.context, nullptr, weight, backend.fresh()) !=
      COLI_DONE)
    stop(std::string("weight_upload: ") + backend.error.text);
  argument.weights.push_back(weight);
}

Argument read_argument(Reader &reader, Backend &backend) {
  Argument argument;
  argument.kind = reader.word();
  if (argument.kind == 1) argument.integer = reader.word();
  if (argument.kind == 2) {
    const int64_t bits = reader.word();
    std::memcpy(&argument.number, &bits, 4);
  }
  if (argument.kind == 3 || argument.kind == 4) read_matrix(reader, argument);
  if (argument.kind == 5) read_weight(reader, argument, backend);
  if (argument.kind == 6) {
    const int64_t count = reader.word();
    argument.blobs.reserve(static_cast<size_t>(2 * count));
    for (int64_t index = 0; index < count; ++index) read_weight(reader, argument, backend);
    argument.list = {argument.weights.data(), count};
  }
  if (argument.kind < 0 || argument.kind > 6) stop("unknown kind of argument");
  return argument;
}

template <class Type>
struct As;
template <>
struct As<int64_t> {
  static int64_t from(Argument &argument) { return argument.integer; }
};
template <>
struct As<float> {
  static float from(Argument &argument) { return argument.number; }
};
template <>
struct As<coli_matrix *> {
  static coli_matrix *from(Argument &argument) { return argument.kind == 0 ? nullptr : &argument.matrix; }
};
template <>
struct As<const coli_matrix *> : As<coli_matrix *> {};
template <>
struct As<const coli_weight *> {
  static const coli_weight *from(Argument &argument) { return argument.kind == 0 ? nullptr : argument.weights.at(0); }
};
template <>
struct As<const coli_weight_list *> {
  static const coli_weight_list *from(Argument &argument) { return &argument.list; }
};

template <class... Types, size_t... Index>
coli_status call(void (*)(Types...), std::index_sequence<Index...>, Backend &backend, int slot,
                 std::vector<Argument> &arguments) {
  if (arguments.size() != sizeof...(Types)) stop("a case has the wrong number of arguments");
  typedef coli_status (*Function)(coli_context *, coli_stream *, Types..., coli_error *);
  if (!backend.slot<Function>(slot)) stop(std::string("the library leaves the stage out: ") + backend.name_of(slot));
  return backend.slot<Function>(slot)(backend.context, nullptr, As<Types>::from(arguments[Index])..., backend.fresh());
}

template <class... Types>
coli_status call(void (*kind)(Types...), Backend &backend, int slot, std::vector<Argument> &arguments) {
  return call(kind, std::index_sequence_for<Types...>(), backend, slot, arguments);
}

#define COLI_SERVICE(requirement, name, ...)
#define COLI_STAGE(requirement, name, ...) typedef void name##_arguments(__VA_ARGS__);
#include "../../../backends/abi/coli_slots.inc"
#undef COLI_STAGE

coli_status call_stage(const std::string &stage, Backend &backend, std::vector<Argument> &arguments) {
#define COLI_STAGE(requirement, name, ...) \
  if (stage == #name) return call(static_cast<name##_arguments *>(nullptr), backend, COLI_SLOT_##name, arguments);
#include "../../../backends/abi/coli_slots.inc"
#undef COLI_STAGE
  stop("unknown stage " + stage);
}
#undef COLI_SERVICE

struct Expected {
  const char *name;
  const char *text;
  bool mandatory;
};

#define COLI_MANDATORY_MANDATORY true
#define COLI_MANDATORY_OPTIONAL false
#define COLI_SERVICE(requirement, name, ...) {#name, #name "(" #__VA_ARGS__ ")", COLI_MANDATORY_##requirement},
/* The library of a device may leave stages out; a call of one stops below. */
#define COLI_STAGE(requirement, name, ...) {#name, #name "(" #__VA_ARGS__ ")", false},
const Expected kSlots[] = {
#include "../../../backends/abi/coli_slots.inc"
};
#undef COLI_SERVICE
#undef COLI_STAGE

void shake_hands(const coli_backend *table) {
  if (!table || table->size < sizeof(coli_backend) || table->platform != COLI_PLATFORM_TAG ||
      table->abi_major != COLI_ABI_MAJOR)
    stop("handshake: size, platform or ABI");
  if (table->slot_count != COLI_SLOT_COUNT) stop("handshake: slot count");
  if (table->error_size != sizeof(coli_error) || table->matrix_size != sizeof(coli_matrix) ||
      table->weight_desc_size != sizeof(coli_weight_desc) || table->weight_list_size != sizeof(coli_weight_list) ||
      table->context_config_size != sizeof(coli_context_config) ||
      table->device_info_size != sizeof(coli_device_info) || table->memory_info_size != sizeof(coli_memory_info))
    stop("handshake: struct sizes");
  for (int index = 0; index < COLI_SLOT_COUNT; ++index) {
    const coli_slot &slot = table->slots[index];
    if (std::strcmp(slot.name, kSlots[index].name) != 0 || slot.signature != coli_signature(kSlots[index].text))
      stop(std::string("handshake: signature of ") + kSlots[index].name);
    if (kSlots[index].mandatory && !slot.function) stop(std::string("handshake: absent ") + kSlots[index].name);
  }
}

coli_backend_query_fn open_library(const char *path) {
#if defined(_WIN32)
  HMODULE library = LoadLibraryA(path);
  if (!library) stop("cannot open " + std::string(path));
  return reinterpret_cast<coli_backend_query_fn>(
      reinterpret_cast<void *>(GetProcAddress(library, "coli_backend_query")));
#else
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) stop(dlerror());
  return reinterpret_cast<coli_backend_query_fn>(dlsym(library, "coli_backend_query"));
#endif
}

bool outputs_equal(const std::vector<Argument> &arguments, bool after, const std::string &what) {
  bool equal = true;
  for (size_t index = 0; index < arguments.size(); ++index) {
    const Argument &argument = arguments[index];
    if (argument.kind != 3 && argument.kind != 4) continue;
    const std::vector<uint32_t> &wanted = after && argument.kind == 4 ? argument.expected : argument.before;
    size_t differing = 0, first = 0;
    for (size_t at = 0; at < wanted.size(); ++at)
      if (argument.memory[at] != wanted[at] && differing++ == 0) first = at;
    if (differing == 0) continue;
    const size_t stride = static_cast<size_t>(argument.matrix.stride);
    std::printf("%s: argument %zu differs in %zu places, first at [%zu, %zu]: %08x, expected %08x\n", what.c_str(),
                index, differing, first / stride, first % stride, argument.memory[first], wanted[first]);
    equal = false;
  }
  return equal;
}

bool replay(const std::string &stage, Backend &backend, std::vector<Argument> &arguments) {
  bool good = true;
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].kind != 3 && arguments[index].kind != 4) continue;
    arguments[index].matrix.place = kNowhere;
    if (call_stage(stage, backend, arguments) != COLI_DECLINED) {
      std::printf("%s: argument %zu in an unknown place was not declined\n", stage.c_str(), index);
      good = false;
    }
    arguments[index].matrix.place = COLI_PLACE_HOST;
    good = outputs_equal(arguments, false, stage + " after a refusal") && good;
  }
  if (call_stage(stage, backend, arguments) != COLI_DONE) {
    std::printf("%s: %d: %s\n", stage.c_str(), backend.error.code, backend.error.text);
    return false;
  }
  return outputs_equal(arguments, true, stage) && good;
}

}  // namespace

int main(int count, char **words) {
  if (count < 3) stop("usage: replay LIBRARY VECTORS [THREADS [DEVICE]]");
  const int threads = count > 3 ? std::atoi(words[3]) : 1;
  Reader reader;
  std::FILE *file = std::fopen(words[2], "rb");
  if (!file) stop("cannot open " + std::string(words[2]));
  unsigned char buffer[65536];
  for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, file)) > 0;)
    reader.data.insert(reader.data.end(), buffer, buffer + got);
  std::fclose(file);
  if (std::memcmp(reader.blob(8), "COLIVEC1", 8) != 0) stop("not a vector file");

  const coli_backend_query_fn query = open_library(words[1]);
  if (!query) stop("no coli_backend_query");
  Backend backend;
  backend.table = query();
  shake_hands(backend.table);
  coli_context_config config{};
  config.size = sizeof config;
  config.threads = threads;
  config.device = count > 4 ? std::atoi(words[4]) : 0;
  config.workspace_bytes = COLI_WORKSPACE_BYTES(threads);
  if (backend.slot<coli_context_create_fn>(COLI_SLOT_context_create)(&config, &backend.context, backend.fresh()) !=
      COLI_DONE)
    stop(std::string("context_create: ") + backend.error.text);
  const int64_t cases = reader.word();
  int64_t failed = 0;
  for (int64_t index = 0; index < cases; ++index) {
    char stage[33] = {};
    std::memcpy(stage, reader.blob(32), 32);
    const int64_t arguments_count = reader.word();
    std::vector<Argument> arguments;
    arguments.reserve(static_cast<size_t>(arguments_count)); /* matrices point into their argument */
    for (int64_t argument = 0; argument < arguments_count; ++argument)
      arguments.push_back(read_argument(reader, backend));
    for (Argument &argument : arguments) argument.list.items = argument.weights.data();
    failed += !replay(stage, backend, arguments);
    for (Argument &argument : arguments)
      for (coli_weight *weight : argument.weights)
        backend.slot<coli_weight_release_fn>(COLI_SLOT_weight_release)(backend.context, weight, backend.fresh());
  }
  backend.slot<coli_context_destroy_fn>(COLI_SLOT_context_destroy)(backend.context, backend.fresh());
  std::printf("%s: %lld of %lld calls equal with %d threads\n", backend.table->name,
              static_cast<long long>(cases - failed), static_cast<long long>(cases), threads);
  return failed == 0 ? 0 : 1;
}
