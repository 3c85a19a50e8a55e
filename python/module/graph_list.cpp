#include "graph_list.h"

#include "graph/operation.h"
#include "upweave/upweave.hpp"

namespace upweave::python {
namespace {

Object attribute(const Attributes& attrs, const Arg& arg) {
  switch (arg.kind) {
    case Arg::Kind::kInts:
      return Object(tuple_from(attrs.ints(arg.name)));
    case Arg::Kind::kWord:
    case Arg::Kind::kSlices:
      return own(PyUnicode_FromString(attrs.word(arg.name).c_str()));
    case Arg::Kind::kFlag:
      return own(PyBool_FromLong(attrs.flag(arg.name)));
    default:
      return own(PyFloat_FromDouble(attrs.real(arg.name)));
  }
}

Object row(const Node& node) {
  Object operands = own(PyTuple_New(static_cast<Py_ssize_t>(node.in.size())));
  for (size_t i = 0; i < node.in.size(); ++i) {
    Object id = node.in[i] == kNone ? own(Py_NewRef(Py_None)) : own(PyLong_FromLong(node.in[i]));
    if (PyTuple_SetItem(operands.get(), static_cast<Py_ssize_t>(i), id.release()) != 0) throw PythonError();
  }
  const Object attributes = own(PyDict_New());
  for (const Arg& arg : node.op->args) {
    if (arg.kind == Arg::Kind::kTensor || arg.kind == Arg::Kind::kValues || !node.attrs.has(arg.name))
      continue;
    const Object value = attribute(node.attrs, arg);
    if (PyDict_SetItemString(attributes.get(), std::string(arg.name).c_str(), value.get()) != 0) {
      throw PythonError();
    }
  }
  return own(Py_BuildValue("(ssOO)", std::string(node.op->name).c_str(), node.name.c_str(), operands.get(),
                           attributes.get()));
}

}  // namespace

Object graph_list(const std::string& text) {
  const Pipeline pipeline = Pipeline::parse(text);
  const Graph& graph = pipeline.graph();
  const Object rows = own(PyList_New(0));
  for (const Node& node : graph.nodes) {
    const Object one = row(node);
    if (PyList_Append(rows.get(), one.get()) != 0) throw PythonError();
  }
  const Object outputs = own(PyDict_New());
  for (const Output& output : graph.extra_outputs) {
    const Object id = own(PyLong_FromLong(output.value));
    if (PyDict_SetItemString(outputs.get(), output.name.c_str(), id.get()) != 0) throw PythonError();
  }
  return own(Py_BuildValue("(OiO)", rows.get(), graph.output, outputs.get()));
}

}  // namespace upweave::python
