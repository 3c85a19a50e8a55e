#include "graph/graph.h"

#include <algorithm>

#include "base/checked.h"
#include "graph/operation.h"

namespace upweave {

bool is(const Node& node, std::string_view op) { return node.op->name == op; }

bool is_pool(const Node& node) {
  return is(node, "avg_pool") || is(node, "max_pool") || is(node, "min_pool");
}

bool is_param(const Graph& graph, Id id) { return id != kNone && is(graph[id], "param"); }

std::vector<bool> weight_side(const Graph& graph) {
  std::vector<bool> result(graph.nodes.size());
  for (Id id = 0; id < graph.size(); ++id) {
    const Node& node = graph[id];
    result[id] =
        is(node, "param") ||
        (!node.in.empty() && std::ranges::all_of(node.in, [&](Id in) { return in == kNone || result[in]; }));
  }
  return result;
}

std::vector<std::vector<Id>> users(const Graph& graph) {
  std::vector<std::vector<Id>> result(graph.nodes.size());
  for (Id id = 0; id < graph.size(); ++id) {
    for (const Id in : graph[id].in) {
      if (in != kNone) result[in].push_back(id);
    }
  }
  result[graph.output].push_back(kNone);
  return result;
}

Graph prune(const Graph& graph) {
  Graph result;
  std::vector<Id> renamed(graph.nodes.size(), kNone);
  result.add(graph[0]);
  renamed[0] = 0;
  // Depth first from the output: rewrites append nodes out of order, this puts operands first again.
  auto visit = [&](auto& self, Id id) -> Id {
    if (renamed[id] != kNone) return renamed[id];
    Node node = graph[id];
    for (Id& in : node.in) {
      if (in != kNone) in = self(self, in);
    }
    return renamed[id] = result.add(std::move(node));
  };
  result.output = visit(visit, graph.output);
  return result;
}

std::vector<std::string> parameter_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) {
    if (is(node, "param")) names.push_back(node.name);
  }
  return names;
}

int64_t count(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n = checked_mul(n, extent, "the number of elements");
  return n;
}

std::string to_string(const Shape& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

const char* axis_suffix(size_t axis, size_t spatial) {
  static constexpr const char* kNames[] = {"d", "h", "w"};
  return kNames[3 - spatial + axis];
}

Shape visible_shape(const Graph& graph) {
  // `drop` removes an axis from what the caller sees. Pointwise stages behind it carry the mark along.
  const size_t rank = graph[graph.output].shape.size();
  std::vector<bool> dropped(rank, false);
  for (Id id = graph.output; !graph[id].in.empty() && graph[id].in[0] != kNone; id = graph[id].in[0]) {
    const Node& node = graph[id];
    if (!node.attrs.flag("drop")) continue;
    const std::string& axes = node.attrs.word("axes");
    for (size_t axis = 1; axis < rank; ++axis) {
      const bool hit = axes == "channel" ? axis == 1
                       : axes == "space" ? axis > 1
                                         : axis > 1 && axes.front() == *axis_suffix(axis - 2, rank - 2);
      if (hit) dropped[axis] = true;
    }
  }
  Shape shape;
  for (size_t axis = 0; axis < rank; ++axis) {
    // A later stage may have broadcast the axis to a larger extent: then it is there again.
    if (!dropped[axis] || graph[graph.output].shape[axis] != 1)
      shape.push_back(graph[graph.output].shape[axis]);
  }
  return shape;
}

namespace {

void check_input(const Shape& shape) {
  if (shape.size() < 3 || shape.size() > 5) {
    throw invalid("input has shape {}; it must be N C W, N C H W or N C D H W", to_string(shape));
  }
  static constexpr const char* kSpace[] = {"depth", "height", "width"};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const char* name = axis == 0 ? "batch_size" : axis == 1 ? "in_channels" : kSpace[axis + 3 - shape.size()];
    if (shape[axis] < (axis == 0 ? 0 : 1)) {
      throw invalid("{} is {}; it must be at least {}", name, shape[axis], axis == 0 ? 0 : 1);
    }
  }
  count(shape);
}

Shape default_param_shape(const Graph& graph, const Node& user, const Node& param) {
  const Shape& value = shape_of(graph, user, 0);
  if (param.attrs.has("kind")) {
    if (param.attrs.word("kind") == "scalar") return {1};
    if (param.attrs.word("kind") == "full") return value;
  }
  return {value[1]};
}

void check_kind(const Graph& graph, const Node& user, const Node& param) {
  if (!param.attrs.has("kind")) return;
  const std::string& kind = param.attrs.word("kind");
  const bool scalar = count(param.shape) == 1;
  const bool full = param.shape == shape_of(graph, user, 0);
  if ((kind == "scalar" && !scalar) || (kind == "full" && !full)) {
    throw invalid("{} has shape {}, but the pipeline says {}:{}", param.name, to_string(param.shape),
                  param.name, kind);
  }
}

}  // namespace

Graph infer(const Graph& graph, const Shapes& shapes) {
  Graph result = graph;
  for (const auto& [name, shape] : shapes) {
    const bool known = name == "input" || std::ranges::any_of(graph.nodes, [&](const Node& node) {
                         return is(node, "param") && node.name == name;
                       });
    if (!known) {
      throw invalid("the pipeline has no tensor named '{}'; it has: input{}{}", name,
                    parameter_names(graph).empty() ? "" : ", ", fmt::join(parameter_names(graph), ", "));
    }
  }
  for (Id id = 0; id < result.size(); ++id) {
    Node& node = result[id];
    if (is(node, "input")) {
      const auto it = shapes.find("input");
      if (it == shapes.end()) throw invalid("the shape of the input is missing");
      check_input(it->second);
      node.shape = it->second;
      continue;
    }
    if (is(node, "param")) {
      node.shape.clear();
      if (const auto it = shapes.find(node.name); it != shapes.end()) {
        node.shape = it->second.empty() ? Shape{1} : it->second;  // a 0-dim tensor is one value
        for (const int64_t extent : node.shape) {
          if (extent < 1)
            throw invalid("{} has shape {}; extents must be at least 1", node.name, to_string(node.shape));
        }
        count(node.shape);
      }
      continue;
    }
    for (size_t slot = 0; slot < node.in.size(); ++slot) {
      if (!is_param(result, node.in[slot])) continue;
      Node& param = result[node.in[slot]];
      if (param.shape.empty()) {
        if (slot == 0) throw invalid("the shape of {} is missing", param.name);
        param.shape = node.op->param_shape ? node.op->param_shape(result, node, slot)
                                           : default_param_shape(result, node, param);
      }
      if (slot > 0) check_kind(result, node, param);
    }
    if (const Shape& x = shape_of(result, node, 0); !node.op->of_weights && (x.size() < 3 || x.size() > 5)) {
      throw invalid("{} meets a value of shape {}; it must be N C W, N C H W or N C D H W", node.op->name,
                    to_string(x));
    }
    node.shape = node.op->shape(result, node);
    count(node.shape);
  }
  return result;
}

}  // namespace upweave
