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
  virtual size_t workspace_bytes() const = 0;  // scratch of one run, alignment 64
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
};

// Each throws Error(kUnsupported) with one sentence when it cannot serve the plan or is not available.
std::unique_ptr<Program> compile_reference(std::shared_ptr<const FusedPlan> plan, const Options& options);
std::unique_ptr<Program> compile_cpu(std::shared_ptr<const FusedPlan> plan, const Options& options);
std::unique_ptr<Program> compile_cuda(std::shared_ptr<const FusedPlan> plan, const Options& options);

// What compile_cuda's program would say in describe() and predicted_seconds(), without compiling kernels for
// the latter; without a GPU too: then for an H200.
std::vector<std::string> describe_cuda(const FusedPlan& plan, const Options& options);
double predict_cuda(const FusedPlan& plan, const Options& options);

Target target_of(Engine engine);  // figures for the plan's choices

}  // namespace upweave
