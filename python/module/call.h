#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "api/plan_impl.h"
#include "array.h"
#include "base/error.h"
#include "base/words.h"
#include "graph/graph.h"

namespace upweave::python {

// The arrays of one call, checked against the plan; they live until it has returned.
class Call {
 public:
  Call(const Plan& plan, void* stream) : plan_(plan), stream_(stream) {}

  void add(const std::string& name, PyObject* object) {
    const auto it = plan_.tensor_shapes().find(name);
    if (it == plan_.tensor_shapes().end()) {
      std::string names;
      for (const auto& [known, shape] : plan_.tensor_shapes()) names += (names.empty() ? "" : ", ") + known;
      raise(PyExc_TypeError, excerpt(name) + " is none of the pipeline's tensors: " + excerpt(names));
    }
    Array array = array_of(object, name.c_str(), stream_);
    check(name, array, it->second);
    tensors_[name] = array.data;
    if (array.stream) stream_ = array.stream;
    arrays_.push_back(std::move(array));
  }

  // One array, or a tuple of one for each of the plan's inputs, in their order.
  void add_inputs(PyObject* object) {
    const std::vector<std::string>& names = plan_.inputs();
    if (!PyTuple_Check(object)) return add(names[0], object);
    if (PyTuple_Size(object) != static_cast<Py_ssize_t>(names.size()))
      raise(PyExc_TypeError, "the pipeline has the inputs " + listed(names));
    for (size_t i = 0; i < names.size(); ++i)
      add(names[i], PyTuple_GetItem(object, static_cast<Py_ssize_t>(i)));
  }

  void set_output(PyObject* object, bool fresh) {
    output_ = array_of(object, "out", stream_);
    check("out", output_, plan_.output_shape());
    if (output_.copied) raise(PyExc_ValueError, "out is a view that PyTorch negates when it is read");
    if (output_.read_only && !fresh) raise(PyExc_ValueError, "out is read-only");
  }

  // What the pipeline gives out beside its result, by name.
  void add_extra(const std::string& name, PyObject* object, bool fresh) {
    const auto& infos = plan_.extra_outputs();
    const auto info = std::find_if(infos.begin(), infos.end(), [&](const auto& i) { return i.name == name; });
    if (info == infos.end())
      raise(PyExc_TypeError, excerpt(name) + " is none of the pipeline's extra outputs");
    Array array = array_of(object, name.c_str(), stream_);
    check(name, array, info->shape, info->dtype);
    if (array.copied) raise(PyExc_ValueError, name + " is a view that PyTorch negates when it is read");
    if (array.read_only && !fresh) raise(PyExc_ValueError, name + " is read-only");
    extra_[name] = array.data;
    arrays_.push_back(std::move(array));
  }

  void set_device(Device device, const char* of) {
    if (first_.empty()) {
      device_ = device;
      first_ = of;
    }
  }

  const Tensors& tensors() const { return tensors_; }
  const Array& array(size_t i) const { return arrays_[i]; }
  void* output() const { return output_.data; }
  const Outputs& extra() const { return extra_; }
  void* stream() const { return stream_; }
  Device device() const { return device_; }

 private:
  void check(const std::string& name, const Array& array, const Shape& shape) {
    check(name, array, shape, plan_.impl().options().dtype);
  }
  void check(const std::string& name, const Array& array, const Shape& shape, Dtype dtype) {
    if (array.dtype != dtype) {
      raise(PyExc_TypeError,
            name + " has dtype " + name_of(array.dtype) + "; the plan was compiled for " + name_of(dtype));
    }
    const bool scalar = count(shape) == 1 && count(array.shape) == 1 && name != "out" &&
                        std::ranges::find(plan_.inputs(), name) == plan_.inputs().end();
    if (array.shape != shape && !scalar) {
      raise(PyExc_ValueError, name + " has shape " + to_string(array.shape) + "; the plan was compiled for " +
                                  to_string(shape));
    }
    const bool on_device = plan_.impl().on_device();
    if (array.device.cuda() != on_device) {
      raise(PyExc_ValueError, name + " is on " + name_of(array.device) + "; the plan runs on " +
                                  (on_device ? name_of(plan_.impl().options().engine) : "cpu"));
    }
    set_device(array.device, name.c_str());
    if (array.device.cuda() && array.device.id != device_.id) {
      raise(PyExc_ValueError,
            name + " is on " + name_of(array.device) + ", " + first_ + " is on " + name_of(device_));
    }
  }

  const Plan& plan_;
  void* stream_;
  Tensors tensors_;
  std::vector<Array> arrays_;
  Array output_;
  Outputs extra_;
  Device device_;
  std::string first_;  // the array that device_ is of
};

}  // namespace upweave::python
