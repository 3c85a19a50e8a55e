// Each stage of the road says what its result must be: what is broken by hand is found.
#include <gtest/gtest.h>

#include "api/road.h"
#include "base/check.h"
#include "graph/check.h"
#include "graph/operation.h"
#include "graph/text.h"
#include "plan/check.h"
#include "plan/explain.h"
#include "rewrite/check.h"

namespace upweave {
namespace {

const char* const kText =
    "conv_transpose kernel bias 8 k3 s2 p1 as c | batch_norm w b | max_pool 2 | gelu out y | mul @y";
const Shapes kShapes = {{"input", {2, 4, 5, 6}}};

Id find(const Graph& graph, std::string_view op) {
  for (Id id = 0; id < graph.size(); ++id) {
    if (graph[id].op->name == op) return id;
  }
  throw invalid("there is no {}", op);
}

// What `what` says of the thing that `change` has broken; empty: nothing.
template <class Thing, class Change>
std::string complaint(Thing thing, Change&& change, const std::function<void(const Thing&)>& what) {
  change(thing);
  try {
    what(thing);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInternal);
    return error.what();
  }
  return "";
}

void expect_said(const std::string& said, const std::string& part) {
  EXPECT_NE(said.find(part), said.npos) << "'" << part << "' is not in '" << said << "'";
}

TEST(Stages, AreCheckedInTests) { EXPECT_TRUE(checks_stages()); }

TEST(Stages, AGraphIsChecked) {
  const Graph graph = infer(parse_text(kText), kShapes);
  const auto said = [&](auto&& change) {
    return complaint<Graph>(graph, change, [](const Graph& g) { check(g); });
  };
  EXPECT_EQ(said([](Graph&) {}), "");
  const Id pool = find(graph, "max_pool");
  expect_said(said([&](Graph& g) { g[pool].in[0] = pool + 1; }), "does not come before it");
  expect_said(said([&](Graph& g) { g[pool].in[0] = kNone; }), "does not come before it");
  expect_said(said([&](Graph& g) { g[pool].in.push_back(0); }), "operands instead of");
  expect_said(said([&](Graph& g) { g[find(g, "conv_transpose")].in[1] = kNone; }), "has no weights");
  expect_said(said([&](Graph& g) { g[pool].shape.clear(); }), "has no shape");
  expect_said(said([&](Graph& g) { g[pool].shape.back() += 1; }), "instead of");
  expect_said(said([&](Graph& g) { g[pool].op = nullptr; }), "has no operation");
  expect_said(said([&](Graph& g) { g.output = g.size(); }), "there is none");
  expect_said(said([&](Graph& g) { g.extra_outputs[0].value = kNone; }), "there is none");
  expect_said(said([&](Graph& g) { g.extra_outputs.push_back(g.extra_outputs[0]); }), "two outputs");
  expect_said(said([&](Graph& g) { g[find(g, "param")].name = "input"; }), "two tensors");
}

TEST(Stages, ARewrittenGraphIsChecked) {
  const Graph written = infer(parse_text(kText), kShapes);
  const auto said = [&](auto&& change) {
    return complaint<Rewritten>(rewrite(written), change, [&](const Rewritten& r) { check(r, written); });
  };
  EXPECT_EQ(said([](Rewritten&) {}), "");
  expect_said(said([](Rewritten& r) { r.graph.output = 0; }), "output  was");
  expect_said(said([](Rewritten& r) { r.graph.extra_outputs[0].value = 0; }), "output y was");
  expect_said(said([](Rewritten& r) { r.graph.extra_outputs[0].name = "z"; }), "changed its place");
  expect_said(said([](Rewritten& r) { r.graph.extra_outputs.clear(); }), "became 0");
  expect_said(said([](Rewritten& r) { r.graph[find(r.graph, "param")].name = "stranger"; }), "nobody gives");
  expect_said(said([](Rewritten& r) { r.graph[find(r.graph, "max_pool")].shape.clear(); }), "has no shape");
}

TEST(Stages, APlanIsChecked) {
  const FusedPlan plan = lower_to_plan(parse_text(kText), kShapes, {}, Target{.flops_per_byte = 0});
  ASSERT_EQ(plan.passes.size(), 2u);
  ASSERT_FALSE(plan.passes[0].writes.empty());
  ASSERT_FALSE(plan.passes[0].reductions.empty());
  const auto said = [&](auto&& change) {
    return complaint<FusedPlan>(plan, change, [](const FusedPlan& p) { check(p); });
  };
  EXPECT_EQ(said([](FusedPlan&) {}), "");
  const Id stored = plan.passes[0].writes[0], finished = plan.passes[0].reductions[0];
  expect_said(said([](FusedPlan& p) { p.places.pop_back(); }), "places");
  expect_said(said([&](FusedPlan& p) { p.places[stored].kind = Place::Kind::kNowhere; }), "is left nowhere");
  expect_said(said([&](FusedPlan& p) { p.places[stored].kind = Place::Kind::kOutput; }),
              "the output's memory");
  expect_said(said([&](FusedPlan& p) { p.places[stored].offset += 4; }), "of a workspace");
  expect_said(said([](FusedPlan& p) { p.workspace.values = 64; }), "of a workspace");
  expect_said(said([](FusedPlan& p) { p.workspace.least = p.workspace.values + 1; }), "alive at once");
  expect_said(said([&](FusedPlan& p) { p.places[finished].offset = p.workspace.kept; }), "of a workspace");
  expect_said(said([&](FusedPlan& p) { p.places[stored].last = -1; }), "from step");
  expect_said(said([&](FusedPlan& p) { p.places[finished].halves = true; }), "halves nowhere");
  expect_said(said([&](FusedPlan& p) {
                p.places[finished] = p.places[stored];
                p.places[finished].bytes -= 1;
              }),
              "share memory");
  expect_said(said([](FusedPlan& p) { p.part.samples = 3; }), "samples go together");
  expect_said(said([](FusedPlan& p) { p.part.samples = 1; }), "do not make");
  expect_said(said([](FusedPlan& p) { p.part.slots = 2; }), "slots");
  expect_said(said([](FusedPlan& p) { p.part.graph.nodes.pop_back(); }), "in a part");
  expect_said(said([](FusedPlan& p) { p.passes[0].writes.clear(); }), "no earlier pass left");
  expect_said(said([](FusedPlan& p) { p.passes[1].reads.clear(); }), "lists");
  expect_said(said([](FusedPlan& p) { std::swap(p.passes[0], p.passes[1]); }), "no earlier pass left");
  expect_said(said([](FusedPlan& p) { std::ranges::reverse(p.passes[1].nodes); }), "no earlier pass left");
  expect_said(said([](FusedPlan& p) { p.passes[1].conv = p.passes[0].conv; }), "is not in it");
  expect_said(said([](FusedPlan& p) { p.passes[0].conv = kNone; }), "second convolution");
  expect_said(said([](FusedPlan& p) { p.passes[0].slab = true; }), "whole samples");
  expect_said(said([](FusedPlan& p) { p.passes[1].nodes.clear(); }), "computes nothing");
  expect_said(said([](FusedPlan& p) { p.passes[1].writes.clear(); }), "that no pass writes");
  expect_said(said([&](FusedPlan& p) { p.passes[1].writes.push_back(stored); }), "without computing");
  expect_said(said([](FusedPlan& p) { p.passes[0].writes.push_back(p.passes[0].writes[0]); }),
              "there already");
}

TEST(Stages, ArePrinted) {
  const FusedPlan plan = lower_to_plan(parse_text(kText), kShapes, {});
  const std::string text = explain_stages(plan, {}, {"one kernel"});
  for (const char* part :
       {"1. As written", "%0", "conv_transpose", "2x8x9x11", "2. Rewritten by", "split-bias",
        "3. Plan: 2 passes", "pass 1, convolution %", "finishes %", "workspace, from byte 0", "f32 row-major",
        "kept over the batch", "extra output", "4. Engine cpu\n  one kernel"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in\n" << text;
}

}  // namespace
}  // namespace upweave
