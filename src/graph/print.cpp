#include <algorithm>
#include <set>

#include "graph/operation.h"
#include "graph/text.h"

namespace upweave {
namespace {

std::string number(double v) { return fmt::format("{}", v); }

std::string tensor_text(const Graph& graph, Id id, const std::vector<std::string>& labels) {
  const Node& node = graph[id];
  if (!is(node, Op::kParam)) return "@" + labels[id];
  return node.attrs.has("kind") ? fmt::format("{}:{}", node.name, node.attrs.word("kind")) : node.name;
}

std::string stage_text(const Graph& graph, Id id, const std::vector<std::string>& labels) {
  const Node& node = graph[id];
  std::string text(node.op->name);
  size_t slot = 0;
  bool hole = false;  // an optional tensor before this one is absent: name the rest
  for (const Arg& arg : node.op->args) {
    switch (arg.kind) {
      case Arg::Kind::kTensor:
      case Arg::Kind::kOperand:
        ++slot;
        if (node.in[slot] != kNone) {
          const std::string tensor = tensor_text(graph, node.in[slot], labels);
          const bool named =
              arg.named || (arg.kind == Arg::Kind::kTensor && (hole || reads_as_setting(*node.op, tensor)));
          text += fmt::format(" {}{}", named ? fmt::format("{}=", arg.name) : "", tensor);
        } else if (arg.kind == Arg::Kind::kOperand && node.attrs.has(arg.name)) {
          text += " " + number(node.attrs.real(arg.name));
        } else {
          hole = true;
        }
        break;
      case Arg::Kind::kValues:
        while (++slot < node.in.size()) text += " " + tensor_text(graph, node.in[slot], labels);
        break;
      case Arg::Kind::kSlices:
        if (node.attrs.has(arg.name))
          text +=
              fmt::format(" {}{}", arg.named ? fmt::format("{}=", arg.name) : "", node.attrs.word(arg.name));
        break;
      case Arg::Kind::kInts:
        if (node.attrs.has(arg.name)) {
          text += fmt::format(" {}{}", arg.prefix, to_string(node.attrs.ints(arg.name)));
        }
        break;
      case Arg::Kind::kReal:
        if (node.attrs.has(arg.name)) {
          text += fmt::format(" {}{}", arg.named ? fmt::format("{}=", arg.name) : "",
                              number(node.attrs.real(arg.name)));
        }
        break;
      case Arg::Kind::kWord:
        if (node.attrs.has(arg.name)) text += " " + node.attrs.word(arg.name);
        break;
      case Arg::Kind::kFlag:
        if (node.attrs.flag(arg.name)) text += fmt::format(" {}", arg.name);
        break;
    }
  }
  return text;
}

// The names to print: a node's own, or a fresh one where a stage cannot simply follow its operand.
std::vector<std::string> make_labels(const Graph& graph) {
  std::set<std::string> taken;
  for (const Node& node : graph.nodes) taken.insert(node.name);
  for (const Output& output : graph.extra_outputs) taken.insert(output.name);
  std::vector<std::string> labels(graph.nodes.size());
  for (Id id = 0; id < graph.size(); ++id) labels[id] = graph[id].name;
  for (const auto& [name, value] : graph.extra_outputs) {
    if (labels[value].empty()) labels[value] = name;
  }
  int next = 1;
  auto need = [&](Id id) {
    if (id == kNone || !labels[id].empty()) return;
    while (taken.contains(fmt::format("v{}", next))) ++next;
    labels[id] = fmt::format("v{}", next++);
  };
  Id previous = 0;
  for (Id id = 1; id < graph.size(); ++id) {
    const Node& node = graph[id];
    if (node.in.empty()) continue;
    if (node.in[0] != previous) need(node.in[0]);
    for (size_t slot = 1; slot < node.in.size(); ++slot) need(node.in[slot]);
    previous = id;
  }
  if (graph.output != previous) need(graph.output);
  return labels;
}

std::string any_stage(const Graph& graph, Id id, const std::vector<std::string>& labels) {
  if (is(graph[id], Op::kInput)) return "@" + graph[id].name;
  if (is(graph[id], Op::kParam)) return "param " + tensor_text(graph, id, labels);
  return stage_text(graph, id, labels);
}

}  // namespace

std::string print_stage(const Graph& graph, Id id) { return any_stage(graph, id, make_labels(graph)); }

std::vector<std::string> print_stages(const Graph& graph) {
  const std::vector<std::string> labels = make_labels(graph);
  std::vector<std::string> stages;
  for (Id id = 0; id < graph.size(); ++id) stages.push_back(any_stage(graph, id, labels));
  return stages;
}

std::string print_text(const Graph& graph) {
  const std::vector<std::string> labels = make_labels(graph);
  std::vector<std::string> stages;
  Id previous = 0;  // what the next stage would follow
  const auto other_names = [&](Id id) {
    for (const auto& [name, value] : graph.extra_outputs) {
      if (value != id || name == labels[id]) continue;
      stages.push_back(fmt::format("@{} out {}", labels[id], name));
      previous = id;
    }
  };
  const std::vector<std::string> inputs = input_names(graph);
  if (inputs != std::vector<std::string>{"input"})
    stages.push_back(fmt::format("input {}", fmt::join(inputs, " ")));
  for (Id id = 0; is_input(graph, id); ++id) other_names(id);
  for (Id id = 1; id < graph.size(); ++id) {
    const Node& node = graph[id];
    if (node.in.empty()) continue;
    if (node.in[0] != previous) {
      stages.push_back(is_param(graph, node.in[0]) ? "param " + tensor_text(graph, node.in[0], labels)
                                                   : "@" + labels[node.in[0]]);
    }
    std::string text = stage_text(graph, id, labels);
    const bool out = std::ranges::any_of(
        graph.extra_outputs, [&](const Output& o) { return o.value == id && o.name == labels[id]; });
    if (!labels[id].empty()) text += (out ? " out " : " as ") + labels[id];
    stages.push_back(std::move(text));
    previous = id;
    other_names(id);
  }
  if (graph.output != previous) stages.push_back("@" + labels[graph.output]);
  return stages.empty() ? "@input" : fmt::format("{}", fmt::join(stages, " | "));
}

}  // namespace upweave
