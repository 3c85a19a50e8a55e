#include "array.h"

#include <cstring>

#include "dlpack.h"
#include "graph/graph.h"

namespace upweave::python {
namespace {

// The structure behind NumPy's __array_struct__ (its array interface, version 3).
struct NumpyInterface {
  int two;
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  void* data;
  PyObject* descr;
};
constexpr int kNativeOrder = 0x200, kWriteable = 0x400;

PyObject* numpy() {  // borrowed; NumPy is imported by the package before this module is used
  static PyObject* module = PyImport_ImportModule("numpy");
  if (!module) throw PythonError();
  return module;
}

PyObject* numpy_array_type() {
  static PyObject* type = own(PyObject_GetAttrString(numpy(), "ndarray")).release();
  return type;
}

std::string type_name(PyObject* object) {
  const Object name =
      own(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__qualname__"));
  const Object bytes = own(PyUnicode_AsUTF8String(name.get()));
  return PyBytes_AsString(bytes.get());
}

std::string dtype_text(PyObject* object) {
  const Object dtype(PyObject_GetAttrString(object, "dtype"));
  const Object text(dtype ? PyObject_Str(dtype.get()) : nullptr);
  const Object bytes(text ? PyUnicode_AsUTF8String(text.get()) : nullptr);
  PyErr_Clear();
  return bytes ? PyBytes_AsString(bytes.get()) : "unknown";
}

[[noreturn]] void wrong_dtype(PyObject* object, const char* name) {
  raise(PyExc_TypeError,
        std::string(name) + " has dtype " + dtype_text(object) +
            "; it must be float32, float16, bfloat16 or float64, in the machine's byte order");
}

// Row-major and dense, extents of 1 aside; strides count `unit` (elements or bytes).
template <class Extent>
void check_dense(const char* name, const Shape& shape, const Extent* strides, int64_t unit) {
  if (!strides || count(shape) == 0) return;
  int64_t expected = unit;
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) {
      raise(PyExc_ValueError, std::string(name) + " of shape " + to_string(shape) +
                                  " is not contiguous in row-major order: its stride along axis " +
                                  std::to_string(axis) + " is " + std::to_string(strides[axis] / unit) +
                                  " elements, not " + std::to_string(expected / unit));
    }
    expected *= shape[axis];
  }
}

// A masked array's data hold what its mask hides.
void refuse_mask(PyObject* object, const char* name) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) == numpy_array_type()) return;
  const Object ma = own(PyObject_GetAttrString(numpy(), "ma"));
  const Object masked = own(PyObject_CallMethod(ma.get(), "is_masked", "O", object));
  if (PyObject_IsTrue(masked.get()) != 0) {
    raise(PyExc_ValueError, std::string(name) + " has masked elements; fill them first, as in x.filled(0)");
  }
}

// PyTorch negates some views (the imaginary part of a conjugate) only when they are read: then a copy that
// holds the values, else null.
Object resolved(PyObject* object) {
  const Object is_neg(PyObject_GetAttrString(object, "is_neg"));
  if (!is_neg) {
    PyErr_Clear();
    return nullptr;
  }
  const Object lazy = own(PyObject_CallObject(is_neg.get(), nullptr));
  if (lazy.get() != Py_True) return nullptr;
  return own(PyObject_CallMethod(object, "resolve_neg", nullptr));
}

Array from_numpy(PyObject* object, const char* name) {
  refuse_mask(object, name);
  Object capsule = own(PyObject_GetAttrString(object, "__array_struct__"));
  const auto* a = static_cast<const NumpyInterface*>(PyCapsule_GetPointer(capsule.get(), nullptr));
  if (!a) throw PythonError();
  Array array;
  if (!(a->flags & kNativeOrder)) wrong_dtype(object, name);
  if (a->typekind == 'f' && a->itemsize == 4) {
    array.dtype = Dtype::kF32;
  } else if (a->typekind == 'f' && a->itemsize == 2) {
    array.dtype = Dtype::kF16;
  } else if (a->typekind == 'f' && a->itemsize == 8) {
    array.dtype = Dtype::kF64;
  } else if (a->typekind == 'V' && a->itemsize == 2) {
    array.dtype = Dtype::kBF16;  // ml_dtypes.bfloat16, also as it comes out of a .npy file
  } else {
    wrong_dtype(object, name);
  }
  array.shape.assign(a->shape, a->shape + a->nd);
  check_dense(name, array.shape, a->strides, a->itemsize);
  array.data = a->data;
  array.read_only = !(a->flags & kWriteable);
  array.owner = std::move(capsule);
  return array;
}

Array from_dl(const DLTensor& t, PyObject* object, const char* name) {
  Array array;
  const auto is = [&](int code, int bits) {
    return t.dtype.code == code && t.dtype.bits == bits && t.dtype.lanes == 1;
  };
  if (is(kDLFloat, 32)) {
    array.dtype = Dtype::kF32;
  } else if (is(kDLFloat, 16)) {
    array.dtype = Dtype::kF16;
  } else if (is(kDLBfloat, 16)) {
    array.dtype = Dtype::kBF16;
  } else if (is(kDLFloat, 64)) {
    array.dtype = Dtype::kF64;
  } else {
    wrong_dtype(object, name);
  }
  array.shape.assign(t.shape, t.shape + t.ndim);
  check_dense(name, array.shape, t.strides, 1);
  array.data = static_cast<char*>(t.data) + t.byte_offset;
  array.device = {t.device.device_type, t.device.device_id};
  if (!array.device.host() && !array.device.cuda()) {
    raise(PyExc_ValueError,
          std::string(name) + " is on " + name_of(array.device) + ", which no engine can reach");
  }
  return array;
}

// The table of functions that a type offers for exchange without Python calls; null if it has none.
const DLPackExchangeAPI* exchange_of(PyObject* object) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  const Object capsule(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
  if (!capsule) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* api =
      static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  PyErr_Clear();
  return api && api->version.major == 1 && api->dltensor_from_py_object_no_sync ? api : nullptr;
}

// What an array's library says of an array that it cannot lend (sparse, or without memory) becomes a
// ValueError that names the argument; its first line is enough.
[[noreturn]] void cannot_be_lent(PyObject* object, const char* name) {
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_BufferError))
    throw PythonError();
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  const Object types(type), values(value), traces(trace);
  const Object text(value ? PyObject_Str(value) : nullptr);
  const Object bytes(text ? PyUnicode_AsUTF8String(text.get()) : nullptr);
  PyErr_Clear();
  const std::string all = bytes ? PyBytes_AsString(bytes.get()) : "";
  raise(PyExc_ValueError, std::string(name) + " is a " + type_name(object) +
                              " whose memory cannot be lent: " + all.substr(0, all.find('\n')));
}

Array from_exchange(const DLPackExchangeAPI& api, PyObject* object, const char* name) {
  DLTensor t{};
  if (api.dltensor_from_py_object_no_sync(object, &t) != 0) cannot_be_lent(object, name);
  Array array = from_dl(t, object, name);
  if (array.device.cuda()) api.current_work_stream(t.device.device_type, t.device.device_id, &array.stream);
  Py_INCREF(object);
  array.owner.reset(object);
  return array;
}

// __dlpack__(max_version=(1, 0)), or without for libraries from before it; the stream goes along on a device
// only.
Object dlpack_capsule(PyObject* object, const char* name, void* stream) {
  const Object method = own(PyObject_GetAttrString(object, "__dlpack__"));
  const Object where = own(PyObject_CallMethod(object, "__dlpack_device__", nullptr));
  int type = 0, id = 0;
  if (!PyArg_ParseTuple(where.get(), "ii", &type, &id)) throw PythonError();
  const Object none = own(PyTuple_New(0)), keywords = own(PyDict_New());
  if (Device{type, id}.cuda()) {  // 1 is DLPack's name for the default stream
    const Object s = own(PyLong_FromVoidPtr(stream ? stream : reinterpret_cast<void*>(1)));
    if (PyDict_SetItemString(keywords.get(), "stream", s.get()) != 0) throw PythonError();
  }
  const Object version = own(Py_BuildValue("(ii)", 1, 0));
  if (PyDict_SetItemString(keywords.get(), "max_version", version.get()) != 0) throw PythonError();
  Object capsule(PyObject_Call(method.get(), none.get(), keywords.get()));
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    PyDict_DelItemString(keywords.get(), "max_version");
    capsule.reset(PyObject_Call(method.get(), none.get(), keywords.get()));
  }
  if (!capsule) cannot_be_lent(object, name);
  return capsule;
}

Array from_dlpack(PyObject* object, const char* name, void* stream) {
  Object capsule = dlpack_capsule(object, name, stream);
  Array array;
  if (PyCapsule_IsValid(capsule.get(), "dltensor_versioned")) {
    const auto* m = static_cast<const DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.get(), "dltensor_versioned"));
    if (m->version.major != 1) {
      raise(PyExc_TypeError, std::string(name) + " speaks DLPack " + std::to_string(m->version.major) +
                                 ", which this version does not know");
    }
    array = from_dl(m->dl_tensor, object, name);
    array.read_only = m->flags & 1;
  } else {
    const auto* m = static_cast<const DLManagedTensor*>(PyCapsule_GetPointer(capsule.get(), "dltensor"));
    if (!m) throw PythonError();
    array = from_dl(m->dl_tensor, object, name);
  }
  array.owner = std::move(capsule);  // not consumed: its destructor gives the memory back
  return array;
}

}  // namespace

void raise(PyObject* type, const std::string& sentence) {
  PyErr_SetString(type, sentence.c_str());
  throw PythonError();
}

Array array_of(PyObject* object, const char* name, void* stream) {
  if (PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(numpy_array_type()))) {
    return from_numpy(object, name);
  }
  if (const Object copy = resolved(object)) {
    Array array = array_of(copy.get(), name, stream);
    array.copied = true;
    return array;
  }
  if (const DLPackExchangeAPI* api = exchange_of(object)) return from_exchange(*api, object, name);
  if (PyObject_HasAttrString(object, "__dlpack__")) return from_dlpack(object, name, stream);
  const Object view(PyMemoryView_FromObject(object));
  if (!view) {
    PyErr_Clear();
    raise(PyExc_TypeError, std::string(name) + " is a " + type_name(object) +
                               "; it must be an array: NumPy, DLPack or the buffer protocol");
  }
  return from_numpy(own(PyObject_CallMethod(numpy(), "asarray", "O", view.get())).get(), name);
}

std::string name_of(Device device) {
  if (device.host()) return "cpu";
  const std::string id = ":" + std::to_string(device.id);
  return device.cuda() ? "cuda" + id : "device type " + std::to_string(device.type) + id;
}

PyObject* tuple_from(const Shape& shape) {
  Object tuple = own(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), own(PyLong_FromLongLong(shape[i])).release());
  }
  return tuple.release();
}

}  // namespace upweave::python
