#pragma once
// Anything that is an array, seen without a copy: NumPy's own interface, DLPack, or the buffer protocol.
#define Py_LIMITED_API 0x030A0000  // Python 3.10: one module for it and everything after
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <string>

#include "upweave/upweave.hpp"

namespace upweave::python {

// A Python exception that is already set.
struct PythonError {};

// Sets `type` with the sentence and throws.
[[noreturn]] void raise(PyObject* type, const std::string& sentence);

struct Release {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Object = std::unique_ptr<PyObject, Release>;  // owns one reference

inline Object own(PyObject* object) {  // a new reference, or the exception that came instead
  if (!object) throw PythonError();
  return Object(object);
}

struct Device {
  int type = 1, id = 0;  // as DLPack counts them
  bool host() const { return type == 1 || type == 3; }
  bool cuda() const { return type == 2 || type == 13; }
  friend bool operator==(const Device&, const Device&) = default;
};

struct Array {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  Shape shape;
  Device device;
  bool read_only = false;
  void* stream = nullptr;  // what the array's library is working on, where it says so
  bool copied = false;     // its memory held something else (negated values), and this is a copy
  Object owner;            // keeps the memory
};

// Dense, row-major, of a dtype that plans know; else TypeError or ValueError that calls the array `name`.
// `stream` is the consumer's, for libraries that must be told; null for the default one.
Array array_of(PyObject* object, const char* name, void* stream = nullptr);

std::string name_of(Device device);

PyObject* tuple_from(const Shape& shape);  // a new reference

}  // namespace upweave::python
