#include "graph/check.h"

#include <set>

#include "base/check.h"
#include "graph/operation.h"

namespace upweave {
namespace {

void check_operands(const Graph& graph, Id id) {
  const Node& node = graph[id];
  const auto& args = node.op->args;
  size_t slot = node.in.empty() ? 0 : 1;  // operand 0 is the value that a stage goes on from
  for (const Arg& arg : args) {
    if (arg.kind == Arg::Kind::kValues) {
      if (node.in.size() <= slot) throw broken("node {}: {} has no {}", id, node.op->name, arg.name);
      slot = node.in.size();
    }
    if (arg.kind != Arg::Kind::kTensor && arg.kind != Arg::Kind::kOperand) continue;
    const bool given = slot < node.in.size() && node.in[slot] != kNone;
    if (arg.required && !given && !node.attrs.has(arg.name))
      throw broken("node {}: {} has no {}", id, node.op->name, arg.name);
    ++slot;
  }
  if (node.in.size() != slot)
    throw broken("node {}: {} has {} operands instead of {}", id, node.op->name, node.in.size(), slot);
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Id in = node.in[i];
    if (in == kNone && i > 0) continue;
    if (in < 0 || in >= id)
      throw broken("node {}: {} reads node {}, which does not come before it", id, node.op->name, in);
  }
}

}  // namespace

void check(const Graph& graph) {
  if (!is_input(graph, 0)) throw broken("the graph has no input");
  std::set<std::string> tensors, outputs;
  for (Id id = 0; id < graph.size(); ++id) {
    const Node& node = graph[id];
    if (!node.op) throw broken("node {} has no operation", id);
    if (id > 0 && is_input(graph, id) && !is_input(graph, id - 1))
      throw broken("node {}: the input {} is not among the first nodes", id, node.name);
    check_operands(graph, id);
    if (node.shape.empty()) throw broken("node {}: {} has no shape", id, node.op->name);
    if (node.in.empty()) {
      if (!tensors.insert(node.name).second) throw broken("two tensors are called {}", node.name);
    } else if (const Shape shape = node.op->shape(graph, node); shape != node.shape) {
      throw broken("node {}: {} has shape {} instead of {}", id, node.op->name, to_string(node.shape),
                   to_string(shape));
    }
  }
  const auto check_output = [&](const std::string& name, Id value) {
    if (value < 0 || value >= graph.size()) throw broken("output {} is node {}: there is none", name, value);
    if (!outputs.insert(name).second) throw broken("two outputs are called {}", name);
  };
  check_output("", graph.output);
  for (const auto& [name, value] : graph.extra_outputs) check_output(name, value);
}

}  // namespace upweave
