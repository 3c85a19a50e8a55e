#include "base/error.h"
#include "graph/graph.h"
#include "upweave/upweave.hpp"

// Builder methods are text fragments: what a builder makes is what a person could have typed.
namespace upweave {

Builder& Builder::stage(std::string_view text) {
  if (!text_.empty()) text_ += " | ";
  text_ += text;
  return *this;
}

Builder& Builder::as(std::string_view label) {
  text_ += text_.empty() ? fmt::format("@input as {}", label) : fmt::format(" as {}", label);
  return *this;
}

Builder& Builder::out(std::string_view name) {
  text_ += text_.empty() ? fmt::format("@input out {}", name) : fmt::format(" out {}", name);
  return *this;
}

Builder& Builder::take(std::string_view label) { return stage(fmt::format("@{}", label)); }

Builder& Builder::conv_transpose(std::string_view kernel, const Conv& conv) {
  std::string text = fmt::format("conv_transpose {}", kernel);
  if (!conv.bias.empty()) text += " " + conv.bias;
  const auto extents = [&](const char* prefix, const Shape& values) {
    if (!values.empty()) text += fmt::format(" {}{}", prefix, to_string(values));
  };
  extents("s", conv.stride);
  extents("p", conv.padding);
  extents("op", conv.output_padding);
  extents("d", conv.dilation);
  if (conv.groups != 1) text += fmt::format(" g{}", conv.groups);
  return stage(text);
}

Builder& Builder::avg_pool(const Shape& window) { return stage("avg_pool " + to_string(window)); }
Builder& Builder::max_pool(const Shape& window) { return stage("max_pool " + to_string(window)); }

Builder& Builder::batch_norm(std::string_view weight, std::string_view bias) {
  return stage(fmt::format("batch_norm {} {}", weight, bias));
}

Builder& Builder::group_norm(int64_t groups, std::string_view weight, std::string_view bias) {
  return stage(fmt::format("group_norm {} {} {}", groups, weight, bias));
}

// {} prints the shortest decimal that reads back as the same double.
Builder& Builder::clamp(double lo, double hi) { return stage(fmt::format("clamp {} {}", lo, hi)); }
Builder& Builder::add(double value) { return stage(fmt::format("add {}", value)); }
Builder& Builder::mul(double value) { return stage(fmt::format("mul {}", value)); }

}  // namespace upweave
