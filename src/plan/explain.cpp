#include "plan/explain.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/words.h"
#include "graph/operation.h"
#include "graph/text.h"
#include "plan/cost.h"
#include "plan/json_writer.h"

namespace upweave {

namespace {

std::string value_name(const FusedPlan& plan, Id id) {
  if (is_input(plan.graph, id)) return plan.graph[id].name;
  if (id == plan.graph.output) return "output";
  for (const auto& [name, value] : plan.graph.extra_outputs) {
    if (value == id) return name;
  }
  const Node& node = plan.graph[id];
  return node.name.empty() ? fmt::format("{} {}", node.op->name, to_string(node.shape)) : node.name;
}

std::string place_name(const FusedPlan& plan, Id id) {
  switch (plan.places[id].kind) {
    case Place::Kind::kOutput:
      if (id == plan.graph.output) return "";
      return plan.places[id].halves ? " (upper halves in the output's memory)" : " (in the output's memory)";
    case Place::Kind::kWorkspace:
      return plan.places[id].layout == Place::Layout::kPrepared ? " (workspace, in tiles)" : " (workspace)";
    default:
      return "";
  }
}

// The stages of a graph, one line each, with shape, operations and bytes as separate passes would have them.
std::string stage_table(const Graph& graph, const std::vector<bool>& weights, Dtype dtype) {
  std::string text;
  const std::vector<std::string> stages = print_stages(graph);
  for (Id id = 1; id < graph.size(); ++id) {
    if (graph[id].in.empty()) continue;
    const std::string stage = stages[id] + (graph[id].name.empty() ? "" : " as " + graph[id].name);
    if (weights[id]) {
      text += fmt::format("  {:<52} {:>18}   when weights are packed\n", stage, to_string(graph[id].shape));
    } else {
      text += fmt::format("  {:<52} {:>18} {:>9.3f} GFLOP {:>9.1f} MB\n", stage, to_string(graph[id].shape),
                          flops(graph, id) / 1e9, unfused_bytes(graph, id, dtype) / 1e6);
    }
  }
  return text;
}

std::string join_values(const FusedPlan& plan, const std::vector<Id>& ids, bool places) {
  std::vector<std::string> names;
  for (const Id id : ids) names.push_back(value_name(plan, id) + (places ? place_name(plan, id) : ""));
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

std::string join_ids(const std::vector<Id>& ids) {
  return ids.empty() ? "nothing" : fmt::format("%{}", fmt::join(ids, " %"));
}

// Every node by its number, with the numbers of what it reads.
std::string node_table(const Graph& graph) {
  std::string text;
  const std::vector<std::string> stages = print_stages(graph);
  for (Id id = 0; id < graph.size(); ++id) {
    std::vector<Id> in = graph[id].in;
    std::erase(in, kNone);
    text += fmt::format("  %{:<4} {:<52} {:>18}{}\n", id, stages[id], to_string(graph[id].shape),
                        in.empty() ? "" : "   of " + join_ids(in));
  }
  std::vector<Id> outputs = {graph.output};
  for (const Output& output : graph.extra_outputs) outputs.push_back(output.value);
  return text + fmt::format("  gives {}\n", join_ids(outputs));
}

// Where a value lives between passes; empty: nowhere, or where it is given.
std::string place_text(const FusedPlan& plan, Id id) {
  static const char* const kLayouts[] = {"row-major", "channels last", "prepared"};
  const Place& place = plan.places[id];
  const auto lies = [&](const char* where) {
    return fmt::format("{}, from byte {}, {} bytes, {} {}, steps {} to {}", where, place.offset, place.bytes,
                       name_of(place.dtype), kLayouts[static_cast<size_t>(place.layout)], place.first + 1,
                       place.last + 1);
  };
  switch (place.kind) {
    case Place::Kind::kOutput:
      if (id == plan.graph.output) return "output";
      return place.halves ? lies("upper halves in the output's memory, lower ones in the workspace")
                          : "in the output's memory";
    case Place::Kind::kExtraOutput:
      return "extra output";
    case Place::Kind::kWorkspace:
      return lies("workspace");
    case Place::Kind::kKept:
      return fmt::format("kept over the batch, from byte {}, {} bytes", place.offset, place.bytes);
    default:
      return "";
  }
}

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// How much goes together; empty: everything.
std::string part_text(const FusedPlan& plan) {
  const Part& part = plan.part;
  if (part.sliced()) {
    return fmt::format("sample by sample, {} of {} channels at a time",
                       part.graph[part.graph.output].shape[1], plan.graph[plan.graph.output].shape[1]);
  }
  if (part.whole()) return "";
  return fmt::format("{} of {} samples at a time, values between passes of {} of them are kept", part.samples,
                     part.all, std::min(part.all, part.samples * part.slots));
}

// What a run takes beyond inputs, outputs and packed weights.
std::string memory_text(const FusedPlan& plan) {
  const Workspace& workspace = plan.workspace;
  std::string text = fmt::format("values between passes: {:.1f} MiB, least possible {:.1f} MiB\n",
                                 mebibytes(plan.part.slots * workspace.values),
                                 mebibytes(plan.part.slots * workspace.least));
  if (workspace.limit == 0) return text;
  const int64_t total = workspace.total(plan.part), rest = workspace.kept + workspace.scratch;
  text += fmt::format("workspace: {:.1f} MiB with {:.1f} MiB for statistics over the batch and scratch",
                      mebibytes(total), mebibytes(rest));
  if (total > workspace.limit) {
    text += fmt::format(": more than the {:.1f} MiB that the engine allows itself, for {}",
                        mebibytes(workspace.limit),
                        rest > workspace.limit ? "a tile takes more" : "the values take them");
  }
  return text + "\n";
}

}  // namespace

std::string explain(const FusedPlan& plan, const Options& options,
                    const std::vector<std::string>& engine_lines) {
  const Graph& source = plan.source;
  std::string text = fmt::format("{}\n", print_text(source));
  std::vector<std::string> shapes;
  for (const Node& node : source.nodes) {
    if (node.in.empty()) shapes.push_back(fmt::format("{} {}", node.name, to_string(node.shape)));
  }
  std::vector<std::string> outputs = {fmt::format("output {}", to_string(visible_shape(source)))};
  for (const auto& [name, value] : source.extra_outputs) {
    const Dtype dtype = output_dtype(source, value, options.dtype);
    outputs.push_back(fmt::format("{} {}{}{}", name, to_string(visible_shape(source, value)),
                                  dtype == options.dtype ? "" : " ",
                                  dtype == options.dtype ? "" : name_of(dtype)));
  }
  text += fmt::format("{} -> {}; {}, engine {}, {}\n\n", fmt::join(shapes, ", "), fmt::join(outputs, ", "),
                      name_of(options.dtype), name_of(options.engine), name_of(options.precision));
  text +=
      "As written, one pass an operation\n" + stage_table(source, weight_side(source), options.dtype) + "\n";
  text += "Laws that fired\n";
  for (const Firing& firing : plan.firings) {
    text += fmt::format("  {}: {}\n      {}\n      holds because {}\n", firing.law, firing.where,
                        firing.equation, firing.why);
  }
  if (plan.firings.empty()) text += "  none\n";
  text += "\nRewritten\n" + stage_table(plan.graph, plan.weights, options.dtype) + "\n";
  text += "Passes over memory\n";
  int number = 1;
  const std::vector<std::string> printed = print_stages(plan.graph);
  for (const Pass& pass : plan.passes) {
    std::vector<std::string> stages;
    for (const Id id : pass.nodes) stages.push_back(printed[id]);
    text += fmt::format("  {}. {}\n     reads {}; writes {}", number++, fmt::join(stages, " | "),
                        join_values(plan, pass.reads, false), join_values(plan, pass.writes, true));
    if (!pass.reductions.empty())
      text += fmt::format("; finishes {}", join_values(plan, pass.reductions, false));
    text += fmt::format("\n     {:.3f} GFLOP, {:.1f} MB; ends because {}\n", pass.flops / 1e9,
                        pass.bytes / 1e6, pass.why);
  }
  const Cost& cost = plan.cost;
  text += fmt::format("\n{:<12} {:>7} {:>12} {:>12}\n", "", "passes", "GFLOP", "MB");
  text += fmt::format("{:<12} {:>7} {:>12.3f} {:>12.1f}\n", "as written", cost.unfused_passes,
                      cost.unfused_flops / 1e9, cost.unfused_bytes / 1e6);
  text += fmt::format("{:<12} {:>7} {:>12.3f} {:>12.1f}\n", "upweave", cost.passes, cost.flops / 1e9,
                      cost.bytes / 1e6);
  if (const std::string part = part_text(plan); !part.empty()) text += part + "\n";
  text += memory_text(plan);
  if (!engine_lines.empty()) text += fmt::format("\nEngine\n  {}\n", fmt::join(engine_lines, "\n  "));
  return text;
}

std::string explain_stages(const FusedPlan& plan, const Options& options,
                           const std::vector<std::string>& engine_lines) {
  std::vector<std::string> laws;
  for (const Firing& firing : plan.firings) laws.push_back(firing.law);
  std::string text = "1. As written, with shapes\n" + node_table(plan.source);
  text += fmt::format("\n2. Rewritten by {}\n",
                      laws.empty() ? "no law" : fmt::format("{}", fmt::join(laws, ", "))) +
          node_table(plan.graph);
  text += fmt::format("\n3. Plan: {} passes\n", plan.passes.size());
  int number = 1;
  for (const Pass& pass : plan.passes) {
    text += fmt::format("  pass {}{}: computes {}; reads {}; writes {}; finishes {}\n", number++,
                        pass.conv == kNone ? fmt::format("{}", pass.slab ? ", over whole samples" : "")
                                           : fmt::format(", convolution %{}", pass.conv),
                        join_ids(pass.nodes), join_ids(pass.reads), join_ids(pass.writes),
                        join_ids(pass.reductions));
  }
  for (Id id = 0; id < plan.graph.size(); ++id) {
    if (const std::string place = place_text(plan, id); !place.empty())
      text += fmt::format("  %{:<4} {}\n", id, place);
  }
  if (const std::string part = part_text(plan); !part.empty()) text += "  " + part + "\n";
  const Workspace& w = plan.workspace;
  text += fmt::format(
      "  {} bytes of values between passes (at least {}), {} kept over the batch, {} of scratch\n", w.values,
      w.least, w.kept, w.scratch);
  return text +
         fmt::format("\n4. Engine {}\n  {}\n", name_of(options.engine), fmt::join(engine_lines, "\n  "));
}

std::string explain_json(const FusedPlan& plan, const Options& options,
                         const std::vector<std::string>& engine_lines) {
  JsonWriter out;
  out.begin_object();
  out.member("text", print_text(plan.source));
  out.member("rewritten", print_text(plan.graph));
  out.member("output_shape", visible_shape(plan.source));
  if (!plan.source.extra_outputs.empty()) {
    out.key("extra_outputs");
    out.begin_object();
    for (const auto& [name, value] : plan.source.extra_outputs) {
      out.key(name);
      out.begin_object();
      out.member("shape", visible_shape(plan.source, value));
      out.member("dtype", std::string_view(name_of(output_dtype(plan.source, value, options.dtype))));
      out.end_object();
    }
    out.end_object();
  }
  out.member("dtype", std::string_view(name_of(options.dtype)));
  out.member("engine", std::string_view(name_of(options.engine)));
  out.member("precision", std::string_view(name_of(options.precision)));
  out.key("tensors");
  out.begin_object();
  for (const Node& node : plan.source.nodes) {
    if (node.in.empty()) out.member(node.name, node.shape);
  }
  out.end_object();
  out.key("laws");
  out.begin_array();
  for (const Firing& f : plan.firings) {
    out.begin_object();
    out.member("law", f.law);
    out.member("equation", f.equation);
    out.member("where", f.where);
    out.member("why", f.why);
    out.end_object();
  }
  out.end_array();
  out.key("passes");
  out.begin_array();
  const std::vector<std::string> printed = print_stages(plan.graph);
  for (const Pass& pass : plan.passes) {
    out.begin_object();
    out.key("stages");
    out.begin_array();
    for (const Id id : pass.nodes) out.value(printed[id]);
    out.end_array();
    for (const auto& [key, ids] :
         {std::pair{"reads", &pass.reads}, {"writes", &pass.writes}, {"finishes", &pass.reductions}}) {
      out.key(key);
      out.begin_array();
      for (const Id id : *ids) out.value(value_name(plan, id));
      out.end_array();
    }
    out.member("flops", pass.flops);
    out.member("bytes", pass.bytes);
    out.member("why", pass.why);
    out.end_object();
  }
  out.end_array();
  const Cost& cost = plan.cost;
  out.key("cost");
  out.begin_object();
  out.member("flops", cost.flops);
  out.member("unfused_flops", cost.unfused_flops);
  out.member("bytes", cost.bytes);
  out.member("unfused_bytes", cost.unfused_bytes);
  out.member("passes", int64_t{cost.passes});
  out.member("unfused_passes", int64_t{cost.unfused_passes});
  out.end_object();
  out.key("part");
  out.begin_object();
  out.member("samples", plan.part.samples);
  out.member("of_samples", plan.part.all);
  out.member("channel_blocks", plan.part.blocks);
  out.member("slots", plan.part.slots);
  out.end_object();
  out.key("workspace");
  out.begin_object();
  out.member("values_bytes", plan.workspace.values);
  out.member("least_values_bytes", plan.workspace.least);
  out.member("kept_bytes", plan.workspace.kept);
  out.member("scratch_bytes", plan.workspace.scratch);
  out.end_object();
  out.member("engine_notes", engine_lines);
  out.end_object();
  return out.take();
}

}  // namespace upweave
