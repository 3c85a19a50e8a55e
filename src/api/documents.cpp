#include "api/documents.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "api/plan_cache.h"
#include "base/error.h"

namespace upweave {
namespace {

using Names = std::vector<const char*>;

const Names kInput3d = {"batch_size", "in_channels", "depth", "height", "width"};
const Names kKernel3d = {"in_channels", "out_channels", "kernel_d", "kernel_h", "kernel_w"};
const Names kStride3d = {"stride_d", "stride_h", "stride_w"};
const Names kPadding3d = {"padding_d", "padding_h", "padding_w"};
const Names kOutputPadding3d = {"output_padding_d", "output_padding_h", "output_padding_w"};

const Names kSizes3d = {"batch_size", "in_channels", "out_channels", "depth",     "height",
                        "width",      "kernel_d",    "kernel_h",     "kernel_w",  "stride_d",
                        "stride_h",   "stride_w",    "padding_d",    "padding_h", "padding_w"};

Names joined(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

const Document kSumLayernormAvgpoolGelu = {
    .slug = "conv-transpose3d-sum-layernorm-avgpool-gelu",
    .tensors = {{"input", kInput3d}, {"kernel", kKernel3d}},
    .sizes = joined(kSizes3d, kOutputPadding3d),
    .reals = {"sum_weight"},
    .settings = {{"stride", kStride3d},
                 {"padding", kPadding3d},
                 {"output_padding", kOutputPadding3d},
                 {"sum_weight", {"sum_weight"}}},
};

const Document kLayernormGeluScaling = {
    .slug = "conv-transpose3d-layernorm-gelu-scaling",
    .tensors = {{"input", kInput3d}, {"kernel", kKernel3d}},
    .sizes = joined(kSizes3d, kOutputPadding3d),
    .reals = {"scaling_factor"},
    .settings = {{"stride", kStride3d},
                 {"padding", kPadding3d},
                 {"output_padding", kOutputPadding3d},
                 {"scaling_factor", {"scaling_factor"}}},
};

const Document kMaxMaxSum = {
    .slug = "conv-transpose3d-max-max-sum",
    .tensors = {{"input", kInput3d}, {"kernel", kKernel3d}, {"conv_bias", {"out_channels"}}},
    .sizes = kSizes3d,
    .reals = {},
    .settings = {{"stride", kStride3d}, {"padding", kPadding3d}},
};

const Document kAvgpoolClampSoftmaxMultiply = {
    .slug = "conv-transpose3d-avgpool-clamp-softmax-multiply",
    .tensors = {{"input", kInput3d}, {"kernel", kKernel3d}, {"scale", {"out_channels"}}},
    .sizes = joined(joined(kSizes3d, kOutputPadding3d), {"pool_kernel"}),
    .reals = {"clamp_min", "clamp_max"},
    .settings = {{"stride", kStride3d},
                 {"padding", kPadding3d},
                 {"output_padding", kOutputPadding3d},
                 {"pool_kernel", {"pool_kernel"}},
                 {"clamp_min", {"clamp_min"}},
                 {"clamp_max", {"clamp_max"}}},
};

const Document kBatchnormTanhMaxpoolGroupnorm = {
    .slug = "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm",
    .tensors = {{"input", {"batch_size", "in_channels", "height", "width"}},
                {"kernel", {"in_channels", "out_channels", "kernel_h", "kernel_w"}},
                {"bn_weight", {"out_channels"}},
                {"bn_bias", {"out_channels"}},
                {"gn_weight", {"out_channels"}},
                {"gn_bias", {"out_channels"}}},
    .sizes = {"batch_size", "in_channels", "out_channels", "height", "width", "kernel_h", "kernel_w",
              "stride_h", "stride_w", "padding_h", "padding_w", "output_padding_h", "output_padding_w",
              "groups", "num_groups"},
    .reals = {},
    .settings = {{"stride", {"stride_h", "stride_w"}},
                 {"padding", {"padding_h", "padding_w"}},
                 {"output_padding", {"output_padding_h", "output_padding_w"}},
                 {"groups", {"groups"}},
                 {"num_groups", {"num_groups"}}},
};

namespace {

// The function's numbers by name.
class Numbers {
 public:
  Numbers(const Document& document, std::span<const size_t> sizes, std::span<const double> reals)
      : document_(document), sizes_(sizes), reals_(reals) {
    for (size_t i = 0; i < sizes.size(); ++i) check(document.sizes[i], sizes[i]);
  }

  int64_t size(const char* name) const { return static_cast<int64_t>(sizes_[index(document_.sizes, name)]); }

  std::string text(const char* name) const {
    const size_t i = index(document_.reals, name);
    return i < reals_.size() ? fmt::format("{}", reals_[i]) : fmt::format("{}", size(name));
  }

 private:
  static size_t index(const Names& names, const char* name) {
    const auto same = [&](const char* other) { return std::strcmp(other, name) == 0; };
    return static_cast<size_t>(std::find_if(names.begin(), names.end(), same) - names.begin());
  }

  static void check(std::string_view name, size_t value) {
    if (value > INT64_MAX) throw invalid("{} is {}; it must be at most {}", name, value, INT64_MAX);
    const bool may_be_zero = name == "batch_size" || name.find("padding") != name.npos;
    if (value == 0 && !may_be_zero) throw invalid("{} is 0; it must be at least 1", name);
  }

  const Document& document_;
  std::span<const size_t> sizes_;
  std::span<const double> reals_;
};

// The bytes of a tensor must be countable: the sentence has all its factors.
Shape shape_of(const Document::Tensor& tensor, const Numbers& numbers) {
  Shape shape;
  int64_t bytes = 8;
  bool overflow = false;
  std::string factors;
  for (const char* name : tensor.extents) {
    const int64_t extent = numbers.size(name);
    factors += fmt::format("{}{} {}", factors.empty() ? "" : " * ", name, extent);
    if (extent > 0) overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
    shape.push_back(extent);
  }
  if (overflow) throw invalid("{} is too large: {} overflows", tensor.name, factors);
  return shape;
}

// All the function's numbers, for sentences of the road that speak of extents and windows.
std::string list_of(const Document& document, const Numbers& numbers) {
  std::string list;
  for (const Names* names : {&document.sizes, &document.reals}) {
    for (const char* name : *names)
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", name, numbers.text(name));
  }
  return list;
}

bool names_one_of(const Document& document, std::string_view sentence) {
  const auto named = [&](const char* name) { return sentence.find(name) != sentence.npos; };
  return std::any_of(document.sizes.begin(), document.sizes.end(), named) ||
         std::any_of(document.reals.begin(), document.reals.end(), named);
}

Plan compile(const Document& document, const Options& options, std::span<const size_t> sizes,
             std::span<const double> reals) {
  const Numbers numbers(document, sizes, reals);
  Shapes shapes;
  for (const auto& tensor : document.tensors) shapes[tensor.name] = shape_of(tensor, numbers);
  Settings settings;
  for (const auto& setting : document.settings) {
    std::string& value = settings[setting.name];
    for (const char* name : setting.values) {
      value.append(value.empty() ? "" : "x").append(numbers.text(name));
    }
  }
  try {
    return Pipeline::named(document.slug, settings).compile(shapes, options);
  } catch (const Error& e) {
    if (names_one_of(document, e.what())) throw;
    throw Error(e.status(), fmt::format("{} ({})", e.what(), list_of(document, numbers)));
  }
}

}  // namespace

Plan plan_of(const Document& document, const Options& options, std::span<const size_t> sizes,
             std::span<const double> reals, int gpu) {
  static PlanCache& cache = *new PlanCache(8);  // never destroyed: a device may be gone before it
  PlanCache::Key key = {reinterpret_cast<uintptr_t>(&document), static_cast<uint64_t>(options.dtype),
                        static_cast<uint64_t>(options.engine), static_cast<uint64_t>(gpu)};
  key.insert(key.end(), sizes.begin(), sizes.end());
  for (const double real : reals) key.push_back(std::bit_cast<uint64_t>(real));
  return cache.get(key, [&] { return compile(document, options, sizes, reals); });
}

}  // namespace upweave
