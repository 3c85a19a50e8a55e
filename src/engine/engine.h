#pragma once
// What an engine is: it turns a plan into a program once, packs parameters once, and runs often.
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace upweave {

// Immutable after construction and safe to share between threads. run() neither plans, compiles nor
// allocates.
class Program {
 public:
  virtual ~Program() = default;
  virtual size_t packed_bytes() const = 0;     // parameters in the engine's own form
  virtual size_t workspace_bytes() const = 0;  // of one run (Workspace in plan.h), alignment 64
  // `parameters` are in the order of parameter_names(plan.source), elements of the program's Dtype.
  virtual void pack(const std::vector<const void*>& parameters, void* packed, void* stream) const = 0;
  // `inputs`: the graph's, in their order. `outputs`: where the result goes, then each of
  // plan.graph.extra_outputs.
  virtual void run(const void* packed, const void* const* inputs, void* const* outputs, void* workspace,
                   void* stream) const = 0;
  void run(const void* packed, const void* input, void* output, void* workspace, void* stream) const {
    run(packed, &input, &output, workspace, stream);
  }
  // What `explain` adds: algorithm, tiles, kernels; one line each.
  virtual std::vector<std::string> describe() const { return {}; }
  // What one run should take here, weights packed already.
  virtual double predicted_seconds() const = 0;
  // Throws unless `p`, which the sentence calls `what`, is memory that the engine can reach.
  virtual void check_memory(const void*, const char*) const {}
  // Engines on a device allocate there; host engines keep the default.
  virtual void* allocate(size_t bytes) const;
  virtual void release(void* p) const;
  // The same in the order of a stream's work: memory for what is queued behind, given up behind what is.
  virtual void* allocate_in(size_t bytes, void*) const { return allocate(bytes); }
  virtual void release_in(void* p, void*) const { release(p); }
  // Between the host's memory and the engine's, either way; what it brings to the host is there when it
  // returns.
  virtual void copy(void* to, const void* from, size_t bytes) const;
};

// What the rest of the road knows of an engine. Its folder defines one, `extern const EngineEntry
// WORD_engine`, and base/engines.inc has its line. Each function throws Error(kUnsupported) with one sentence
// when the engine cannot serve the plan or is not available.
struct EngineEntry {
  Target target = {};   // figures for the plan's choices
  bool device = false;  // tensors and workspace are in the memory of a device of its own
  std::unique_ptr<Program> (*compile)(std::shared_ptr<const FusedPlan> plan,
                                      const Options& options) = nullptr;
  // What the program would say in describe() and predicted_seconds(), without its device; null: it says it
  // itself, once compiled.
  std::vector<std::string> (*describe)(const FusedPlan& plan, const Options& options) = nullptr;
  double (*predict)(const FusedPlan& plan, const Options& options) = nullptr;
};
const EngineEntry& engine_of(Engine engine);  // throws unless it exists

}  // namespace upweave
