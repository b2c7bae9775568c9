/* What lives behind the Python objects: the library's table, a context with its lock, weights with the memory that they
 * are bound to. A weight keeps its context, a context its library, so that whatever the order in which Python drops
 * them, handles are released before the context and the context before anything else. */
#ifndef COLI_HOST_STATE_H
#define COLI_HOST_STATE_H

#include <pybind11/pybind11.h>

#include <map>
#include <memory>
#include <mutex>

#include "coli_backend.h"

namespace coli {

namespace py = pybind11;

/* Raise Declined or Failed for a status that is not DONE. */
[[noreturn]] void raise_status(coli_status status, const coli_error &error);
/* Raise Declined(0): the table has no function for the slot. */
[[noreturn]] void raise_absent(const char *slot);

inline coli_error fresh_error() {
  coli_error error;
  error.size = sizeof error;
  error.code = 0;
  error.text[0] = 0;
  return error;
}

struct Library {
  const coli_backend *table;

  explicit Library(uintptr_t address);

  /* The function of a slot, null when it is absent. */
  template <class Function>
  Function find(int slot) const {
    if (static_cast<uint32_t>(slot) >= table->slot_count) return nullptr;
    return reinterpret_cast<Function>(table->slots[slot].function);
  }
};

/* Host memory that a weight reads: held as a buffer, so that its owner can neither free nor resize it. */
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(py::handle owner);
  Pinned(Pinned &&other) noexcept { *this = std::move(other); }
  Pinned &operator=(Pinned &&other) noexcept;
  ~Pinned() { drop(); }

  const void *data() const { return held_ ? view_.buf : nullptr; }
  uint64_t bytes() const { return held_ ? static_cast<uint64_t>(view_.len) : 0; }
  void drop();

 private:
  Py_buffer view_{};
  bool held_ = false;
};

struct WeightState;

struct ContextState {
  std::shared_ptr<Library> library;
  std::mutex lock; /* one call at a time */
  coli_context *handle = nullptr;
  std::map<WeightState *, std::weak_ptr<WeightState>> weights; /* guarded by the GIL */

  ContextState(std::shared_ptr<Library> owner, int32_t threads, uint64_t workspace_bytes);
  ~ContextState() { destroy(); }
  ContextState(const ContextState &) = delete;

  /* Release every weight, then destroy the context. */
  void close();
  void destroy();

  /* Run call() without the GIL, alone on this context. */
  template <class Call>
  auto alone(Call call) {
    py::gil_scoped_release released;
    const std::lock_guard<std::mutex> guard(lock);
    return call();
  }
};

struct WeightState {
  std::shared_ptr<ContextState> context;
  coli_weight *handle = nullptr; /* changes under the context's lock */
  coli_weight_desc desc{};
  Pinned codes, scales;

  explicit WeightState(std::shared_ptr<ContextState> owner) : context(std::move(owner)) {}
  ~WeightState() { close(); }
  WeightState(const WeightState &) = delete;

  void refill(py::handle new_codes, py::handle new_scales);
  void upload();
  void close();
};

struct Context {
  std::shared_ptr<ContextState> state;
};

struct Weight {
  std::shared_ptr<WeightState> state;

  Weight(const Context &context, int32_t format, int64_t rows, int64_t cols, py::handle codes, py::handle scales);
};

}  // namespace coli
#endif
