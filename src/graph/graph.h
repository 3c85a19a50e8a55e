#pragma once
// A pipeline as a small list of operations in topological order. Rewrites make new graphs; nodes never change
// once a graph is shared.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "graph/op.h"

namespace upweave {

struct Operation;

using Id = int;
constexpr Id kNone = -1;  // an optional operand that was not given

// What a stage says besides its tensors: numbers, extents, words. Typed access throws on a programming error.
class Attributes {
 public:
  using Value = std::variant<double, Shape, std::string, bool>;
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  double real(std::string_view name) const { return std::get<double>(values_.find(name)->second); }
  const Shape& ints(std::string_view name) const { return std::get<Shape>(values_.find(name)->second); }
  const std::string& word(std::string_view name) const {
    return std::get<std::string>(values_.find(name)->second);
  }
  double real_or(std::string_view name, double fallback) const { return has(name) ? real(name) : fallback; }
  bool flag(std::string_view name) const {
    const auto it = values_.find(name);
    return it != values_.end() && std::get<bool>(it->second);
  }
  // One extent for all axes is kept as one number: 2x2x2 is 2, so that equal pipelines print alike.
  void set(std::string_view name, Value value) {
    if (Shape* extents = std::get_if<Shape>(&value)) {
      if (std::ranges::all_of(*extents, [&](int64_t e) { return e == extents->front(); })) extents->resize(1);
    }
    values_.insert_or_assign(std::string(name), std::move(value));
  }
  void erase(std::string_view name) {
    if (const auto it = values_.find(name); it != values_.end()) values_.erase(it);
  }
  friend bool operator==(const Attributes&, const Attributes&) = default;

 private:
  std::map<std::string, Value, std::less<>> values_;
};

struct Node {
  const Operation* op = nullptr;
  // The value that the stage goes on from, then one per tensor argument of the operation, in the order of its
  // `args`; kNone if absent. An argument of several values (cat's) is the last and has one for each.
  std::vector<Id> in;
  Attributes attrs;
  std::string name;            // a parameter's name, or the label given by `as`
  Shape shape;                 // empty until inferred
  bool of_parameters = false;  // inferred: it depends on parameters alone
};

// A value that is given out beside the result.
struct Output {
  std::string name;
  Id value;
};

struct Graph {
  std::vector<Node> nodes;  // the inputs first, in their order; operands come before their users
  Id output = 0;
  std::vector<Output> extra_outputs = {};

  const Node& operator[](Id id) const { return nodes[static_cast<size_t>(id)]; }
  Node& operator[](Id id) { return nodes[static_cast<size_t>(id)]; }
  Id size() const { return static_cast<Id>(nodes.size()); }
  Id add(Node node) {
    nodes.push_back(std::move(node));
    return size() - 1;
  }
};

bool is(const Node& node, Op op);
bool is(const Node& node, Family family);
inline bool is_pool(const Node& node) { return is(node, Family::kPool); }
bool is_param(const Graph& graph, Id id);
bool is_input(const Graph& graph, Id id);  // false behind the last node
Id input_count(const Graph& graph);        // they are the nodes from 0 on
int64_t batch_size(const Graph& graph);    // the most samples that an input has; others have one
// True if the value depends on parameters alone: it is computed when weights are packed.
std::vector<bool> weight_side(const Graph& graph);
// Who reads each node; each of the graph's outputs counts as a reader (kNone).
std::vector<std::vector<Id>> users(const Graph& graph);
bool is_output(const Graph& graph, Id id);  // the result, or an extra output
bool is_extra_output(const Graph& graph, Id id);
// {2, sets}: means and variances, or the like. Given out they are float32 at least, whatever the elements.
inline bool is_statistics(const Node& node) { return node.shape.size() == 2; }
// `last` behind all that it is computed from, operands first; nodes that are not `wanted` are left out, with
// what only they need.
std::vector<Id> with_operands(const Graph& graph, Id last, const std::function<bool(Id)>& wanted);
// A graph without the nodes that no output needs, in topological order. Inputs always stay.
Graph prune(Graph graph);
// Names of the parameters in order of first use.
std::vector<std::string> parameter_names(const Graph& graph);
std::vector<std::string> input_names(const Graph& graph);
// Of every input and parameter, by name.
Shapes tensor_shapes(const Graph& graph);

// The graph with every shape filled in and checked. `shapes` holds every input and the parameters; a
// parameter that is missing gets the shape that its user expects (the kernel from `64 k3`, vectors a value
// per channel). Inputs have the same number of samples, or one for all samples of the others.
Graph infer(Graph graph, const Shapes& shapes);

// The product of the extents, checked.
int64_t count(const Shape& shape);
// Throws unless a tensor of this shape is within kMaxElements; extents of 0 count as 1.
void check_elements(std::string_view name, const Shape& shape);
std::string to_string(const Shape& shape);  // "2x32x16"
// "d", "h", "w" for the spatial axis `axis` (0-based) of `spatial` in all.
const char* axis_suffix(size_t axis, size_t spatial);
// The shape of an output that a caller sees: reductions with `drop` lose their axes there, and only there.
Shape visible_shape(const Graph& graph, Id output);
inline Shape visible_shape(const Graph& graph) { return visible_shape(graph, graph.output); }

}  // namespace upweave
