#include "graph/graph.h"

#include <algorithm>
#include <iterator>

#include "base/checked.h"
#include "graph/limits.h"
#include "graph/operation.h"
#include "graph/ops/conv_transpose.h"

namespace upweave {

bool is(const Node& node, Op op) { return node.op->id == op; }
bool is(const Node& node, Family family) { return node.op->family == family; }

bool is_param(const Graph& graph, Id id) { return id != kNone && is(graph[id], Op::kParam); }

bool is_input(const Graph& graph, Id id) { return id >= 0 && id < graph.size() && is(graph[id], Op::kInput); }

Id input_count(const Graph& graph) {
  Id n = 0;
  while (is_input(graph, n)) ++n;
  return n;
}

int64_t batch_size(const Graph& graph) {
  int64_t samples = 0;
  for (Id id = 0; is_input(graph, id); ++id) samples = std::max(samples, graph[id].shape[0]);
  return samples;
}

std::vector<bool> weight_side(const Graph& graph) {
  std::vector<bool> result(graph.nodes.size());
  for (Id id = 0; id < graph.size(); ++id) {
    const Node& node = graph[id];
    result[id] =
        is(node, Op::kParam) ||
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
  for (const Output& output : graph.extra_outputs) result[output.value].push_back(kNone);
  return result;
}

bool is_extra_output(const Graph& graph, Id id) {
  return std::ranges::any_of(graph.extra_outputs, [&](const Output& output) { return output.value == id; });
}

bool is_output(const Graph& graph, Id id) { return id == graph.output || is_extra_output(graph, id); }

Graph prune(Graph graph) {
  Graph result;
  std::vector<Id> renamed(graph.nodes.size(), kNone);
  for (Id id = 0, inputs = input_count(graph); id < inputs; ++id)
    renamed[id] = result.add(std::move(graph[id]));
  // Rewrites append nodes out of order, this puts operands first again. Outputs in their order: the one that
  // another is made of comes first, so that this order is there to stay.
  std::vector<Id> wanted = {graph.output};
  for (const Output& output : graph.extra_outputs) wanted.push_back(output.value);
  std::ranges::sort(wanted);
  for (Id& last : wanted) {
    for (const Id id : with_operands(graph, last, [&](Id at) { return renamed[at] == kNone; })) {
      for (Id& in : graph[id].in) {
        if (in != kNone) in = renamed[in];
      }
      renamed[id] = result.add(std::move(graph[id]));
    }
    last = renamed[last];
  }
  result.output = renamed[graph.output];
  for (const auto& [name, value] : graph.extra_outputs)
    result.extra_outputs.push_back({name, renamed[value]});
  return std::ranges::is_sorted(wanted) ? result : prune(std::move(result));
}

std::vector<std::string> parameter_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) {
    if (is(node, Op::kParam)) names.push_back(node.name);
  }
  return names;
}

std::vector<std::string> input_names(const Graph& graph) {
  std::vector<std::string> names;
  for (Id id = 0; is_input(graph, id); ++id) names.push_back(graph[id].name);
  return names;
}

Shapes tensor_shapes(const Graph& graph) {
  Shapes shapes;
  for (const Node& node : graph.nodes) {
    if (node.in.empty()) shapes[node.name] = node.shape;
  }
  return shapes;
}

std::vector<Id> with_operands(const Graph& graph, Id last, const std::function<bool(Id)>& wanted) {
  std::vector<Id> result;
  std::vector<bool> met(graph.nodes.size(), false);
  std::vector<std::pair<Id, size_t>> path;  // a node, and which of its operands comes next
  auto enter = [&](Id id) {
    if (id == kNone || met[id] || !wanted(id)) return;
    met[id] = true;
    path.emplace_back(id, 0);
  };
  enter(last);
  while (!path.empty()) {
    auto& [id, slot] = path.back();
    if (slot < graph[id].in.size()) {
      enter(graph[id].in[slot++]);
    } else {
      result.push_back(id);
      path.pop_back();
    }
  }
  return result;
}

int64_t count(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n = checked_mul(n, extent, "the number of elements");
  return n;
}

void check_elements(std::string_view name, const Shape& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(n, std::max<int64_t>(1, extent), &n) || n > kMaxElements) {
      throw invalid("the value of {} has shape {}; a tensor has at most 2^40 elements", name,
                    to_string(shape));
    }
  }
  if (shape.size() > 2 && shape[1] > kMaxChannels) {
    throw invalid("the value of {} has shape {}; it has at most {} channels", name, to_string(shape),
                  kMaxChannels);
  }
}

std::string to_string(const Shape& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

const char* axis_suffix(size_t axis, size_t spatial) {
  static constexpr const char* kNames[] = {"d", "h", "w"};
  return kNames[3 - spatial + axis];
}

Shape visible_shape(const Graph& graph, Id output) {
  // `drop` removes an axis from what the caller sees. Pointwise stages behind it carry the mark along.
  const size_t rank = graph[output].shape.size();
  std::vector<bool> dropped(rank, false);
  for (Id id = output; !graph[id].in.empty() && graph[id].in[0] != kNone; id = graph[id].in[0]) {
    const Node& node = graph[id];
    if (is_statistics(node)) break;  // has sets, no axes
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
    if (!dropped[axis] || graph[output].shape[axis] != 1) shape.push_back(graph[output].shape[axis]);
  }
  return shape;
}

namespace {

void check_input(const std::string& input, const Shape& shape) {
  if (shape.size() < 3 || shape.size() > 5) {
    throw invalid("{} has shape {}; it must be N C W, N C H W or N C D H W", input, to_string(shape));
  }
  static constexpr const char* kSpace[] = {"depth", "height", "width"};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const char* name = axis == 0 ? "batch_size" : axis == 1 ? "in_channels" : kSpace[axis + 3 - shape.size()];
    if (shape[axis] < (axis == 0 ? 0 : 1)) {
      throw invalid("{}{} is {}; it must be at least {}", name, input == "input" ? "" : " of " + input,
                    shape[axis], axis == 0 ? 0 : 1);
    }
  }
  check_elements(input, shape);
}

// Of the shapes of the inputs alone.
void check_batch(const Graph& graph) {
  const int64_t all = batch_size(graph);
  for (Id id = 0; is_input(graph, id); ++id) {
    const int64_t samples = graph[id].shape[0];
    if (samples != all && samples != 1) {
      throw invalid("batch_size of {} is {}; it must be 1 or that of the other inputs, {}", graph[id].name,
                    samples, all);
    }
  }
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

Graph infer(Graph graph, const Shapes& shapes) {
  Graph result = std::move(graph);
  for (const auto& [name, shape] : shapes) {
    const bool known = std::ranges::any_of(result.nodes, [&](const Node& node) {
      return (is(node, Op::kInput) || is(node, Op::kParam)) && node.name == name;
    });
    if (!known) {
      std::vector<std::string> names = input_names(result);
      std::ranges::copy(parameter_names(result), std::back_inserter(names));
      throw Error(Status::kInvalid, fmt::format("the pipeline has no tensor named '{}'; it has: {}",
                                                excerpt(name), listed(names)));
    }
  }
  for (Id id = 0; id < result.size(); ++id) {
    Node& node = result[id];
    if (is(node, Op::kInput)) {
      const auto it = shapes.find(node.name);
      if (it == shapes.end())
        throw invalid("the shape of {}{} is missing", node.name == "input" ? "the " : "", node.name);
      check_input(node.name, it->second);
      node.shape = it->second;
      if (id + 1 == input_count(result)) check_batch(result);
      continue;
    }
    const std::vector<Id>& operands = node.in;
    node.of_parameters =
        std::ranges::all_of(operands, [&](Id in) { return in == kNone || result[in].of_parameters; });
    if (is(node, Op::kParam)) {
      node.shape.clear();
      if (const auto it = shapes.find(node.name); it != shapes.end()) {
        node.shape = it->second.empty() ? Shape{1} : it->second;  // a 0-dim tensor is one value
        for (const int64_t extent : node.shape) {
          if (extent < 1)
            throw invalid("{} has shape {}; extents must be at least 1", node.name, to_string(node.shape));
        }
        check_elements(node.name, node.shape);
      }
      continue;
    }
    if (is_param(result, node.in[0]) && result[node.in[0]].shape.empty()) {
      throw invalid("the shape of {} is missing", result[node.in[0]].name);
    }
    if (const Shape& x = shape_of(result, node, 0); !node.op->of_weights && (x.size() < 3 || x.size() > 5)) {
      throw invalid("{} meets a value of shape {}; it must be N C W, N C H W or N C D H W", node.op->name,
                    to_string(x));
    }
    for (size_t slot = 1; slot < node.in.size(); ++slot) {
      if (!is_param(result, node.in[slot])) continue;
      Node& param = result[node.in[slot]];
      if (param.shape.empty()) {
        param.shape = node.op->param_shape ? node.op->param_shape(result, node, slot)
                                           : default_param_shape(result, node, param);
        check_elements(param.name, param.shape);
      }
      if (!node.op->of_weights) check_kind(result, node, param);  // statistics have no such axes
    }
    node.shape = node.op->shape(result, node);
    check_elements(node.op->name, node.shape);
  }
  check_conv_tables(result);
  return result;
}

}  // namespace upweave
