#pragma once
// The plan: which operations share one pass over memory, what each pass reads and writes, where values live
// meanwhile, how much of the batch goes through the passes together, and what all that costs. It is made from
// the rewritten graph and what the target states of itself; engines see a FusedPlan and nothing upstream of
// it, and carry it out.
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

// Where a value lives between passes, and how it lies there.
struct Place {
  enum class Kind { kNowhere, kInput, kWeights, kOutput, kExtraOutput, kWorkspace, kKept };
  // kChannelsLast: float32, each position's channels padded to a multiple of the target's lanes.
  // kPrepared: as the engine that made it likes it best, for itself alone.
  enum class Layout { kRowMajor, kChannelsLast, kPrepared };
  Kind kind = Kind::kNowhere;  // kNowhere: only ever in registers and caches; kKept: outlives micro-batches
  Layout layout = Layout::kRowMajor;
  Dtype dtype = Dtype::kF32;
  // kOutput: the upper halves of a float32 value lie in the 16-bit output, the lower ones in the workspace.
  bool halves = false;
  int64_t offset = -1, bytes = 0;  // of what lies in the workspace or is kept; offsets are aligned to 64
  // What lies in the workspace is there from the first of these steps to the last: the engine's launches, or
  // passes where the engine does not say how it takes them apart.
  int first = -1, last = -1;
};

// How much goes through all passes together, and then the next: everything; a micro-batch of samples; or a
// slice, one sample and a block of the output's channels.
struct Part {
  int64_t samples = 0, all = 0;  // of one part, of the batch
  int64_t blocks = 0;            // of channels; 0: not sliced
  int64_t slots = 1;             // micro-batches whose values between passes are there at once
  Graph graph;                   // nodes as in the plan's, with the shapes of one part

  bool sliced() const { return blocks > 0; }
  bool whole() const { return !sliced() && samples == all; }
  int64_t micro_batches() const { return sliced() || whole() ? 1 : (all + samples - 1) / samples; }
};

// A run's workspace is all memory that it takes beyond inputs, outputs and weights that were packed before
// it, here in bytes by what it is for. (A run from unpacked tensors packs them into its workspace too: the
// public Plan::workspace_bytes() is enough for either.)
struct Workspace {
  int64_t values = 0;   // of one part between passes: float32, and float64 pairs for statistics
  int64_t least = 0;    // the most of them that is alive at once: no places can do with less
  int64_t kept = 0;     // statistics over the batch
  int64_t scratch = 0;  // tiles and partial sums, as far as the engine says beforehand
  int64_t limit = 0;    // what the engine allows itself; 0: anything

  int64_t total(const Part& part) const;
};

// A value that lies in the workspace from step `first` to step `last`.
struct Lifetime {
  Id value = kNone;
  int64_t bytes = 0;
  int first = 0, last = 0;
  Id in_place_of = kNone;  // may take the memory of this one, which ends where it begins
};

// What an engine would take to run a plan.
struct Footprint {
  std::vector<Lifetime> values;
  int64_t scratch = 0;
  bool cuts_samples = true;   // nothing needs all samples at once
  bool counts_batch = false;  // statistics over the batch are complete only behind its last sample
};

// What an engine allows itself; 0: any number.
struct Limits {
  int threads = 1;
  int64_t workspace = 0;
  int64_t value = 0;             // a 16-bit pipeline's value beyond this is computed again, not stored
  int64_t resident = 0;          // bytes that stay in a cache from one pass to the next
  int64_t channel_multiple = 1;  // of a block of channels
};

struct FusedPlan;

// What the target is good at and what it allows itself: all that a plan's choices depend on. An engine
// without limits is given everything at once.
struct Target {
  double flops_per_byte = 10;  // conv operations that take as long as moving one byte
  bool fuse = true;            // false: one pass an operation
  int64_t channel_lanes = 0;   // what channels-last values are padded to; 0: the engine has only row-major
  bool halves = false;         // it keeps float32 values in halves (Place::halves)
  Limits (*limits)(const Options&) = nullptr;
  Footprint (*measure)(const FusedPlan&, const Options&) = nullptr;
  // Whether the convolution of this pass is better off with its weights as they were given than with those
  // that a law has centred for the norm behind it.
  bool (*wants_given_weights)(const FusedPlan&, const Pass&, const Options&) = nullptr;
};

struct FusedPlan {
  Graph source;                 // as written, with shapes
  Graph graph;                  // rewritten, with shapes; nobody reads its outputs if there are several
  std::vector<Firing> firings;  // which law fired where
  std::vector<bool> weights;    // weight-side nodes of `graph`
  std::vector<Pass> passes;
  std::vector<Place> places;  // one per node of `graph`
  Part part;
  Workspace workspace;
  Cost cost;
};

// Whether the output's memory can hold a stored value of the output's shape until the last pass, which writes
// the output, has read it.
bool output_can_hold(const FusedPlan& plan, Id id);

// The element type of an output of a graph whose elements have `dtype`: statistics keep their digits.
Dtype output_dtype(const Graph& graph, Id output, Dtype dtype);

// `source` as written, and what became of it; both have shapes.
FusedPlan make_plan(Graph source, Rewritten rewritten, const Target& target, const Options& options);

// Multiplications and additions of one node; a transposed convolution counts its real taps only.
double flops(const Graph& graph, Id id);

}  // namespace upweave
