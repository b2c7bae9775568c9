/* coli.backends._host: the stages of a verified backend on numpy buffers, and double arithmetic that is the same
 * everywhere. */
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "coli_backend.h"
#include "exact.h"
#include "state.h"

namespace coli {
namespace {

PyObject *declined_type = nullptr;
PyObject *failed_type = nullptr;

[[noreturn]] void raise(PyObject *type, int32_t code, const char *text, size_t length) {
  const auto message =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), "replace"));
  if (!message) throw py::error_already_set();
  const py::object exception = py::handle(type)(code, message);
  exception.attr("code") = code;
  exception.attr("text") = message;
  PyErr_SetObject(type, exception.ptr());
  throw py::error_already_set();
}

/* "const coli_matrix *x, int64_t groups" -> x, groups */
std::vector<std::string> argument_names(const std::string &spelt) {
  std::vector<std::string> names;
  for (size_t start = 0; start < spelt.size();) {
    size_t end = spelt.find(',', start);
    if (end == std::string::npos) end = spelt.size();
    size_t last = end;
    while (last > start && spelt[last - 1] == ' ') --last;
    size_t first = last;
    while (first > start && spelt[first - 1] != ' ' && spelt[first - 1] != '*') --first;
    names.push_back(spelt.substr(first, last - first));
    start = end + 1;
  }
  return names;
}

/* One stage: the types of its arguments come from the function type that the header makes from the slot list. */
template <class Function>
struct Stage;

template <class... All>
struct Stage<coli_status (*)(All...)> {
  using Types = std::tuple<All...>; /* context, stream, arguments..., error */
  static constexpr size_t kCount = sizeof...(All) - 3;
  template <size_t I>
  using Argument = Taken<std::tuple_element_t<I + 2, Types>>;

  template <size_t... I>
  static void call(ContextState &context, int slot, const char *name, const std::vector<std::string> &names,
                   PyObject *args, std::index_sequence<I...>) {
    if (PyTuple_GET_SIZE(args) != static_cast<Py_ssize_t>(kCount))
      throw py::type_error(std::string(name) + ": takes " + std::to_string(kCount) + " arguments, got " +
                           std::to_string(PyTuple_GET_SIZE(args)));
    std::tuple<Argument<I>...> taken;
    (std::get<I>(taken).take(PyTuple_GET_ITEM(args, I), Site{name, names[I]}), ...);
    (void)((belongs(std::get<I>(taken), &context) ||
            (throw py::value_error(Site{name, names[I]}.text("the weight belongs to another context")), true)) &&
           ...);
    const auto function = context.library->find<coli_status (*)(All...)>(slot);
    if (!function) raise_absent(name);
    coli_error error = fresh_error();
    bool closed = false;
    const coli_status status = context.alone([&]() -> coli_status {
      closed = !context.handle || !(std::get<I>(taken).resolve() && ...);
      return closed ? COLI_FAILED : function(context.handle, nullptr, std::get<I>(taken).get()..., &error);
    });
    if (closed) throw py::value_error(std::string(name) + ": the context or a weight is closed");
    if (status != COLI_DONE) raise_status(status, error);
  }

  static void define(py::class_<Context> &type, int slot, const char *name, const char *spelt) {
    const auto names = argument_names(spelt);
    type.def(
        name,
        [slot, name, names](const Context &self, const py::args &args) {
          call(*self.state, slot, name, names, args.ptr(), std::make_index_sequence<kCount>());
        },
        spelt);
  }
};

py::dict device_info(const Context &self) {
  ContextState &context = *self.state;
  const auto function = context.library->find<coli_device_info_fn>(COLI_SLOT_device_info);
  if (!function) raise_absent("device_info");
  coli_device_info info{};
  info.size = sizeof info;
  coli_error error = fresh_error();
  bool closed = false;
  const coli_status status = context.alone([&]() -> coli_status {
    closed = !context.handle;
    return closed ? COLI_FAILED : function(context.handle, &info, &error);
  });
  if (closed) throw py::value_error("device_info: the context is closed");
  if (status != COLI_DONE) raise_status(status, error);
  info.name[sizeof info.name - 1] = 0;
  py::dict result;
  result["compute_major"] = info.compute_major;
  result["compute_minor"] = info.compute_minor;
  result["integrated"] = info.integrated != 0;
  result["name"] = std::string(info.name);
  return result;
}

py::dict memory_info(const Context &self) {
  ContextState &context = *self.state;
  const auto function = context.library->find<coli_memory_info_fn>(COLI_SLOT_memory_info);
  if (!function) raise_absent("memory_info");
  coli_memory_info info{};
  info.size = sizeof info;
  coli_error error = fresh_error();
  bool closed = false;
  const coli_status status = context.alone([&]() -> coli_status {
    closed = !context.handle;
    return closed ? COLI_FAILED : function(context.handle, &info, &error);
  });
  if (closed) throw py::value_error("memory_info: the context is closed");
  if (status != COLI_DONE) raise_status(status, error);
  py::dict result;
  result["total_bytes"] = info.total_bytes;
  result["free_bytes"] = info.free_bytes;
  result["context_bytes"] = info.context_bytes;
  return result;
}

using Doubles = py::array_t<double, py::array::c_style>;

py::tuple rope_table(const Doubles &frequencies, int64_t first, int64_t step, int64_t count) {
  if (frequencies.ndim() != 1) throw py::value_error("rope_table: frequencies must have one dimension");
  if (count < 0) throw py::value_error("rope_table: count is negative");
  const py::ssize_t n = frequencies.shape(0);
  const double *f = frequencies.data();
  const double last =
      static_cast<double>(first) + static_cast<double>(step) * static_cast<double>(count > 0 ? count - 1 : 0);
  const double reach =
      std::fabs(last) > std::fabs(static_cast<double>(first)) ? std::fabs(last) : std::fabs(static_cast<double>(first));
  if (!(reach <= 9007199254740992.0)) throw py::value_error("rope_table: a position is beyond 2^53");
  for (py::ssize_t j = 0; j < n; ++j)
    if (!(std::fabs(f[j]) * reach <= kLargestAngle) || !(std::fabs(f[j]) <= kLargestAngle))
      throw py::value_error("rope_table: an angle is beyond 2^40 or not a number");
  py::array_t<float> cosine({static_cast<py::ssize_t>(count), n}), sine({static_cast<py::ssize_t>(count), n});
  float *c = cosine.mutable_data(), *s = sine.mutable_data();
  {
    py::gil_scoped_release released;
    for (int64_t i = 0; i < count; ++i)
      for (py::ssize_t j = 0; j < n; ++j) {
        const int64_t at = i * n + j;
        rope_angle(static_cast<double>(first + step * i), f[j], c + at, s + at);
      }
  }
  return py::make_tuple(cosine, sine);
}

Doubles exp_array(const Doubles &x) {
  Doubles y(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
  const double *in = x.data();
  double *out = y.mutable_data();
  const py::ssize_t size = x.size();
  {
    py::gil_scoped_release released;
    for (py::ssize_t i = 0; i < size; ++i) out[i] = exp_double(in[i]);
  }
  return y;
}

}  // namespace

void raise_status(coli_status status, const coli_error &error) {
  size_t length = 0;
  while (length < sizeof error.text && error.text[length]) ++length;
  if (status == COLI_DECLINED) raise(declined_type, error.code, error.text, length);
  if (status == COLI_FAILED) raise(failed_type, error.code, error.text, length);
  const std::string text = "status " + std::to_string(status) + " is not one of the ABI";
  raise(failed_type, COLI_SITE_DEVICE, text.data(), text.size());
}

void raise_absent(const char *slot) {
  const std::string text = std::string("slot ") + slot + " is absent";
  raise(declined_type, 0, text.data(), text.size());
}

}  // namespace coli

PYBIND11_MODULE(_host, m) {
  using namespace coli;
  m.doc() = "Stages of a compute backend on numpy buffers.";
  declined_type = PyErr_NewExceptionWithDoc("coli.backends._host.Declined",
                                            "A backend does not serve this call; .code is the reason, 0: absent slot.",
                                            nullptr, nullptr);
  failed_type =
      PyErr_NewExceptionWithDoc("coli.backends._host.Failed", "A stage failed; .code is the site.", nullptr, nullptr);
  if (!declined_type || !failed_type) throw py::error_already_set();
  m.add_object("Declined", py::reinterpret_borrow<py::object>(declined_type));
  m.add_object("Failed", py::reinterpret_borrow<py::object>(failed_type));
  m.attr("FORMAT_F32") = static_cast<int>(COLI_FORMAT_F32);
  m.attr("FORMAT_BF16") = static_cast<int>(COLI_FORMAT_BF16);
  m.attr("FORMAT_FP8_BLOCK") = static_cast<int>(COLI_FORMAT_FP8_BLOCK);
  m.attr("FORMAT_FP4_GROUP") = static_cast<int>(COLI_FORMAT_FP4_GROUP);
  m.attr("REASON_PLACE") = static_cast<int>(COLI_REASON_PLACE);
  m.attr("SITE_ARGUMENT") = static_cast<int>(COLI_SITE_ARGUMENT);
  m.attr("SITE_NONFINITE") = static_cast<int>(COLI_SITE_NONFINITE);
  m.attr("SITE_SCALE") = static_cast<int>(COLI_SITE_SCALE);
  m.attr("SITE_MEMORY") = static_cast<int>(COLI_SITE_MEMORY);
  m.attr("SITE_DEVICE") = static_cast<int>(COLI_SITE_DEVICE);

  py::class_<Library, std::shared_ptr<Library>>(m, "Library", "A verified backend table, by its address.")
      .def(py::init<uintptr_t>(), py::arg("table_address"))
      .def_property_readonly("name", [](const Library &self) { return std::string(self.table->name); })
      .def(
          "serves",
          [](const Library &self, const std::string &stage) {
            for (uint32_t i = 0; i < self.table->slot_count && i < COLI_SLOT_COUNT; ++i)
              if (stage == self.table->slots[i].name) return self.table->slots[i].function != nullptr;
            return false;
          },
          py::arg("stage"), "Say whether the table has a function for a stage.");

  py::class_<Context> context(m, "Context",
                              "Threads and workspace of a backend; its stages are methods. Positional arguments only.");
  context
      .def(py::init([](std::shared_ptr<Library> library, int32_t threads, uint64_t workspace_bytes) {
             return Context{std::make_shared<ContextState>(std::move(library), threads, workspace_bytes)};
           }),
           py::arg("library"), py::arg("threads"), py::arg("workspace_bytes"))
      .def("device_info", &device_info, "Describe the device.")
      .def("memory_info", &memory_info, "Return total, free and context bytes; total and free are 0 on CPUs.")
      .def(
          "close", [](const Context &self) { self.state->close(); }, "Release its weights and destroy it. Idempotent.")
      .def_property_readonly("closed", [](const Context &self) { return self.state->handle == nullptr; });
#define COLI_SERVICE(requirement, name, ...)
#define COLI_STAGE(requirement, name, ...) \
  Stage<coli_##name##_fn>::define(context, COLI_SLOT_##name, #name, #__VA_ARGS__);
#include "coli_slots.inc"
#undef COLI_SERVICE
#undef COLI_STAGE

  py::class_<Weight>(m, "Weight", "A weight bound to host memory, which it keeps alive.")
      .def(py::init<const Context &, int32_t, int64_t, int64_t, py::handle, py::handle>(), py::arg("context"),
           py::arg("format"), py::arg("rows"), py::arg("cols"), py::arg("codes"), py::arg("scales") = py::none())
      .def(
          "refill", [](const Weight &self, py::handle codes, py::handle scales) { self.state->refill(codes, scales); },
          py::arg("codes"), py::arg("scales") = py::none(), "Point it at other memory of the same format and shape.")
      .def(
          "upload", [](const Weight &self) { self.state->upload(); },
          "Copy it to the device's memory; nothing to do where that is the host's.")
      .def(
          "close", [](const Weight &self) { self.state->close(); }, "Release it and its memory. Idempotent.")
      .def_property_readonly("closed", [](const Weight &self) { return self.state->handle == nullptr; })
      .def_property_readonly("format", [](const Weight &self) { return self.state->desc.format; })
      .def_property_readonly("rows", [](const Weight &self) { return self.state->desc.rows; })
      .def_property_readonly("cols", [](const Weight &self) { return self.state->desc.cols; });

  m.def("rope_table", &rope_table, py::arg("frequencies"), py::arg("first"), py::arg("step"), py::arg("count"),
        "Return cosine and sine float32 [count, n] of the angles (first + step*i) * frequency, each rounded once.");
  m.def("exp", &exp_array, py::arg("x"), "Return e**x, float64, the same bits on every machine; error below 1 ulp.");
}
