#pragma once
// What C++ throws, as Python exceptions.
#include <exception>
#include <new>

#include "array.h"
#include "base/error.h"
#include "base/watch.h"

namespace upweave::python {

inline PyObject* exception_of(Status status) {
  switch (status) {
    case Status::kInvalid:
      return PyExc_ValueError;
    case Status::kUnsupported:
      return PyExc_NotImplementedError;
    case Status::kMemory:
      return PyExc_MemoryError;
    default:
      return PyExc_RuntimeError;
  }
}

// Runs `f`; what it throws becomes the Python exception.
template <class F>
PyObject* guarded(F&& f) noexcept {
  try {
    return f();
  } catch (const PythonError&) {
  } catch (const Interrupted&) {  // by a signal handler's exception, which is set
  } catch (const Error& e) {
    PyErr_SetString(exception_of(e.status()), e.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

}  // namespace upweave::python
