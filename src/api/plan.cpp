#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "api/plan_impl.h"
#include "api/road.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/words.h"
#include "plan/explain.h"

namespace upweave {
namespace {

constexpr size_t kAlign = 256;                    // packed weights end here: enough for any device's copies
constexpr size_t kSpareLimit = size_t{64} << 20;  // of a plan's own spare block
constexpr size_t kLargeLimit = size_t{512}
                               << 20;  // a larger scratch block goes back to the system after a run

// One larger block for all plans of the process: to touch fresh pages takes as long as to move what they
// hold.
class LargeSpare {
 public:
  LargeSpare() = default;
  LargeSpare(const LargeSpare&) = delete;
  LargeSpare& operator=(const LargeSpare&) = delete;
  ~LargeSpare() { std::free(block_); }
  // A block of so many bytes and not much more, or none.
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    return bytes <= bytes_ && bytes_ / 2 <= bytes ? std::exchange(block_, nullptr) : nullptr;
  }
  // Keeps the block; what it kept before goes.
  void give(void* block, size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      std::swap(block_, block);
      bytes_ = bytes;
    }
    std::free(block);
  }

 private:
  std::mutex mutex_;
  void* block_ = nullptr;  // of Program::allocate, as engines on the host have it
  size_t bytes_ = 0;
};
LargeSpare& large_spare() {
  static LargeSpare spare;
  return spare;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

PlanImpl::PlanImpl(std::shared_ptr<const FusedPlan> plan, const Options& options)
    : plan_(std::move(plan)), options_(options) {
  const Graph& source = plan_->source;
  inputs_ = input_names(source);
  parameters_ = parameter_names(source);
  output_shape_ = visible_shape(source);
  for (const auto& [name, value] : source.extra_outputs) {
    extra_.push_back({name, visible_shape(source, value), output_dtype(source, value, options.dtype)});
  }
  shapes_ = tensor_shapes(source);
  if (count(output_shape_) == 0) return;
  program_ = lower_to_program(plan_, options_);
  packed_bytes_ = (program_->packed_bytes() + kAlign - 1) / kAlign * kAlign;
  scratch_bytes_ = program_->workspace_bytes();
}

PlanImpl::~PlanImpl() {
  if (void* spare = spare_.load()) program_->release(spare);
}

std::vector<std::string> PlanImpl::describe() const {
  return program_ ? program_->describe() : std::vector<std::string>{"an empty batch: nothing runs"};
}

// A block of scratch for one run: the caller's, or a spare one, or a new one. Runs on a device may still be
// under way when run() returns, so there a block is taken and given up in the stream's order.
class PlanImpl::Scratch {
 public:
  Scratch(const PlanImpl& plan, void* given, size_t bytes, void* stream)
      : plan_(plan), block_(given), stream_(stream) {
    if (given) return;
    keep_ = !plan.on_device() && plan.workspace_bytes() <= kSpareLimit;
    if (keep_) {
      block_ = plan.spare_.exchange(nullptr);
      bytes = plan.workspace_bytes();  // whoever takes it next may need all of it
    } else if (!plan.on_device() && bytes <= kLargeLimit) {
      large_ = bytes;
      block_ = large_spare().take(bytes);
    }
    if (!block_) {
      block_ = plan.with_bytes(bytes, "a run's workspace",
                               [&] { return plan.program_->allocate_in(bytes, stream); });
    }
    own_ = block_;
  }
  ~Scratch() {
    if (!own_) return;
    if (large_ > 0) {
      large_spare().give(own_, large_);
      return;
    }
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
  size_t large_ = 0;  // bytes of a block that all plans may have next
};

template <class F>
void* PlanImpl::with_bytes(size_t bytes, const char* what, F&& allocate) const {
  try {
    return allocate();
  } catch (const std::bad_alloc&) {
    throw fail(Status::kMemory, "{} bytes for {} cannot be had", bytes, what);
  }
}

bool PlanImpl::is_among(const std::string& name, Which which) const {
  return which == Which::kAll || contains(inputs_, name) == (which == Which::kInputs);
}

std::string PlanImpl::names_of(Which which) const {
  std::string names;
  for (const auto& [name, shape] : shapes_) {
    if (is_among(name, which)) names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "none" : names;
}

void PlanImpl::check_names(const Tensors& tensors, Which which) const {
  for (const auto& [name, data] : tensors) {
    if (!shapes_.contains(name) || !is_among(name, which)) {
      throw invalid("tensor '{}' is none of the pipeline's{}: {}", name,
                    which == Which::kInputs ? " inputs" : "", names_of(which));
    }
  }
  for (const auto& [name, shape] : shapes_) {
    if (!is_among(name, which)) continue;
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
      throw invalid("tensor '{}' is missing; the pipeline reads {}", name, names_of(which));
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

template <class F>
void PlanImpl::check_outputs(const void* output, const Outputs& extra, F&& apart) const {
  const auto check = [&](const std::string& name, const void* data, const Shape& shape, Dtype dtype) {
    const auto bytes = static_cast<uintptr_t>(count(shape) * size_of(dtype));
    if (bytes == 0) return;
    if (!data) throw invalid("{} is a null pointer, but its shape is {}", name, to_string(shape));
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(dtype)) != 0) {
      throw invalid("{} points to {}, which is not a multiple of its element's {} bytes", name, data,
                    size_of(dtype));
    }
    apart(name, data, bytes);
  };
  static const std::string kResult = "output";
  check(kResult, output, output_shape_, options_.dtype);
  for (const OutputInfo& info : extra_) {
    const auto it = extra.find(info.name);
    if (it == extra.end()) throw invalid("output '{}' is missing: the pipeline gives it out too", info.name);
    check(info.name, it->second, info.shape, info.dtype);
    const auto bytes = static_cast<uintptr_t>(count(info.shape) * size_of(info.dtype));
    check_apart(info.name, it->second, bytes, kResult, output);
    for (const OutputInfo& other : extra_) {
      if (&other == &info) break;
      check_apart(info.name, it->second, bytes, other.name, extra.at(other.name));
    }
  }
  for (const auto& [name, data] : extra) {
    if (std::ranges::find(extra_, name, &OutputInfo::name) == extra_.end())
      throw invalid("output '{}' is none of the pipeline's extra outputs", name);
  }
}

// Passes read their tensors after the first of an output is written, and write outputs in any order.
void PlanImpl::check_apart(const std::string& name, const void* data, uintptr_t bytes,
                           const std::string& other, const void* there) const {
  const auto info = std::ranges::find(extra_, other, &OutputInfo::name);
  const Shape& shape = other == "output"      ? output_shape_
                       : info != extra_.end() ? info->shape
                                              : shapes_.at(other);
  const Dtype dtype = info != extra_.end() ? info->dtype : options_.dtype;
  const auto a = reinterpret_cast<uintptr_t>(data), b = reinterpret_cast<uintptr_t>(there);
  const auto n = static_cast<uintptr_t>(count(shape) * size_of(dtype));
  if (n > 0 && a < b + n && b < a + bytes) throw invalid("{} overlaps {} in memory", name, other);
}

void PlanImpl::check_workspace(const void* workspace) const {
  if (reinterpret_cast<uintptr_t>(workspace) % 64 != 0) {
    throw invalid("workspace points to {}, which is not a multiple of 64", workspace);
  }
  if (workspace && program_ && workspace_bytes() > 0) program_->check_memory(workspace, "workspace");
}

std::vector<const void*> PlanImpl::ordered(const Tensors& tensors, const std::vector<std::string>& names) {
  std::vector<const void*> pointers;
  for (const std::string& name : names) pointers.push_back(tensors.at(name));
  return pointers;
}

void PlanImpl::launch(const void* packed, Pointers inputs, void* output, const Outputs& extra, void* scratch,
                      void* stream) const {
  LogTimer timer;
  if (extra_.empty()) {
    program_->run(packed, inputs.data(), &output, scratch, stream);
  } else {
    std::vector<void*> outputs = {output};
    for (const OutputInfo& info : extra_) outputs.push_back(extra.at(info.name));
    program_->run(packed, inputs.data(), outputs.data(), scratch, stream);
  }
  log_debug("{} on {} in {:.3f} ms", on_device() ? "queued" : "ran", name_of(options_.engine), timer.lap());
}

void PlanImpl::pack(const Tensors& tensors, void* packed, void* stream) const {
  LogTimer timer;
  program_->pack(ordered(tensors, parameters_), packed, stream);
  log_debug("packed {} bytes of weights in {:.3f} ms", program_->packed_bytes(), timer.lap());
}

void PlanImpl::run(const Tensors& tensors, void* output, const Outputs& extra, void* workspace,
                   void* stream) const {
  check_names(tensors, Which::kAll);
  check_outputs(output, extra, [&](const std::string& name, const void* data, uintptr_t bytes) {
    for (const auto& [tensor, read] : tensors) check_apart(name, data, bytes, tensor, read);
  });
  check_workspace(workspace);
  if (empty()) return;
  const Scratch scratch(*this, workspace, workspace_bytes(), stream);
  pack(tensors, scratch.data(), stream);
  launch(scratch.data(), ordered(tensors, inputs_), output, extra, scratch.data() + packed_bytes_, stream);
}

std::shared_ptr<const WeightsImpl> PlanImpl::pack(const Tensors& parameters, void* stream) const {
  check_names(parameters, Which::kParameters);
  return std::make_shared<WeightsImpl>(shared_from_this(), parameters, stream);
}

void PlanImpl::run(const WeightsImpl& weights, const Tensors& inputs, void* output, const Outputs& extra,
                   void* workspace, void* stream) const {
  check_names(inputs, Which::kInputs);
  run(weights, ordered(inputs, inputs_), output, extra, workspace, stream);
}

void PlanImpl::run(const WeightsImpl& weights, Pointers inputs, void* output, const Outputs& extra,
                   void* workspace, void* stream) const {
  if (weights.owner() != this) throw invalid("weights were packed by another plan");
  if (inputs.size() != inputs_.size())
    throw invalid("one input is given, but the pipeline has {}: {}", inputs_.size(), listed(inputs_));
  for (size_t i = 0; i < inputs.size(); ++i) check_tensor(inputs_[i], inputs[i]);
  check_outputs(output, extra, [&](const std::string& name, const void* data, uintptr_t bytes) {
    for (size_t i = 0; i < inputs.size(); ++i) check_apart(name, data, bytes, inputs_[i], inputs[i]);
  });
  check_workspace(workspace);
  if (empty()) return;
  const Scratch scratch(*this, workspace, scratch_bytes_, stream);
  launch(weights.packed(), inputs, output, extra, scratch.data(), stream);
}

WeightsImpl::WeightsImpl(std::shared_ptr<const PlanImpl> owner, const Tensors& parameters, void* stream)
    : owner_(std::move(owner)) {
  if (owner_->empty()) return;
  const Program& program = *owner_->program_;
  packed_ = owner_->with_bytes(program.packed_bytes(), "the packed weights",
                               [&] { return program.allocate(program.packed_bytes()); });
  try {
    owner_->pack(parameters, packed_, stream);
  } catch (...) {
    program.release(packed_);
    throw;
  }
}

WeightsImpl::~WeightsImpl() {
  if (packed_) owner_->program_->release(packed_);
}

const Shape& Plan::output_shape() const { return impl_->output_shape(); }
const std::vector<OutputInfo>& Plan::extra_outputs() const { return impl_->extra_outputs(); }
const std::vector<std::string>& Plan::inputs() const { return impl_->inputs(); }
const Shapes& Plan::tensor_shapes() const { return impl_->shapes(); }
size_t Plan::workspace_bytes() const { return impl_->workspace_bytes(); }
Cost Plan::cost() const { return impl_->plan().cost; }
double Plan::predicted_seconds() const { return impl_->predicted_seconds(); }
std::string Plan::explain() const {
  return upweave::explain(impl_->plan(), impl_->options(), impl_->describe());
}
std::string Plan::explain_json() const {
  return upweave::explain_json(impl_->plan(), impl_->options(), impl_->describe());
}

void Plan::run(const Tensors& tensors, void* output, void* workspace, void* stream) const {
  run(tensors, output, Outputs(), workspace, stream);
}

void Plan::run(const Tensors& tensors, void* output, const Outputs& extra, void* workspace,
               void* stream) const {
  with_memory("run", [&] { impl_->run(tensors, output, extra, workspace, stream); });
}

Weights Plan::pack(const Tensors& parameters, void* stream) const {
  return with_memory("pack", [&] { return Weights(impl_->pack(parameters, stream)); });
}

void Plan::run(const Weights& weights, const void* input, void* output, void* workspace, void* stream) const {
  run(weights, input, output, Outputs(), workspace, stream);
}

void Plan::run(const Weights& weights, const void* input, void* output, const Outputs& extra, void* workspace,
               void* stream) const {
  with_memory("run",
              [&] { impl_->run(weights.impl(), Pointers(&input, 1), output, extra, workspace, stream); });
}

void Plan::run(const Weights& weights, const Tensors& inputs, void* output, const Outputs& extra,
               void* workspace, void* stream) const {
  with_memory("run", [&] { impl_->run(weights.impl(), inputs, output, extra, workspace, stream); });
}

}  // namespace upweave
