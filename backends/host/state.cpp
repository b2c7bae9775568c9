#include "state.h"

#include <string>

namespace coli {

Library::Library(uintptr_t address) : table(reinterpret_cast<const coli_backend *>(address)) {
  if (!table) throw py::value_error("Library: the table's address is null");
  /* The loader has verified the table; this only stops an address that is something else. */
  if (table->size < sizeof(coli_backend) || table->platform != COLI_PLATFORM_TAG || table->abi_major != COLI_ABI_MAJOR)
    throw py::value_error("Library: the address is not that of a verified coli_backend table");
}

Pinned::Pinned(py::handle owner) {
  if (owner.is_none()) return;
  if (PyObject_GetBuffer(owner.ptr(), &view_, PyBUF_SIMPLE)) throw py::error_already_set();
  held_ = true;
}

Pinned &Pinned::operator=(Pinned &&other) noexcept {
  drop();
  view_ = other.view_; /* our own pointers only: numpy and bytes do not point into the struct */
  held_ = other.held_;
  other.held_ = false;
  return *this;
}

void Pinned::drop() {
  if (held_) PyBuffer_Release(&view_);
  held_ = false;
}

ContextState::ContextState(std::shared_ptr<Library> owner, int32_t threads, uint64_t workspace_bytes)
    : library(std::move(owner)) {
  const auto create = library->find<coli_context_create_fn>(COLI_SLOT_context_create);
  if (!create) raise_absent("context_create");
  coli_context_config config{};
  config.size = sizeof config;
  config.threads = threads;
  config.workspace_bytes = workspace_bytes;
  coli_error error = fresh_error();
  const coli_status status = alone([&] { return create(&config, &handle, &error); });
  if (status != COLI_DONE) raise_status(status, error);
}

void ContextState::destroy() {
  if (!handle) return;
  const auto function = library->find<coli_context_destroy_fn>(COLI_SLOT_context_destroy);
  coli_error error = fresh_error();
  alone([&] {
    coli_context *last = handle;
    handle = nullptr;
    return function && last ? function(last, &error) : COLI_DONE;
  });
}

void ContextState::close() {
  while (!weights.empty()) {
    const auto weight = weights.begin()->second.lock();
    if (!weight) {
      weights.erase(weights.begin());
      continue;
    }
    weight->close();
  }
  destroy();
}

Weight::Weight(const Context &context, int32_t format, int64_t rows, int64_t cols, py::handle codes, py::handle scales)
    : state(std::make_shared<WeightState>(context.state)) {
  ContextState &owner = *context.state;
  const auto bind = owner.library->find<coli_weight_bind_fn>(COLI_SLOT_weight_bind);
  if (!bind) raise_absent("weight_bind");
  state->codes = Pinned(codes);
  state->scales = Pinned(scales);
  coli_weight_desc &desc = state->desc;
  desc.size = sizeof desc;
  desc.format = format;
  desc.rows = rows;
  desc.cols = cols;
  desc.codes = state->codes.data();
  desc.codes_bytes = state->codes.bytes();
  desc.scales = state->scales.data();
  desc.scales_bytes = state->scales.bytes();
  coli_error error = fresh_error();
  bool closed = false;
  const coli_status status = owner.alone([&]() -> coli_status {
    closed = !owner.handle;
    return closed ? COLI_FAILED : bind(owner.handle, &desc, &state->handle, &error);
  });
  if (closed) throw py::value_error("Weight: the context is closed");
  if (status != COLI_DONE) {
    state->handle = nullptr;
    raise_status(status, error);
  }
  owner.weights[state.get()] = state;
}

void WeightState::refill(py::handle new_codes, py::handle new_scales) {
  const auto function = context->library->find<coli_weight_refill_fn>(COLI_SLOT_weight_refill);
  if (!function) raise_absent("weight_refill");
  Pinned next_codes(new_codes), next_scales(new_scales);
  coli_weight_desc next = desc;
  next.codes = next_codes.data();
  next.codes_bytes = next_codes.bytes();
  next.scales = next_scales.data();
  next.scales_bytes = next_scales.bytes();
  coli_error error = fresh_error();
  bool released = false;
  const coli_status status = context->alone([&]() -> coli_status {
    released = !handle;
    return released ? COLI_FAILED : function(context->handle, nullptr, handle, &next, &error);
  });
  if (released) throw py::value_error("Weight: it is released");
  if (status != COLI_DONE) raise_status(status, error);
  /* The old memory may go only now. */
  desc = next;
  codes = std::move(next_codes);
  scales = std::move(next_scales);
}

void WeightState::upload() {
  const auto function = context->library->find<coli_weight_upload_fn>(COLI_SLOT_weight_upload);
  if (!function) raise_absent("weight_upload");
  coli_error error = fresh_error();
  bool released = false;
  const coli_status status = context->alone([&]() -> coli_status {
    released = !handle;
    return released ? COLI_FAILED : function(context->handle, nullptr, handle, &error);
  });
  if (released) throw py::value_error("Weight: it is released");
  if (status != COLI_DONE) raise_status(status, error);
}

void WeightState::close() {
  const auto function = context->library->find<coli_weight_release_fn>(COLI_SLOT_weight_release);
  coli_error error = fresh_error();
  context->alone([&] {
    coli_weight *last = handle;
    handle = nullptr;
    return function && last && context->handle ? function(context->handle, last, &error) : COLI_DONE;
  });
  context->weights.erase(this);
  codes.drop();
  scales.drop();
}

}  // namespace coli
