#include <omp.h>

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
      : plan_(std::move(plan)), dtype_(options.dtype), threads_(options.threads) {
    if (!take_slices(options)) {
      part_ = plan_->graph;
      take(make_schedule(*plan_, options));
      take_micro_batches(options);
    }
  }

  size_t packed_bytes() const override {
    return static_cast<size_t>(
        std::max<int64_t>(64, checked_mul(parts(), block_bytes(), "the packed parameters")));
  }
  size_t workspace_bytes() const override {
    const int64_t values = checked_mul(slots(), values_bytes(), "the workspace");
    return static_cast<size_t>(checked_add(kept_bytes() + scratch_, values, "the workspace"));
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
        copy_block(from, graph[value.node].shape, part_[value.node].shape, b, size_of(value.type),
                   base + value.offset);
      }
      for (const PackedKernel& kernel : schedule_.kernels) {
        const Shape& part = part_[kernel.weights].shape;
        const double* weights = evaluate(kernel.weights).data.data();
        std::vector<double> block;
        if (blocks_ > 1) {
          block.resize(static_cast<size_t>(count(part)));
          copy_block(weights, graph[kernel.weights].shape, part, b, sizeof(double), block.data());
          weights = block.data();
        }
        kernel.kernel->pack(weights, base + kernel.offset, usable_threads(threads_));
      }
    }
  }

  void run(const void* packed, const void* const* inputs, void* const* outputs, void* workspace,
           void*) const override {
    const int64_t out = count(part_[part_.output].shape) * size_of(dtype_);
    Bases bases;
    bases.inputs = inputs;
    bases.output = static_cast<char*>(outputs[0]);
    bases.outputs = outputs;
    bases.kept = static_cast<char*>(workspace);
    bases.workspace = bases.kept + kept_bytes();
    if (micro_batches_) {
      bases.packed = static_cast<const char*>(packed);
      return run_micro_batches(*micro_batches_, schedule_.launches, bases,
                               bases.workspace + slots() * values_bytes(), usable_threads(threads_));
    }
    for (int64_t n = 0; n < samples_; ++n, ++bases.first) {
      for (int64_t b = 0; b < parts(); ++b, bases.output += out) {
        bases.packed = static_cast<const char*>(packed) + b * block_bytes();
        char* scratch = bases.workspace + values_bytes();
        for (const auto& launch : schedule_.launches) {
          launch->run(bases, scratch, usable_threads(threads_), b > 0);
          throw_if_interrupted();
          if (sliced()) scratch += launch->scratch_bytes(threads_);
        }
      }
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
    if (!micro_batches_) return kCall + all * static_cast<double>(samples_ * parts());
    const double again = counted ? static_cast<double>(micro_batches_->count() - micro_batches_->slots) : 0;
    return kCall + all * static_cast<double>(micro_batches_->count()) + before * std::max(0.0, again);
  }

  std::vector<std::string> describe() const override {
    std::vector<std::string> lines;
    if (sliced()) {
      lines.push_back(fmt::format("sample by sample, {} of {} channels at a time, {:.1f} MiB between passes",
                                  part_[part_.output].shape[1], plan_->graph[part_.output].shape[1],
                                  static_cast<double>(values_bytes()) / (1 << 20)));
    }
    if (micro_batches_) {
      lines.push_back(
          fmt::format("{} of {} samples at a time, values between passes of {} of them are kept",
                      micro_batches_->samples, micro_batches_->all,
                      std::min(micro_batches_->all, micro_batches_->samples * micro_batches_->slots)));
    }
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
  bool sliced() const { return blocks_ > 0; }
  int64_t parts() const { return std::max<int64_t>(1, blocks_); }
  int64_t values_bytes() const { return round_up(schedule_.workspace_bytes, 4096); }
  int64_t kept_bytes() const { return round_up(schedule_.kept_bytes, 4096); }
  int64_t slots() const { return micro_batches_ ? micro_batches_->slots : 1; }
  int64_t block_bytes() const { return round_up(schedule_.packed_bytes, 64); }

  void take(Schedule schedule) {
    schedule_ = std::move(schedule);
    scratch_ = 0;
    for (const auto& launch : schedule_.launches) {
      const int64_t bytes = launch->scratch_bytes(threads_);
      // What a slice's convolution has packed serves its sample's next block.
      scratch_ = sliced() ? checked_add(scratch_, bytes, "the workspace") : std::max(scratch_, bytes);
    }
  }

  // The largest slices that stay in the last-level cache, where the output cannot hold what lies between
  // passes. Float32's can, and a trip to memory costs less there than narrower convolutions.
  bool take_slices(const Options& options) {
    const Shape& out = plan_->graph[plan_->graph.output].shape;
    if (dtype_ == Dtype::kF32 || count(out) * 4 <= last_level_bytes()) return false;
    for (int64_t blocks = 1; blocks <= std::min(out[1], kMaxBlocks); ++blocks) {
      if (out[1] % blocks != 0 || (blocks > 1 && out[1] / blocks % kLane != 0)) continue;
      std::optional<Slices> slices = cut_slices(*plan_, blocks);
      if (!slices) return false;
      samples_ = slices->samples;
      blocks_ = slices->blocks;
      take(make_schedule(slices->plan, options, blocks));
      part_ = slices->plan.graph;
      if (values_bytes() < last_level_bytes() / 20) break;  // too little work for all threads
      if (values_bytes() <= last_level_bytes() && values_bytes() + scratch_ <= scratch_limit(threads_))
        return true;
    }
    samples_ = 1;
    blocks_ = 0;
    return false;
  }

  // Where everything at once takes too much: micro-batches that give each thread some tiles, and slots for as
  // many of them as fit.
  void take_micro_batches(const Options& options) {
    const int64_t limit = scratch_limit(threads_), all = batch_size(plan_->graph);
    if (static_cast<int64_t>(workspace_bytes()) <= limit || !schedule_.cuts_samples) return;
    for (int64_t samples = std::min<int64_t>(all - 1, kMicroBatch * threads_); samples > 0; samples /= 2) {
      const std::optional<FusedPlan> plan = cut_samples(*plan_, samples);
      if (!plan) return;
      Schedule schedule = make_schedule(*plan, options);
      if (!schedule.cuts_samples) return;
      take(std::move(schedule));
      part_ = plan->graph;
      MicroBatches batches{samples, all, 1, values_bytes(),
                           count(part_[part_.output].shape) / samples * size_of(dtype_)};
      const int64_t left = limit - kept_bytes() - scratch_;
      const auto returns = [](const auto& launch) { return launch->over_batch(); };
      if (values_bytes() > 0 && std::ranges::any_of(schedule_.launches, returns))
        batches.slots = std::clamp<int64_t>(left / values_bytes(), 1, batches.count());
      micro_batches_ = batches;
      if (static_cast<int64_t>(workspace_bytes()) <= limit) return;
    }
  }

  static constexpr int64_t kMicroBatch = 2;   // samples a thread
  static constexpr int64_t kMaxBlocks = 256;  // narrower ones have too little to do
  static constexpr double kCall = 3e-6;       // seconds of a run around its launches

  std::shared_ptr<const FusedPlan> plan_;
  Dtype dtype_;
  int threads_;
  int64_t samples_ = 1, blocks_ = 0;  // slices; no blocks: everything at once
  Graph part_;                        // with the shapes of one slice
  Schedule schedule_;                 // of one slice, or micro-batch
  std::optional<MicroBatches> micro_batches_;
  int64_t scratch_ = 0;
};

std::unique_ptr<Program> compile(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  if (options.dtype == Dtype::kF64) {
    throw fail(Status::kUnsupported, "the CPU engine has no float64; the reference engine does");
  }
  if (options.threads < 0) throw invalid("threads is {}; it must not be negative", options.threads);
  Options known = options;
  known.threads = std::min(options.threads > 0 ? options.threads : omp_get_max_threads(), kMaxThreads);
  return std::make_unique<CpuProgram>(std::move(plan), known);
}

}  // namespace
}  // namespace cpu

// A core's FMA peak over its share of the memory's rate.
extern const EngineEntry cpu_engine = {.target = {.flops_per_byte = 10, .channel_lanes = cpu::kLane},
                                       .compile = cpu::compile};

}  // namespace upweave
