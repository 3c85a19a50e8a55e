#include <algorithm>
#include <cstring>
#include <map>

#include "base/checked.h"
#include "base/threads.h"
#include "base/watch.h"
#include "engine/cpu/micro_batch.h"
#include "engine/cpu/schedule.h"
#include "engine/cpu/slices.h"
#include "engine/engine.h"
#include "engine/reference/reference.h"

namespace upweave {
namespace cpu {
namespace {

class CpuProgram final : public Program {
 public:
  CpuProgram(std::shared_ptr<const FusedPlan> plan, const Options& options)
      : plan_(std::move(plan)),
        dtype_(options.dtype),
        threads_(options.threads),
        schedule_(make_schedule(*plan_, options)),
        scratch_(schedule_.scratch_bytes(part().sliced(), threads_)) {
    for (const Lifetime& value : schedule_.lifetimes) {
      const Place& place = plan_->places[static_cast<size_t>(value.value)];
      if (place.offset < 0 || place.bytes < value.bytes)
        throw fail(Status::kInternal, "the plan has no place for node {}: it was made for another engine",
                   value.value);
    }
  }

  size_t packed_bytes() const override {
    return static_cast<size_t>(
        std::max<int64_t>(64, checked_mul(parts(), block_bytes(), "the packed parameters")));
  }
  size_t workspace_bytes() const override {
    Workspace workspace = plan_->workspace;
    workspace.scratch = scratch_;  // of the threads that there are
    return static_cast<size_t>(workspace.total(part()));
  }

  // Parameters go in as they are, or through the operations' own float64 maths where laws have transformed
  // them.
  void pack(const std::vector<const void*>& parameters, void* packed, void*) const override {
    const Graph& graph = plan_->graph;
    const std::vector<std::string> names = parameter_names(plan_->source);
    auto parameter = [&](Id id) {
      return parameters[static_cast<size_t>(std::ranges::find(names, graph[id].name) - names.begin())];
    };
    std::map<Id, Tensor> known;
    auto evaluate = [&](Id last) -> const Tensor& {
      for (const Id id : with_operands(graph, last, [&](Id at) { return !known.contains(at); })) {
        const Node& node = graph[id];
        if (is_param(graph, id)) {
          known[id] = load_tensor(parameter(id), dtype_, node.shape);
          continue;
        }
        std::vector<const Tensor*> in;
        for (const Id operand : node.in) in.push_back(operand == kNone ? nullptr : &known.at(operand));
        Tensor out{node.shape, std::vector<double>(static_cast<size_t>(count(node.shape))), {}};
        node.op->evaluate(node, in, out);
        known[id] = std::move(out);
      }
      return known.at(last);
    };
    for (int64_t b = 0; b < parts(); ++b) {
      char* base = static_cast<char*>(packed) + b * block_bytes();
      for (const PackedValue& value : schedule_.values) {
        const void* from =
            is_param(graph, value.node) ? parameter(value.node) : evaluate(value.node).data.data();
        copy_block(from, graph[value.node].shape, part().graph[value.node].shape, b, size_of(value.type),
                   base + value.offset);
      }
      for (const PackedKernel& kernel : schedule_.kernels) {
        const Shape& shape = part().graph[kernel.weights].shape;
        const double* weights = evaluate(kernel.weights).data.data();
        std::vector<double> block;
        if (parts() > 1) {
          block.resize(static_cast<size_t>(count(shape)));
          copy_block(weights, graph[kernel.weights].shape, shape, b, sizeof(double), block.data());
          weights = block.data();
        }
        kernel.kernel->pack(weights, base + kernel.offset, usable_threads(threads_));
      }
    }
  }

  void run(const void* packed, const void* const* inputs, void* const* outputs, void* workspace,
           void*) const override {
    const Graph& graph = part().graph;
    const int64_t out = count(graph[graph.output].shape) * size_of(dtype_);
    Bases bases;
    bases.inputs = inputs;
    bases.output = static_cast<char*>(outputs[0]);
    bases.outputs = outputs;
    bases.packed = static_cast<const char*>(packed);
    bases.kept = static_cast<char*>(workspace);
    bases.workspace = bases.kept + plan_->workspace.kept;
    char* const scratch = bases.workspace + part().slots * plan_->workspace.values;
    const int threads = usable_threads(threads_);
    if (part().sliced()) return run_slices(bases, out, scratch, threads);
    if (!part().whole()) {
      const MicroBatches batches{part().samples, part().all, part().slots, plan_->workspace.values,
                                 out / part().samples};
      return run_micro_batches(batches, schedule_.launches, bases, scratch, threads);
    }
    for (const auto& launch : schedule_.launches) {
      launch->run(bases, scratch, threads, false);
      throw_if_interrupted();
    }
  }

  // Slices and micro-batches go through all launches; micro-batches of a batch whose statistics push them out
  // of their slots are computed again up to the launch that makes those.
  double predicted_seconds() const override {
    double all = 0, before = 0;
    bool counted = false;
    for (const auto& launch : schedule_.launches) {
      const double seconds = cpu::predicted_seconds(launch->work(), threads_);
      all += seconds;
      if (!counted) before += seconds;
      counted = counted || launch->over_batch();
    }
    if (part().sliced()) return kCall + all * static_cast<double>(part().all * parts());
    const int64_t batches = part().micro_batches();
    const double again = counted ? static_cast<double>(batches - part().slots) : 0;
    return kCall + all * static_cast<double>(batches) + before * std::max(0.0, again);
  }

  std::vector<std::string> describe() const override {
    std::vector<std::string> lines;
    for (const auto& launch : schedule_.launches) {
      const Work work = launch->work();
      lines.push_back(fmt::format(
          "{}; predicted {:.3f} ms: {:.1f} M products of vectors, {:.1f} M other operations, {:.1f} MB",
          launch->describe(), cpu::predicted_seconds(work, threads_) * 1e3, work.products * 1e-6,
          work.steps * 1e-6, work.bytes * 1e-6));
    }
    lines.push_back(fmt::format("predicted: {:.3f} ms, at {:.1f} G products of vectors a second and thread",
                                predicted_seconds() * 1e3, vectors_per_second() * 1e-9));
    lines.push_back(fmt::format("{} thread{}, {:.1f} MiB of scratch in all", threads_,
                                threads_ == 1 ? "" : "s", static_cast<double>(scratch_) / (1 << 20)));
    return lines;
  }

 private:
  const Part& part() const { return plan_->part; }
  int64_t parts() const { return std::max<int64_t>(1, part().blocks); }
  int64_t block_bytes() const { return round_up(schedule_.packed_bytes, 64); }

  // Slice (n, b) is the output's n-th sample and b-th block of channels, `bytes` of it.
  void run_slices(Bases bases, int64_t bytes, char* const scratch, int threads) const {
    const char* const packed = bases.packed;
    for (int64_t n = 0; n < part().all; ++n, ++bases.first) {
      for (int64_t b = 0; b < part().blocks; ++b, bases.output += bytes) {
        bases.packed = packed + b * block_bytes();
        char* own = scratch;
        for (const auto& launch : schedule_.launches) {
          launch->run(bases, own, threads, b > 0);
          throw_if_interrupted();
          own += launch->scratch_bytes(threads_);
        }
      }
    }
  }

  static constexpr double kCall = 3e-6;  // seconds of a run around its launches

  const std::shared_ptr<const FusedPlan> plan_;
  const Dtype dtype_;
  const int threads_;
  const Schedule schedule_;  // of one part
  const int64_t scratch_;
};

std::unique_ptr<Program> compile(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  if (options.dtype == Dtype::kF64) {
    throw fail(Status::kUnsupported, "the CPU engine has no float64; the reference engine does");
  }
  if (options.threads < 0) throw invalid("threads is {}; it must not be negative", options.threads);
  return std::make_unique<CpuProgram>(std::move(plan), settled(options));
}

}  // namespace
}  // namespace cpu

// A core's FMA peak over its share of the memory's rate.
extern const EngineEntry cpu_engine = {.target = {.flops_per_byte = 10,
                                                  .channel_lanes = cpu::kLane,
                                                  .halves = true,
                                                  .limits = cpu::limits,
                                                  .measure = cpu::measure,
                                                  .wants_given_weights = cpu::wants_given_weights},
                                       .compile = cpu::compile};

}  // namespace upweave
