#pragma once
// What a Plan and its Weights hold. Both are immutable; the only thing that changes is the spare scratch
// block, which one run at a time takes and gives back.
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace upweave {

using Pointers = std::span<const void* const>;

class PlanImpl : public std::enable_shared_from_this<PlanImpl> {
 public:
  PlanImpl(std::shared_ptr<const FusedPlan> plan, const Options& options);
  ~PlanImpl();
  PlanImpl(const PlanImpl&) = delete;
  PlanImpl& operator=(const PlanImpl&) = delete;

  const FusedPlan& plan() const { return *plan_; }
  const Options& options() const { return options_; }
  const Shape& output_shape() const { return output_shape_; }
  const std::vector<OutputInfo>& extra_outputs() const { return extra_; }
  const Shapes& shapes() const { return shapes_; }
  const std::vector<std::string>& inputs() const { return inputs_; }
  bool on_device() const { return engine_of(options_.engine).device; }
  bool empty() const { return !program_; }              // an empty batch: there is nothing to run
  const Program& program() const { return *program_; }  // unless empty
  size_t workspace_bytes() const { return packed_bytes_ + scratch_bytes_; }
  size_t packed_bytes() const { return packed_bytes_; }
  std::vector<std::string> describe() const;
  double predicted_seconds() const { return program_ ? program_->predicted_seconds() : 0; }

  void run(const Tensors& tensors, void* output, const Outputs& extra, void* workspace, void* stream) const;
  std::shared_ptr<const WeightsImpl> pack(const Tensors& parameters, void* stream) const;
  void run(const WeightsImpl& weights, const Tensors& inputs, void* output, const Outputs& extra,
           void* workspace, void* stream) const;
  // `inputs` are in the order of inputs().
  void run(const WeightsImpl& weights, Pointers inputs, void* output, const Outputs& extra, void* workspace,
           void* stream) const;

 private:
  friend class WeightsImpl;
  class Scratch;

  template <class F>
  void* with_bytes(size_t bytes, const char* what, F&& allocate) const;  // says what there is no memory for
  // `tensors` holds the inputs, the parameters, or both, and nothing else.
  enum class Which { kInputs, kParameters, kAll };
  void check_names(const Tensors& tensors, Which which) const;
  bool is_among(const std::string& name, Which which) const;
  std::string names_of(Which which) const;
  void check_tensor(const std::string& name, const void* data) const;
  // `apart(name, data, bytes)` throws if an output lies where something is read.
  template <class F>
  void check_outputs(const void* output, const Outputs& extra, F&& apart) const;
  void check_apart(const std::string& name, const void* data, uintptr_t bytes, const std::string& tensor,
                   const void* read) const;
  void check_workspace(const void* workspace) const;
  static std::vector<const void*> ordered(const Tensors& tensors, const std::vector<std::string>& names);
  void pack(const Tensors& tensors, void* packed, void* stream) const;
  void launch(const void* packed, Pointers inputs, void* output, const Outputs& extra, void* scratch,
              void* stream) const;

  std::shared_ptr<const FusedPlan> plan_;
  Options options_;
  std::unique_ptr<const Program> program_;
  std::vector<std::string> inputs_, parameters_;  // in the order in which the program wants them
  Shapes shapes_;
  Shape output_shape_;
  std::vector<OutputInfo> extra_;
  size_t packed_bytes_ = 0, scratch_bytes_ = 0;  // a workspace holds the packed weights, then the scratch
  mutable std::atomic<void*> spare_{nullptr};
};

class WeightsImpl {
 public:
  WeightsImpl(std::shared_ptr<const PlanImpl> owner, const Tensors& parameters, void* stream);
  ~WeightsImpl();
  WeightsImpl(const WeightsImpl&) = delete;
  WeightsImpl& operator=(const WeightsImpl&) = delete;

  const PlanImpl* owner() const { return owner_.get(); }
  const void* packed() const { return packed_; }

 private:
  std::shared_ptr<const PlanImpl> owner_;
  void* packed_ = nullptr;
};

// Memory that cannot be had is an Error like any other: `what` says who asked.
template <class F>
auto with_memory(const char* what, F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    throw fail(Status::kMemory, "{}: the memory it needs cannot be had", what);
  } catch (const std::length_error&) {  // a vector asked for more than the address space
    throw fail(Status::kMemory, "{}: the memory it needs cannot be had", what);
  }
}

}  // namespace upweave
