#pragma once
// The text form of a pipeline: stages separated by '|', each an operation with its arguments.
//
//   avg_pool 2 | conv_transpose kernel s2 p1 op1 | clamp 0 1 | softmax space | mul scale
//
// `... as y` names a value; `@y` alone goes on from it, and as an argument uses it again. `... out y` names
// it and gives it out beside the result, which is the last value. A bare name is a parameter; `b:scalar`,
// `b:channel`, `t:full` say what it looks like. `$stride` is replaced from the settings.
//
// A first stage `input x skip` names the inputs: the pipeline begins with the first, and `@skip` reads the
// other. Without it there is one, called `input`.
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace upweave {

Graph parse_text(std::string_view text, const Settings& settings = {});

// Whether the word means an extent, a flag or a word of that operation's own (s2, drop, channel), so that a
// tensor of this name must be given as name=value.
struct Operation;
bool reads_as_setting(const Operation& op, std::string_view word);

// Canonical: print_text(parse_text(t)) is a fixed point, also for rewritten graphs.
std::string print_text(const Graph& graph);
// One stage, as print_text writes it; and all of them, by node.
std::string print_stage(const Graph& graph, Id id);
std::vector<std::string> print_stages(const Graph& graph);

}  // namespace upweave
