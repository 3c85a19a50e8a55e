#include "check.h"

#include <cmath>
#include <cstring>
#include <random>

#include "api/plan_impl.h"
#include "base/dtype.h"
#include "graph/ops/conv_transpose.h"

namespace upweave::cli {
namespace {

// Normal numbers from the generator's bits alone: std::normal_distribution differs between libraries.
class Normal {
 public:
  explicit Normal(uint64_t seed) : bits_(seed) {}
  double operator()() {
    const double u = uniform(), v = uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  std::mt19937_64 bits_;
};

struct Scale {
  double mean, spread;
};

// Where a parameter is used says what it should look like: a kernel makes values of size 1 of an input of
// size 1 (each output collects C_in * K / stride products), a norm's weight is near 1, everything else is
// smaller.
Scale scale_of(const Graph& graph, const std::string& name) {
  for (const Node& user : graph.nodes) {
    for (size_t slot = 1; slot < user.in.size(); ++slot) {
      if (user.in[slot] == kNone || graph[user.in[slot]].name != name) continue;
      if (is(user, Op::kConvTranspose) && slot == 1) {
        const Shape& kernel = graph[user.in[slot]].shape;
        const size_t spatial = kernel.size() - 2;
        const Shape stride = conv_attrs(user, spatial).stride;
        double terms = static_cast<double>(kernel[0]);
        for (size_t a = 0; a < spatial; ++a) {
          terms *= std::max(1.0, static_cast<double>(kernel[a + 2]) / static_cast<double>(stride[a]));
        }
        return {0, 1 / std::sqrt(terms)};
      }
      if (slot == 1 && (is(user, Op::kMul) || is(user, Op::kDiv) || is(user, Family::kNorm)))
        return {1, 0.25};
      return {0, 0.5};
    }
  }
  return {0, 1};
}

}  // namespace

Case::Case(const Plan& p, uint64_t seed) : plan(p) {
  const Dtype dtype = plan.impl().options().dtype;
  const auto bytes = [&](const Shape& shape) { return static_cast<size_t>(count(shape) * size_of(dtype)); };
  output.assign(bytes(plan.output_shape()), std::byte{0xff});
  for (const OutputInfo& info : plan.extra_outputs()) {
    extra_outputs[info.name].assign(static_cast<size_t>(count(info.shape) * size_of(info.dtype)),
                                    std::byte{0xff});
  }
  for (const auto& [name, shape] : plan.tensor_shapes()) {
    const Scale scale = scale_of(plan.impl().plan().source, name);
    uint64_t mixed = seed;  // a stream of its own for each name
    for (const char c : name) mixed = mixed * 0x100000001b3 + static_cast<unsigned char>(c);
    Normal normal(mixed);
    std::vector<std::byte>& values = data[name];
    values.resize(bytes(shape));
    const int64_t n = count(shape);
    for (int64_t i = 0; i < n; ++i)
      store_element(values.data(), dtype, i, scale.mean + scale.spread * normal());
  }
  if (!plan.impl().on_device() || plan.impl().empty()) return;
  const auto upload = [&](std::map<std::string, DeviceBuffer>& there, const std::string& name,
                          const std::vector<std::byte>& values) {
    there.try_emplace(name, plan.impl().program(), values.size())
        .first->second.upload(values.data(), values.size());
  };
  for (const std::string& name : plan.inputs()) upload(inputs_there, name, data.at(name));
  output_there = std::make_unique<DeviceBuffer>(plan.impl().program(), output.size());
  output_there->upload(output.data(), output.size());
  for (const auto& [name, values] : extra_outputs) upload(extra_there, name, values);
}

Outputs Case::extra() {
  Outputs result;
  for (auto& [name, values] : extra_outputs) {
    const auto there = extra_there.find(name);
    result[name] = there == extra_there.end() ? values.data() : there->second.data();
  }
  return result;
}

void Case::wait() {
  std::byte any;
  if (output_there) output_there->download(&any, 1);
}

void Case::fetch() {
  if (output_there) output_there->download(output.data(), output.size());
  for (const auto& [name, there] : extra_there)
    there.download(extra_outputs.at(name).data(), extra_outputs.at(name).size());
}

Tensors Case::tensors() const {
  Tensors result;
  for (const auto& [name, values] : data) result[name] = values.data();
  for (const auto& [name, there] : inputs_there) result[name] = there.data();
  return result;
}

Tensors Case::inputs() const {
  const Tensors all = tensors();
  Tensors result;
  for (const std::string& name : plan.inputs()) result[name] = all.at(name);
  return result;
}

Tensors Case::parameters() const {
  Tensors result = tensors();
  for (const std::string& name : plan.inputs()) result.erase(name);
  return result;
}

std::string input_shapes(const Plan& plan) {
  std::vector<std::string> shapes;
  for (const std::string& name : plan.inputs()) shapes.push_back(to_string(plan.tensor_shapes().at(name)));
  return fmt::format("{}", fmt::join(shapes, ", "));
}

Verdict compare(Case& c) {
  c.fetch();
  const PlanImpl& plan = c.plan.impl();
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, values] : c.data) {
    tensors[name] = load_tensor(values.data(), plan.options().dtype, plan.shapes().at(name));
  }
  const std::vector<Tensor> wanted = truths(plan.plan().source, tensors, plan.options());
  Verdict verdict = judge(wanted[0], c.output.data(), plan.options().dtype);
  for (size_t k = 1; k < wanted.size(); ++k) {
    const OutputInfo& info = c.plan.extra_outputs()[k - 1];
    verdict.add(judge(wanted[k], c.extra_outputs.at(info.name).data(), info.dtype));
  }
  return verdict;
}

}  // namespace upweave::cli
