#include <algorithm>

#include "api/plan_impl.h"
#include "base/dtype.h"
#include "plan/explain.h"

namespace upweave {
namespace {

constexpr size_t kAlign = 256;  // packed weights end here: enough for any device's copies
constexpr size_t kSpareLimit = size_t{64}
                               << 20;  // a larger scratch block goes back to the system after a run

std::unique_ptr<const Program> compile_for(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  switch (options.engine) {
    case Engine::kReference:
      return compile_reference(std::move(plan), options);
    case Engine::kCpu:
      return compile_cpu(std::move(plan), options);
    case Engine::kCuda:
      return compile_cuda(std::move(plan), options);
  }
  throw invalid("engine is {}, which is none that exists", static_cast<int>(options.engine));
}

std::string join(const Shapes& shapes, bool with_input) {
  std::string names;
  for (const auto& [name, shape] : shapes) {
    if (name == "input" && !with_input) continue;
    names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "none" : names;
}

}  // namespace

PlanImpl::PlanImpl(std::shared_ptr<const FusedPlan> plan, const Options& options)
    : plan_(std::move(plan)), options_(options) {
  const Graph& source = plan_->source;
  parameters_ = parameter_names(source);
  output_shape_ = visible_shape(source);
  shapes_["input"] = source[0].shape;
  for (Id id = 1; id < source.size(); ++id) {
    if (is_param(source, id)) shapes_[source[id].name] = source[id].shape;
  }
  if (count(output_shape_) == 0) return;
  program_ = compile_for(plan_, options_);
  packed_bytes_ = (program_->packed_bytes() + kAlign - 1) / kAlign * kAlign;
  scratch_bytes_ = program_->workspace_bytes();
}

PlanImpl::~PlanImpl() {
  if (void* spare = spare_.load()) program_->release(spare);
}

std::vector<std::string> PlanImpl::describe() const {
  return program_ ? program_->describe() : std::vector<std::string>{"an empty batch: nothing runs"};
}

// A block of scratch for one run: the caller's, or the plan's spare one, or a new one. Runs on a device may
// still be under way when run() returns, so there a block is taken and given up in the stream's order.
class PlanImpl::Scratch {
 public:
  Scratch(const PlanImpl& plan, void* given, size_t bytes, void* stream)
      : plan_(plan), block_(given), stream_(stream) {
    if (given) return;
    keep_ = plan.options_.engine != Engine::kCuda && plan.workspace_bytes() <= kSpareLimit;
    if (keep_) {
      block_ = plan.spare_.exchange(nullptr);
      bytes = plan.workspace_bytes();  // whoever takes it next may need all of it
    }
    if (!block_) {
      block_ = plan.with_bytes(bytes, "a run's workspace",
                               [&] { return plan.program_->allocate_in(bytes, stream); });
    }
    own_ = block_;
  }
  ~Scratch() {
    if (!own_) return;
    void* nobody = nullptr;
    if (!keep_ || !plan_.spare_.compare_exchange_strong(nobody, own_))
      plan_.program_->release_in(own_, stream_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* data() const { return static_cast<char*>(block_); }

 private:
  const PlanImpl& plan_;
  void* block_;
  void* own_ = nullptr;
  void* stream_;
  bool keep_ = false;
};

template <class F>
void* PlanImpl::with_bytes(size_t bytes, const char* what, F&& allocate) const {
  try {
    return allocate();
  } catch (const std::bad_alloc&) {
    throw fail(Status::kMemory, "{} bytes for {} cannot be had", bytes, what);
  }
}

void PlanImpl::check_names(const Tensors& tensors, bool with_input) const {
  for (const auto& [name, data] : tensors) {
    if (!shapes_.contains(name) || (name == "input" && !with_input)) {
      throw invalid("tensor '{}' is none of the pipeline's: {}", name, join(shapes_, with_input));
    }
  }
  for (const auto& [name, shape] : shapes_) {
    if (name == "input" && !with_input) continue;
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
      throw invalid("tensor '{}' is missing; the pipeline reads {}", name, join(shapes_, with_input));
    }
    check_tensor(name, it->second);
  }
}

void PlanImpl::check_tensor(const std::string& name, const void* data) const {
  const Shape& shape = shapes_.at(name);
  if (count(shape) == 0) return;
  if (!data) throw invalid("{} is a null pointer, but its shape is {}", name, to_string(shape));
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(options_.dtype)) != 0) {
    throw invalid("{} points to {}, which is not a multiple of its element's {} bytes", name, data,
                  size_of(options_.dtype));
  }
}

void PlanImpl::check_output(const void* output) const {
  if (empty()) return;
  if (!output) throw invalid("output is a null pointer, but its shape is {}", to_string(output_shape_));
  if (reinterpret_cast<uintptr_t>(output) % static_cast<uintptr_t>(size_of(options_.dtype)) != 0) {
    throw invalid("output points to {}, which is not a multiple of its element's {} bytes", output,
                  size_of(options_.dtype));
  }
}

// Passes read their tensors after the first of the output is written.
void PlanImpl::check_apart(const std::string& name, const void* data, const void* output) const {
  const auto bytes = [&](const Shape& shape) {
    return static_cast<uintptr_t>(count(shape) * size_of(options_.dtype));
  };
  const auto a = reinterpret_cast<uintptr_t>(data), b = reinterpret_cast<uintptr_t>(output);
  const uintptr_t na = bytes(shapes_.at(name)), nb = bytes(output_shape_);
  if (na > 0 && nb > 0 && a < b + nb && b < a + na) throw invalid("output overlaps {} in memory", name);
}

void PlanImpl::check_workspace(const void* workspace) const {
  if (reinterpret_cast<uintptr_t>(workspace) % 64 != 0) {
    throw invalid("workspace points to {}, which is not a multiple of 64", workspace);
  }
  if (workspace && program_ && workspace_bytes() > 0) program_->check_memory(workspace, "workspace");
}

std::vector<const void*> PlanImpl::ordered(const Tensors& tensors) const {
  std::vector<const void*> pointers;
  for (const std::string& name : parameters_) pointers.push_back(tensors.at(name));
  return pointers;
}

void PlanImpl::run(const Tensors& tensors, void* output, void* workspace, void* stream) const {
  check_names(tensors, true);
  check_output(output);
  check_workspace(workspace);
  if (empty()) return;
  for (const auto& [name, data] : tensors) check_apart(name, data, output);
  const Scratch scratch(*this, workspace, workspace_bytes(), stream);
  program_->pack(ordered(tensors), scratch.data(), stream);
  program_->run(scratch.data(), tensors.at("input"), output, scratch.data() + packed_bytes_, stream);
}

std::shared_ptr<const WeightsImpl> PlanImpl::pack(const Tensors& parameters, void* stream) const {
  check_names(parameters, false);
  return std::make_shared<WeightsImpl>(shared_from_this(), parameters, stream);
}

void PlanImpl::run(const WeightsImpl& weights, const void* input, void* output, void* workspace,
                   void* stream) const {
  if (weights.owner() != this) throw invalid("weights were packed by another plan");
  check_tensor("input", input);
  check_output(output);
  check_workspace(workspace);
  if (empty()) return;
  check_apart("input", input, output);
  const Scratch scratch(*this, workspace, scratch_bytes_, stream);
  program_->run(weights.packed(), input, output, scratch.data(), stream);
}

WeightsImpl::WeightsImpl(std::shared_ptr<const PlanImpl> owner, const Tensors& parameters, void* stream)
    : owner_(std::move(owner)) {
  if (owner_->empty()) return;
  const Program& program = *owner_->program_;
  packed_ = owner_->with_bytes(program.packed_bytes(), "the packed weights",
                               [&] { return program.allocate(program.packed_bytes()); });
  try {
    program.pack(owner_->ordered(parameters), packed_, stream);
  } catch (...) {
    program.release(packed_);
    throw;
  }
}

WeightsImpl::~WeightsImpl() {
  if (packed_) owner_->program_->release(packed_);
}

const Shape& Plan::output_shape() const { return impl_->output_shape(); }
const Shapes& Plan::tensor_shapes() const { return impl_->shapes(); }
size_t Plan::workspace_bytes() const { return impl_->workspace_bytes(); }
Cost Plan::cost() const { return impl_->plan().cost; }
std::string Plan::explain() const {
  return upweave::explain(impl_->plan(), impl_->options(), impl_->describe());
}
std::string Plan::explain_json() const {
  return upweave::explain_json(impl_->plan(), impl_->options(), impl_->describe());
}

void Plan::run(const Tensors& tensors, void* output, void* workspace, void* stream) const {
  with_memory("run", [&] { impl_->run(tensors, output, workspace, stream); });
}

Weights Plan::pack(const Tensors& parameters, void* stream) const {
  return with_memory("pack", [&] { return Weights(impl_->pack(parameters, stream)); });
}

void Plan::run(const Weights& weights, const void* input, void* output, void* workspace, void* stream) const {
  with_memory("run", [&] { impl_->run(weights.impl(), input, output, workspace, stream); });
}

}  // namespace upweave
