#include "rewrite/check.h"

#include "base/check.h"
#include "graph/check.h"

namespace upweave {

void check(const Rewritten& rewritten, const Graph& written) {
  const Graph& graph = rewritten.graph;
  check(graph);
  const Shapes shapes = tensor_shapes(written);
  for (const auto& [name, shape] : tensor_shapes(graph)) {
    const auto it = shapes.find(name);
    if (it == shapes.end()) throw broken("the rewritten graph reads {}, which nobody gives", name);
    if (it->second != shape)
      throw broken("the rewritten graph reads {} as {} instead of {}", name, to_string(shape),
                   to_string(it->second));
  }
  const auto check_output = [&](const std::string& name, Id now, Id before) {
    if (graph[now].shape != written[before].shape)
      throw broken("output {} was {} and is {} when rewritten", name, to_string(written[before].shape),
                   to_string(graph[now].shape));
  };
  check_output("", graph.output, written.output);
  if (graph.extra_outputs.size() != written.extra_outputs.size())
    throw broken("{} extra outputs became {}", written.extra_outputs.size(), graph.extra_outputs.size());
  for (size_t k = 0; k < graph.extra_outputs.size(); ++k) {
    const auto& [name, value] = graph.extra_outputs[k];
    if (name != written.extra_outputs[k].name) throw broken("extra output {} changed its place", name);
    check_output(name, value, written.extra_outputs[k].value);
  }
}

}  // namespace upweave
