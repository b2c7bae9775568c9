/* How each argument type of a slot is taken from Python. take() runs with the GIL and raises TypeError or ValueError
 * that names the argument; resolve() runs without it, under the context's lock; get() is what the slot receives. */
#ifndef COLI_HOST_ARGUMENTS_H
#define COLI_HOST_ARGUMENTS_H

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "coli_backend.h"
#include "state.h"

namespace coli {

namespace py = pybind11;

/* Where an argument stands, for messages. */
struct Site {
  const char *stage;
  const std::string &argument;

  std::string text(const std::string &what) const { return std::string(stage) + ": " + argument + ": " + what; }
};

inline std::string type_name(PyObject *value) { return Py_TYPE(value)->tp_name; }

/* Describe a numpy array as a matrix without a copy: 1-D is one row, leading dimensions that are contiguous among
 * themselves collapse into rows. */
inline coli_matrix describe_array(PyObject *value, bool output, const Site &site) {
  if (!py::isinstance<py::array>(value))
    throw py::type_error(site.text("expected a numpy array, got " + type_name(value)));
  const auto array = py::reinterpret_borrow<py::array>(value);
  const py::dtype dtype = array.dtype();
  coli_matrix matrix{};
  matrix.place = COLI_PLACE_HOST;
  if (dtype.num() == py::detail::npy_api::NPY_FLOAT_) {
    matrix.type = COLI_TYPE_F32;
  } else if (dtype.kind() == 'i' && dtype.itemsize() == 4) {
    matrix.type = COLI_TYPE_I32;
  } else {
    throw py::type_error(site.text("expected float32 or int32, got " + py::str(dtype).cast<std::string>()));
  }
  if (dtype.byteorder() != '=') throw py::type_error(site.text("expected native byte order"));
  if (output && !array.writeable()) throw py::value_error(site.text("the stage writes it, and the array is read-only"));
  const py::ssize_t dims = array.ndim();
  if (dims == 0) throw py::type_error(site.text("expected at least one dimension"));
  const py::ssize_t *shape = array.shape(), *strides = array.strides();
  matrix.cols = shape[dims - 1];
  matrix.rows = 1;
  for (py::ssize_t d = 0; d + 1 < dims; ++d) matrix.rows *= shape[d];
  matrix.stride = matrix.cols;
  matrix.data = const_cast<void *>(array.data());
  if (matrix.rows == 0 || matrix.cols == 0) return matrix;
  if (reinterpret_cast<uintptr_t>(matrix.data) % 4) throw py::type_error(site.text("rows must be aligned to 4 bytes"));
  if (matrix.cols > 1 && strides[dims - 1] != 4) throw py::type_error(site.text("the last axis must be contiguous"));
  if (matrix.rows == 1) return matrix;
  /* The innermost leading dimension that is longer than one gives the row stride; those outside it must continue it. */
  py::ssize_t expected = 0;
  for (py::ssize_t d = dims - 2; d >= 0; --d) {
    if (shape[d] == 1) continue;
    if (expected == 0) {
      if (strides[d] % 4 || strides[d] < matrix.cols * 4)
        throw py::type_error(site.text("rows overlap or run backwards"));
      matrix.stride = strides[d] / 4;
      expected = strides[d];
    } else if (strides[d] != expected) {
      throw py::type_error(site.text("leading dimensions do not collapse into rows without a copy"));
    }
    expected *= shape[d];
  }
  return matrix;
}

template <class T>
struct Taken;

template <class Pointer, bool kOutput>
struct TakenMatrix {
  coli_matrix matrix{};
  bool present = false;

  void take(PyObject *value, const Site &site) {
    present = value != Py_None;
    if (present) matrix = describe_array(value, kOutput, site);
  }
  bool resolve() { return true; }
  Pointer get() { return present ? &matrix : nullptr; }
};

template <>
struct Taken<const coli_matrix *> : TakenMatrix<const coli_matrix *, false> {};
template <>
struct Taken<coli_matrix *> : TakenMatrix<coli_matrix *, true> {};

template <>
struct Taken<const coli_weight *> {
  std::shared_ptr<WeightState> state;
  const coli_weight *handle = nullptr;

  void take(PyObject *value, const Site &site) {
    if (value == Py_None) return;
    if (!py::isinstance<Weight>(value)) throw py::type_error(site.text("expected a Weight, got " + type_name(value)));
    state = py::handle(value).cast<Weight &>().state;
  }
  bool resolve() {
    if (!state) return true;
    handle = state->handle;
    return handle != nullptr;
  }
  const coli_weight *get() { return handle; }
};

template <>
struct Taken<const coli_weight_list *> {
  std::vector<std::shared_ptr<WeightState>> states; /* keeps them while the caller's list may change */
  std::vector<const coli_weight *> handles;
  coli_weight_list list{};

  void take(PyObject *value, const Site &site) {
    const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(value, ""));
    if (!items) {
      PyErr_Clear();
      throw py::type_error(site.text("expected a sequence of Weights, got " + type_name(value)));
    }
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
    states.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject *item = PySequence_Fast_GET_ITEM(items.ptr(), i);
      if (!py::isinstance<Weight>(item)) throw py::type_error(site.text("expected Weights, got " + type_name(item)));
      states.push_back(py::handle(item).cast<Weight &>().state);
    }
  }
  bool resolve() {
    handles.reserve(states.size());
    for (const auto &state : states) {
      if (!state->handle) return false;
      handles.push_back(state->handle);
    }
    list = {handles.data(), static_cast<int64_t>(handles.size())};
    return true;
  }
  const coli_weight_list *get() { return &list; }
};

template <>
struct Taken<int64_t> {
  int64_t value = 0;

  void take(PyObject *object, const Site &site) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object));
    if (!index) {
      PyErr_Clear();
      throw py::type_error(site.text("expected an integer, got " + type_name(object)));
    }
    value = PyLong_AsLongLong(index.ptr());
    if (value == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      throw py::value_error(site.text("does not fit into 64 bits"));
    }
  }
  bool resolve() { return true; }
  int64_t get() { return value; }
};

template <>
struct Taken<float> {
  float value = 0;

  void take(PyObject *object, const Site &site) {
    const double wide = PyFloat_AsDouble(object);
    if (wide == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      throw py::type_error(site.text("expected a number, got " + type_name(object)));
    }
    value = static_cast<float>(wide);
  }
  bool resolve() { return true; }
  float get() { return value; }
};

/* A weight must belong to the context that is called. */
template <class T>
bool belongs(const Taken<T> &, const ContextState *) {
  return true;
}
inline bool belongs(const Taken<const coli_weight *> &taken, const ContextState *context) {
  return !taken.state || taken.state->context.get() == context;
}
inline bool belongs(const Taken<const coli_weight_list *> &taken, const ContextState *context) {
  for (const auto &state : taken.states)
    if (state->context.get() != context) return false;
  return true;
}

}  // namespace coli
#endif
