#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/watch.h"
#include "engine/cpu/schedule.h"
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
        threads_(options.threads > 0 ? options.threads : omp_get_max_threads()),
        schedule_(make_schedule(*plan_, options)) {
    for (const auto& launch : schedule_.launches)
      scratch_ = std::max(scratch_, launch->scratch_bytes(threads_));
  }

  size_t packed_bytes() const override {
    return static_cast<size_t>(std::max<int64_t>(64, schedule_.packed_bytes));
  }
  size_t workspace_bytes() const override { return static_cast<size_t>(values_bytes() + scratch_); }

  // Parameters go in as they are, or through the operations' own float64 maths where laws have transformed
  // them.
  void pack(const std::vector<const void*>& parameters, void* packed, void*) const override {
    const Graph& graph = plan_->graph;
    const std::vector<std::string> names = parameter_names(plan_->source);
    auto parameter = [&](Id id) {
      return parameters[static_cast<size_t>(std::ranges::find(names, graph[id].name) - names.begin())];
    };
    std::map<Id, Tensor> known;
    auto evaluate = [&](auto& self, Id id) -> const Tensor* {
      if (id == kNone) return nullptr;
      if (const auto it = known.find(id); it != known.end()) return &it->second;
      const Node& node = graph[id];
      if (is_param(graph, id)) return &(known[id] = load_tensor(parameter(id), dtype_, node.shape));
      std::vector<const Tensor*> in;
      for (const Id operand : node.in) in.push_back(self(self, operand));
      Tensor out{node.shape, std::vector<double>(static_cast<size_t>(count(node.shape))), {}};
      node.op->evaluate(node, in, out);
      return &(known[id] = std::move(out));
    };
    char* base = static_cast<char*>(packed);
    for (const PackedValue& value : schedule_.values) {
      const size_t bytes = static_cast<size_t>(count(graph[value.node].shape) * size_of(value.type));
      const void* from =
          is_param(graph, value.node) ? parameter(value.node) : evaluate(evaluate, value.node)->data.data();
      std::memcpy(base + value.offset, from, bytes);
    }
    for (const PackedKernel& kernel : schedule_.kernels) {
      kernel.kernel->pack(evaluate(evaluate, kernel.weights)->data.data(), base + kernel.offset);
    }
  }

  void run(const void* packed, const void* input, void* output, void* workspace, void*) const override {
    const Bases bases{static_cast<const char*>(input), static_cast<char*>(output),
                      static_cast<char*>(workspace), static_cast<const char*>(packed)};
    for (const auto& launch : schedule_.launches) {
      launch->run(bases, bases.workspace + values_bytes(), threads_);
      throw_if_interrupted();
    }
  }

  std::vector<std::string> describe() const override {
    std::vector<std::string> lines;
    for (const auto& launch : schedule_.launches) lines.push_back(launch->describe());
    lines.push_back(fmt::format("{} thread{}, {:.1f} MiB of scratch in all", threads_,
                                threads_ == 1 ? "" : "s", static_cast<double>(scratch_) / (1 << 20)));
    return lines;
  }

 private:
  int64_t values_bytes() const { return round_up(schedule_.workspace_bytes, 4096); }

  std::shared_ptr<const FusedPlan> plan_;
  Dtype dtype_;
  int threads_;
  Schedule schedule_;
  int64_t scratch_ = 0;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Program> compile_cpu(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  if (options.dtype == Dtype::kF64) {
    throw fail(Status::kUnsupported, "the CPU engine has no float64; the reference engine does");
  }
  if (options.threads < 0) throw invalid("threads is {}; it must not be negative", options.threads);
  return std::make_unique<cpu::CpuProgram>(std::move(plan), options);
}

}  // namespace upweave
