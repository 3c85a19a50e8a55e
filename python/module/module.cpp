// upweave._core: plans for Python. It checks arrays, releases the interpreter's lock and runs; everything
// that a person calls is in the package's Python files.
#include <algorithm>
#include <chrono>
#include <climits>
#include <new>
#include <optional>

#include "api/plan_impl.h"
#include "array.h"
#include "base/error.h"
#include "base/watch.h"
#include "base/words.h"
#include "call.h"
#include "engine/cpu/predict.h"
#include "engine/reference/verify.h"
#include "graph/graph.h"
#include "graph_list.h"
#include "guard.h"
#include "unlocked.h"

namespace upweave::python {
namespace {

struct PlanObject {
  PyObject_HEAD Plan* plan;
};
struct WeightsObject {
  PyObject_HEAD Weights* weights;
  Device* device;
};
PyTypeObject* weights_type = nullptr;

std::string text_of(PyObject* object) {
  const Object bytes = own(PyUnicode_AsUTF8String(object));
  return {PyBytes_AsString(bytes.get()), static_cast<size_t>(PyBytes_Size(bytes.get()))};
}

// A whole number beyond what fits is a value that is wrong, like any other.
template <class F>
auto number_from(const std::string& name, F&& convert) {
  const auto value = convert();
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw PythonError();
    PyErr_Clear();
    raise(PyExc_ValueError, excerpt(name) + " is a number that does not fit 64 bits");
  }
  return value;
}

template <class F>
void for_each_item(PyObject* dict, F&& f) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(dict, &at, &key, &value)) f(text_of(key), value);
}

Shape shape_from(PyObject* object, const std::string& name) {
  const Object items = own(PySequence_Tuple(object));
  Shape shape;
  for (Py_ssize_t i = 0; i < PyTuple_Size(items.get()); ++i) {
    PyObject* item = PyTuple_GetItem(items.get(), i);
    shape.push_back(number_from("an extent of " + name, [&] { return PyLong_AsLongLong(item); }));
  }
  if (shape.size() > 8) raise(PyExc_ValueError, excerpt(name) + " has more than 8 axes");
  return shape;
}

Options options_from(const char* dtype, const char* engine, const char* precision, const char* algorithm,
                     int threads) {
  Options options;
  options.dtype = named<Dtype>("dtype", dtype);
  options.engine = named<Engine>("engine", engine);
  options.precision = named<Precision>("precision", precision);
  options.algorithm = named<Algorithm>("algorithm", algorithm);
  options.threads = threads;
  return options;
}

// What a plan is made of: (text, named, settings, shapes, dtype, engine, precision, algorithm, threads), and
// the GPU if it is not the current one.
struct Request {
  std::string text;
  bool named = false;
  Settings settings;
  Shapes shapes;
  Options options;

  Pipeline pipeline() const {
    return named ? Pipeline::named(text, settings) : Pipeline::parse(text, settings);
  }
};
std::optional<Request> request_from(PyObject* args) {
  const char *text, *dtype, *engine, *precision, *algorithm;
  int named, device = -1;
  PyObject *settings, *shapes, *thread_count;
  if (!PyArg_ParseTuple(args, "spO!O!ssssO|i", &text, &named, &PyDict_Type, &settings, &PyDict_Type, &shapes,
                        &dtype, &engine, &precision, &algorithm, &thread_count, &device)) {
    return std::nullopt;
  }
  const long long wanted = number_from("threads", [&] { return PyLong_AsLongLong(thread_count); });
  const int threads = static_cast<int>(std::clamp<long long>(wanted, INT_MIN, INT_MAX));
  Request request{text, named != 0, {}, {}, {}};
  for_each_item(settings, [&](const std::string& k, PyObject* v) { request.settings[k] = text_of(v); });
  for_each_item(shapes, [&](const std::string& k, PyObject* v) { request.shapes[k] = shape_from(v, k); });
  request.options = options_from(dtype, engine, precision, algorithm, threads);
  request.options.device = device;
  return request;
}

PyObject* plan_new(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded([&]() -> PyObject* {
    const std::optional<Request> request = request_from(args);
    if (!request) return nullptr;
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    Object self = own(allocate(type, 0));
    std::unique_ptr<Plan> plan;
    {
      const Unlocked unlocked;
      plan = std::make_unique<Plan>(request->pipeline().compile(request->shapes, request->options));
    }
    reinterpret_cast<PlanObject*>(self.get())->plan = plan.release();
    return self.release();
  });
}

// predicted_seconds(what Plan takes) -> float, before any kernel is compiled
PyObject* predicted_seconds(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    const std::optional<Request> request = request_from(args);
    if (!request) return nullptr;
    double seconds;
    {
      const Unlocked unlocked;
      seconds = request->pipeline().predicted_seconds(request->shapes, request->options);
    }
    return PyFloat_FromDouble(seconds);
  });
}

PyObject* vectors_per_second(PyObject*, PyObject*) {
  return guarded([&] { return PyFloat_FromDouble(cpu::vectors_per_second()); });
}

void release(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

void plan_free(PyObject* self) {
  delete reinterpret_cast<PlanObject*>(self)->plan;
  release(self);
}

void weights_free(PyObject* self) {
  auto* object = reinterpret_cast<WeightsObject*>(self);
  delete object->weights;
  delete object->device;
  release(self);
}

const Plan& plan_of(PyObject* self) { return *reinterpret_cast<PlanObject*>(self)->plan; }

void* stream_from(PyObject* object) {
  if (object == Py_None) return nullptr;
  return number_from("stream", [&] { return PyLong_AsVoidPtr(object); });
}

// run(input or tuple of inputs, parameters or Weights, out, fresh, stream[, extra outputs by name])
PyObject* plan_run(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *input, *parameters, *out, *stream, *extra = nullptr;
    int fresh;
    if (!PyArg_ParseTuple(args, "OOOpO|O!", &input, &parameters, &out, &fresh, &stream, &PyDict_Type, &extra))
      return nullptr;
    const Plan& plan = plan_of(self);
    Call call(plan, stream_from(stream));
    call.add_inputs(input);
    const Weights* weights = nullptr;
    if (PyObject_TypeCheck(parameters, weights_type)) {
      const auto* packed = reinterpret_cast<WeightsObject*>(parameters);
      weights = packed->weights;
      if (packed->device->id != call.device().id) {
        raise(PyExc_ValueError,
              "weights are on " + name_of(*packed->device) + ", input is on " + name_of(call.device()));
      }
    } else if (PyDict_Check(parameters)) {
      for_each_item(parameters, [&](const std::string& name, PyObject* value) { call.add(name, value); });
    } else {
      raise(PyExc_TypeError, "parameters are neither a dict nor packed weights");
    }
    call.set_output(out, fresh);
    if (extra) {
      for_each_item(extra,
                    [&](const std::string& name, PyObject* value) { call.add_extra(name, value, fresh); });
    }
    {
      const Unlocked unlocked;
      if (weights) {
        plan.run(*weights, call.tensors(), call.output(), call.extra(), nullptr, call.stream());
      } else {
        plan.run(call.tensors(), call.output(), call.extra(), nullptr, call.stream());
      }
    }
    if (PyErr_CheckSignals() != 0) return nullptr;
    Py_RETURN_NONE;
  });
}

// seconds(input or tuple of inputs, parameters, out, runs): what the same calls take without Python, for
// benchmarks.
PyObject* plan_seconds(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *input, *parameters, *out;
    int runs;
    if (!PyArg_ParseTuple(args, "OO!Oi", &input, &PyDict_Type, &parameters, &out, &runs)) return nullptr;
    const Plan& plan = plan_of(self);
    Call call(plan, nullptr);
    call.add_inputs(input);
    for_each_item(parameters, [&](const std::string& name, PyObject* value) { call.add(name, value); });
    call.set_output(out, false);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; ++i) plan.run(call.tensors(), call.output());
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return PyFloat_FromDouble(taken.count());
  });
}

// pack(parameters, stream) -> Weights
PyObject* plan_pack(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *parameters, *stream;
    if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &parameters, &stream)) return nullptr;
    const Plan& plan = plan_of(self);
    Call call(plan, stream_from(stream));
    for_each_item(parameters, [&](const std::string& name, PyObject* value) { call.add(name, value); });
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(weights_type, Py_tp_alloc));
    Object object = own(allocate(weights_type, 0));
    auto* weights = reinterpret_cast<WeightsObject*>(object.get());
    weights->device = new Device(call.device());
    const Unlocked unlocked;
    weights->weights = new Weights(plan.pack(call.tensors(), call.stream()));
    return object.release();
  });
}

PyObject* bytes_from(const std::vector<double>& values) {
  return own(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()),
                                       static_cast<Py_ssize_t>(values.size() * sizeof(double))))
      .release();
}

std::map<std::string, Tensor> values_of(const Plan& plan, PyObject* tensors) {
  const Dtype dtype = plan.impl().options().dtype;
  Call call(plan, nullptr);
  std::map<std::string, Tensor> values;
  for_each_item(tensors, [&](const std::string& name, PyObject* value) {
    call.add(name, value);
    values[name] = load_tensor(call.tensors().at(name), dtype, plan.tensor_shapes().at(name));
  });
  return values;
}

// truth(tensors) -> (float64 values, float64 bounds), as bytes: the pipeline as written, and how far an
// engine that keeps the plan's precision may be off. The result's, then those of each extra output.
PyObject* plan_truth(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* tensors;
    if (!PyArg_ParseTuple(args, "O!", &PyDict_Type, &tensors)) return nullptr;
    const Plan& plan = plan_of(self);
    const std::map<std::string, Tensor> values = values_of(plan, tensors);
    Tensor result;
    {
      const Unlocked unlocked;
      for (const Tensor& output : truths(plan.impl().plan().source, values, plan.impl().options())) {
        result.data.insert(result.data.end(), output.data.begin(), output.data.end());
        result.err.insert(result.err.end(), output.err.begin(), output.err.end());
      }
    }
    const Object data(bytes_from(result.data)), bound(bytes_from(result.err));
    return PyTuple_Pack(2, data.get(), bound.get());
  });
}

// judge(tensors, output, extra outputs) -> the worst error as a fraction of its bound.
PyObject* plan_judge(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *tensors, *output, *extra;
    if (!PyArg_ParseTuple(args, "O!OO!", &PyDict_Type, &tensors, &output, &PyDict_Type, &extra))
      return nullptr;
    const Plan& plan = plan_of(self);
    const std::map<std::string, Tensor> values = values_of(plan, tensors);
    Call call(plan, nullptr);
    call.set_output(output, false);
    for_each_item(extra,
                  [&](const std::string& name, PyObject* value) { call.add_extra(name, value, false); });
    Verdict verdict;
    {
      const Unlocked unlocked;
      const Options& options = plan.impl().options();
      const std::vector<Tensor> wanted = truths(plan.impl().plan().source, values, options);
      verdict = judge(wanted[0], call.output(), options.dtype);
      for (size_t k = 1; k < wanted.size(); ++k) {
        const OutputInfo& info = plan.extra_outputs()[k - 1];
        verdict.add(judge(wanted[k], call.extra().at(info.name), info.dtype));
      }
    }
    return PyFloat_FromDouble(verdict.worst);
  });
}

PyObject* plan_explain(PyObject* self, PyObject*) {
  return guarded([&] { return PyUnicode_FromString(plan_of(self).explain().c_str()); });
}

PyObject* plan_explain_json(PyObject* self, PyObject*) {
  return guarded([&] { return PyUnicode_FromString(plan_of(self).explain_json().c_str()); });
}

PyObject* plan_shape(PyObject* self, void*) {
  return guarded([&] { return tuple_from(plan_of(self).output_shape()); });
}

PyObject* plan_shapes(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    Object dict = own(PyDict_New());
    for (const auto& [name, shape] : plan_of(self).tensor_shapes()) {
      const Object tuple(tuple_from(shape));
      if (PyDict_SetItemString(dict.get(), name.c_str(), tuple.get()) != 0) return nullptr;
    }
    return dict.release();
  });
}

PyObject* plan_inputs(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    Object list = own(PyList_New(0));
    for (const std::string& name : plan_of(self).inputs()) {
      const Object text = own(PyUnicode_FromString(name.c_str()));
      if (PyList_Append(list.get(), text.get()) != 0) return nullptr;
    }
    return PyList_AsTuple(list.get());
  });
}

// {name: (dtype, shape)}
PyObject* plan_extra(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    Object dict = own(PyDict_New());
    for (const OutputInfo& info : plan_of(self).extra_outputs()) {
      const Object shape(tuple_from(info.shape));
      const Object row = own(Py_BuildValue("(sO)", name_of(info.dtype), shape.get()));
      if (PyDict_SetItemString(dict.get(), info.name.c_str(), row.get()) != 0) return nullptr;
    }
    return dict.release();
  });
}

PyObject* plan_workspace(PyObject* self, void*) { return PyLong_FromSize_t(plan_of(self).workspace_bytes()); }

PyObject* plan_packed(PyObject* self, void*) {
  return PyLong_FromSize_t(plan_of(self).impl().packed_bytes());
}

PyObject* plan_cost(PyObject* self, void*) {
  const Cost c = plan_of(self).cost();
  return Py_BuildValue("(ddddii)", c.flops, c.unfused_flops, c.bytes, c.unfused_bytes, c.passes,
                       c.unfused_passes);
}

PyObject* plan_predicted(PyObject* self, void*) {
  return guarded([&] { return PyFloat_FromDouble(plan_of(self).predicted_seconds()); });
}

// describe(array, name) -> (dtype, shape, device)
PyObject* describe(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* object;
    const char* name;
    if (!PyArg_ParseTuple(args, "Os", &object, &name)) return nullptr;
    const Array array = array_of(object, name);
    const Object shape(tuple_from(array.shape));
    return Py_BuildValue("(sOs)", name_of(array.dtype), shape.get(), name_of(array.device).c_str());
  });
}

PyObject* list_vocabulary(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    Object list = own(PyList_New(0));
    for (const OperationInfo& o : vocabulary()) {
      const Object row = own(Py_BuildValue("(sss)", o.name.c_str(), o.summary.c_str(), o.example.c_str()));
      if (PyList_Append(list.get(), row.get()) != 0) return nullptr;
    }
    return list.release();
  });
}

PyObject* list_catalog(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    Object list = own(PyList_New(0));
    for (const CatalogEntry& e : catalog()) {
      const Object settings = own(PyDict_New());
      for (const auto& [name, value] : e.settings) {
        const Object text = own(PyUnicode_FromString(value.c_str()));
        PyDict_SetItemString(settings.get(), name.c_str(), text.get());
      }
      const Object row =
          own(Py_BuildValue("(sssO)", e.slug.c_str(), e.title.c_str(), e.text.c_str(), settings.get()));
      if (PyList_Append(list.get(), row.get()) != 0) return nullptr;
    }
    return list.release();
  });
}

PyObject* graph_of(PyObject*, PyObject* text) {
  return guarded([&] { return graph_list(text_of(text)).release(); });
}

PyMethodDef plan_methods[] = {
    {"run", plan_run, METH_VARARGS, nullptr},
    {"seconds", plan_seconds, METH_VARARGS, nullptr},
    {"pack", plan_pack, METH_VARARGS, nullptr},
    {"truth", plan_truth, METH_VARARGS, nullptr},
    {"judge", plan_judge, METH_VARARGS, nullptr},
    {"explain", plan_explain, METH_NOARGS, nullptr},
    {"explain_json", plan_explain_json, METH_NOARGS, nullptr},
    {},
};
PyGetSetDef plan_properties[] = {
    {"output_shape", plan_shape, nullptr, nullptr, nullptr},
    {"inputs", plan_inputs, nullptr, nullptr, nullptr},
    {"shapes", plan_shapes, nullptr, nullptr, nullptr},
    {"extra_outputs", plan_extra, nullptr, nullptr, nullptr},
    {"workspace_bytes", plan_workspace, nullptr, nullptr, nullptr},
    {"packed_bytes", plan_packed, nullptr, nullptr, nullptr},
    {"cost", plan_cost, nullptr, nullptr, nullptr},
    {"predicted_seconds", plan_predicted, nullptr, nullptr, nullptr},
    {},
};
PyType_Slot plan_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(plan_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(plan_free)},
    {Py_tp_methods, plan_methods},
    {Py_tp_getset, plan_properties},
    {},
};
PyType_Slot weights_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(weights_free)},
    {},
};
PyType_Spec plan_spec = {"upweave._core.Plan", sizeof(PlanObject), 0, Py_TPFLAGS_DEFAULT, plan_slots};
PyType_Spec weights_spec = {"upweave.Weights", sizeof(WeightsObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, weights_slots};
PyMethodDef functions[] = {
    {"describe", describe, METH_VARARGS, nullptr},
    {"predicted_seconds", predicted_seconds, METH_VARARGS, nullptr},
    {"vectors_per_second", vectors_per_second, METH_NOARGS, nullptr},
    {"vocabulary", list_vocabulary, METH_NOARGS, nullptr},
    {"catalog", list_catalog, METH_NOARGS, nullptr},
    {"graph", graph_of, METH_O, nullptr},
    {},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "upweave._core", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace upweave::python

PyMODINIT_FUNC PyInit__core() {
  using namespace upweave::python;
  return guarded([]() -> PyObject* {
    Object module = own(PyModule_Create(&definition));
    find_main_thread();
    weights_type = reinterpret_cast<PyTypeObject*>(own(PyType_FromSpec(&weights_spec)).release());
    const Object plan = own(PyType_FromSpec(&plan_spec));
    if (PyModule_AddObjectRef(module.get(), "Plan", plan.get()) != 0 ||
        PyModule_AddObjectRef(module.get(), "Weights", reinterpret_cast<PyObject*>(weights_type)) != 0 ||
        PyModule_AddStringConstant(module.get(), "version", upweave::version()) != 0) {
      return nullptr;
    }
    return module.release();
  });
}
