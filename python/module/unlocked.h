#pragma once
// The interpreter's lock, released while the library works.
#include <cxxabi.h>
#include <unistd.h>

#include <optional>

#include "array.h"
#include "base/watch.h"

namespace upweave::python {

inline unsigned long main_thread = 0;  // the one that runs signal handlers

inline void find_main_thread() {
  const Object threading = own(PyImport_ImportModule("threading"));
  const Object main = own(PyObject_CallMethod(threading.get(), "main_thread", nullptr));
  const Object ident = own(PyObject_GetAttrString(main.get(), "ident"));
  main_thread = PyLong_AsUnsignedLong(ident.get());
  if (PyErr_Occurred()) throw PythonError();
}

// Before 3.14 Python ends a thread that comes back when the interpreter is already gone (a daemon's, at exit)
// by unwinding it, which C++ answers with std::terminate. Such a thread waits for the end of the process
// instead.
inline void lock_again(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Other threads of Python run while this is alive. In the main thread signal handlers do too, now and then,
// and an exception of theirs (Ctrl-C's KeyboardInterrupt) ends the work.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {
    if (PyThread_get_thread_ident() == main_thread) watch_.emplace(&Unlocked::handle_signals, this);
  }
  ~Unlocked() { lock_again(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  static bool handle_signals(void* self) {
    PyThreadState*& state = static_cast<Unlocked*>(self)->state_;
    PyEval_RestoreThread(state);
    const bool raised = PyErr_CheckSignals() != 0;
    state = PyEval_SaveThread();
    return raised;
  }

  PyThreadState* state_;
  std::optional<Watch> watch_;
};

}  // namespace upweave::python
