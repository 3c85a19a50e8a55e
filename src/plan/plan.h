#pragma once
// The plan: which operations share one pass over memory, what each pass reads and writes, and what that
// costs. It is made from the rewritten graph and a few figures of the target; engines see a FusedPlan and
// nothing upstream of it.
#include <string>
#include <vector>

#include "graph/graph.h"
#include "rewrite/rewrite.h"

namespace upweave {

// One sweep over the data. Weight-side values are not listed: they are computed when weights are packed.
struct Pass {
  std::vector<Id> nodes;   // computed here, in topological order (some again, if that beats storing them)
  Id conv = kNone;         // the transposed convolution among them, if any; nodes it depends on are its head
  std::vector<Id> reads;   // tensors of the input's or output's magnitude that are read from memory
  std::vector<Id> writes;  // such tensors written to memory: values for later passes, or outputs
  std::vector<Id> reductions;  // reductions that are complete only when the pass ends (statistics)
  bool slab = false;  // no convolution: a tile may be a whole sample, so reductions over space are local
  double flops = 0, bytes = 0;
  std::string why;  // why the pass ends where it does
};

// Where a value lives between passes.
struct Place {
  enum class Kind { kNowhere, kInput, kWeights, kOutput, kExtraOutput, kWorkspace };
  // kChannelsLast: float32, each position's channels padded to a multiple of the target's lanes.
  enum class Layout { kRowMajor, kChannelsLast };
  Kind kind = Kind::kNowhere;  // kNowhere: only ever in registers and caches
  int64_t offset = 0;          // kWorkspace: bytes from its start, aligned to 64
  Layout layout = Layout::kRowMajor;
};

// What the target is good at, for the one choice a plan makes: store a value or compute it again.
struct Target {
  double flops_per_byte = 10;  // conv operations that take as long as moving one byte
  bool fuse = true;            // false: one pass an operation
  int64_t channel_lanes = 0;   // what channels-last values are padded to; 0: the engine has only row-major
};

struct FusedPlan {
  Graph source;                 // as written, with shapes
  Graph graph;                  // rewritten, with shapes; nobody reads its outputs if there are several
  std::vector<Firing> firings;  // which law fired where
  std::vector<bool> weights;    // weight-side nodes of `graph`
  std::vector<Pass> passes;
  std::vector<Place> places;    // one per node of `graph`
  int64_t workspace_bytes = 0;  // for values between passes: float32, and float64 pairs for statistics
  Cost cost;
};

// Whether the output's memory can hold a stored value of the output's shape until the last pass, which writes
// the output, has read it.
bool output_can_hold(const FusedPlan& plan, Id id);

// The element type of an output of a graph whose elements have `dtype`: statistics keep their digits.
Dtype output_dtype(const Graph& graph, Id output, Dtype dtype);

// `source` as written, and what became of it; both have shapes.
FusedPlan make_plan(Graph source, Rewritten rewritten, const Target& target, Dtype dtype);

// Multiplications and additions of one node; a transposed convolution counts its real taps only.
double flops(const Graph& graph, Id id);

}  // namespace upweave
