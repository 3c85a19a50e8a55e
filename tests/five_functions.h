#pragma once
// The five functions as tests call them: the documents' lists of tensors and numbers, written down once more
// so that a wrong order in the library shows.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "upweave/upweave.h"
#include "upweave/upweave.hpp"

namespace upweave::testing {

struct Function {
  std::string slug;
  std::vector<std::string> tensors;  // without the output
  std::vector<std::string> sizes;
  std::vector<size_t> size_values;  // a small case that works, different along each axis
  std::vector<std::string> reals;
  std::vector<double> real_values;
  template <class R>
  using Caller = std::function<R(void* f, const std::vector<const void*>& tensors, void* output,
                                 const std::vector<size_t>& sizes, const std::vector<double>& reals)>;
  Caller<upweave_status> call;  // one of f32, f16, bf16
  Caller<void> call_solution;   // the `solution` of a shared object
  void *f32, *f16, *bf16;

  friend void PrintTo(const Function& f, std::ostream* os) { *os << f.slug; }

  size_t& size(std::vector<size_t>& values, const std::string& name) const {
    return values.at(static_cast<size_t>(std::find(sizes.begin(), sizes.end(), name) - sizes.begin()));
  }
};

template <class T, size_t... i>
std::array<T, sizeof...(i)> to_array(const auto& values, std::index_sequence<i...>) {
  return {static_cast<T>(values.at(i))...};
}

// A caller for R f(tensors..., output, sizes..., reals...).
template <class R, size_t tensors, size_t sizes, size_t reals>
auto caller() {
  return [](void* f, const std::vector<const void*>& t, void* output, const std::vector<size_t>& s,
            const std::vector<double>& r) -> R {
    return std::apply(
        [&](auto... args) {
          using F = R (*)(decltype(args)...);
          return reinterpret_cast<F>(f)(args...);
        },
        std::tuple_cat(to_array<const void*>(t, std::make_index_sequence<tensors>()),
                       std::tuple<void*>(output), to_array<size_t>(s, std::make_index_sequence<sizes>()),
                       to_array<double>(r, std::make_index_sequence<reals>())));
  };
}

#define UPWEAVE_ALL_TYPES(name)                                                                 \
  reinterpret_cast<void*>(upweave_##name##_f32), reinterpret_cast<void*>(upweave_##name##_f16), \
      reinterpret_cast<void*>(upweave_##name##_bf16)

inline const std::vector<Function>& functions() {
  static const std::vector<std::string> k3d = {"batch_size", "in_channels", "out_channels", "depth",
                                               "height",     "width",       "kernel_d",     "kernel_h",
                                               "kernel_w",   "stride_d",    "stride_h",     "stride_w",
                                               "padding_d",  "padding_h",   "padding_w"};
  static const std::vector<std::string> k3d_out = [] {
    std::vector<std::string> names = k3d;
    for (const char* axis : {"d", "h", "w"}) names.push_back(std::string("output_padding_") + axis);
    return names;
  }();
  static const std::vector<std::string> k3d_pool = [] {
    std::vector<std::string> names = k3d_out;
    names.push_back("pool_kernel");
    return names;
  }();
  static const std::vector<Function> all = {
      {"conv-transpose3d-sum-layernorm-avgpool-gelu",
       {"input", "kernel"},
       k3d_out,
       {2, 3, 5, 3, 4, 5, 3, 2, 4, 2, 1, 3, 1, 0, 2, 1, 0, 2},
       {"sum_weight"},
       {0.75},
       caller<upweave_status, 2, 18, 1>(),
       caller<void, 2, 18, 1>(),
       UPWEAVE_ALL_TYPES(conv_transpose3d_sum_layernorm_avgpool_gelu)},
      {"conv-transpose3d-layernorm-gelu-scaling",
       {"input", "kernel"},
       k3d_out,
       {2, 3, 7, 3, 2, 4, 4, 3, 2, 2, 3, 1, 1, 0, 0, 1, 2, 0},
       {"scaling_factor"},
       {-1.5},
       caller<upweave_status, 2, 18, 1>(),
       caller<void, 2, 18, 1>(),
       UPWEAVE_ALL_TYPES(conv_transpose3d_layernorm_gelu_scaling)},
      {"conv-transpose3d-max-max-sum",
       {"input", "kernel", "conv_bias"},
       k3d,
       {2, 3, 4, 4, 5, 6, 5, 3, 2, 2, 2, 3, 1, 0, 2},
       {},
       {},
       caller<upweave_status, 3, 15, 0>(),
       caller<void, 3, 15, 0>(),
       UPWEAVE_ALL_TYPES(conv_transpose3d_max_max_sum)},
      {"conv-transpose3d-avgpool-clamp-softmax-multiply",
       {"input", "kernel", "scale"},
       k3d_pool,
       {2, 3, 4, 4, 6, 7, 3, 4, 2, 2, 1, 3, 1, 0, 1, 1, 0, 2, 2},
       {"clamp_min", "clamp_max"},
       {-0.5, 0.75},
       caller<upweave_status, 3, 19, 2>(),
       caller<void, 3, 19, 2>(),
       UPWEAVE_ALL_TYPES(conv_transpose3d_avgpool_clamp_softmax_multiply)},
      {"conv-transpose2d-batchnorm-tanh-maxpool-groupnorm",
       {"input", "kernel", "bn_weight", "bn_bias", "gn_weight", "gn_bias"},
       {"batch_size", "in_channels", "out_channels", "height", "width", "kernel_h", "kernel_w", "stride_h",
        "stride_w", "padding_h", "padding_w", "output_padding_h", "output_padding_w", "groups", "num_groups"},
       {3, 2, 6, 4, 5, 3, 2, 2, 3, 1, 0, 1, 2, 5, 3},
       {},
       {},
       caller<upweave_status, 6, 15, 0>(),
       caller<void, 6, 15, 0>(),
       UPWEAVE_ALL_TYPES(conv_transpose2d_batchnorm_tanh_maxpool_groupnorm)},
  };
  return all;
}

// The shapes that the documents give these tensors.
inline Shapes shapes_of(const Function& f, const std::vector<size_t>& values) {
  const auto get = [&](const std::string& name) {
    std::vector<size_t> copy = values;
    return static_cast<int64_t>(f.size(copy, name));
  };
  const bool three = f.slug.find("3d") != f.slug.npos;
  Shape input = {get("batch_size"), get("in_channels")}, kernel = {get("in_channels"), get("out_channels")};
  if (three) input.push_back(get("depth")), kernel.push_back(get("kernel_d"));
  for (const char* name : {"height", "width"}) input.push_back(get(name));
  for (const char* name : {"kernel_h", "kernel_w"}) kernel.push_back(get(name));
  Shapes shapes;
  for (const std::string& name : f.tensors) {
    shapes[name] = name == "input" ? input : name == "kernel" ? kernel : Shape{get("out_channels")};
  }
  return shapes;
}

// The same pipeline written out with numbers: what the library's own text must come to.
inline std::string text_of(const Function& f, const std::vector<size_t>& values,
                           const std::vector<double>& reals) {
  const auto axes = [&](const std::string& name) {
    std::vector<size_t> copy = values;
    std::string text;
    for (const char* axis : {"_d", "_h", "_w"}) {
      if (std::find(f.sizes.begin(), f.sizes.end(), name + axis) == f.sizes.end()) continue;
      text += (text.empty() ? "" : "x") + std::to_string(f.size(copy, name + axis));
    }
    return text;
  };
  std::vector<size_t> copy = values;
  const std::string conv = "conv_transpose kernel" +
                           std::string(f.tensors.back() == "conv_bias" ? " conv_bias" : "") + " s" +
                           axes("stride") + " p" + axes("padding") +
                           (axes("output_padding").empty() ? "" : " op" + axes("output_padding"));
  const auto real = [&](size_t i) { return std::to_string(reals.at(i)); };
  if (f.slug.ends_with("avgpool-gelu"))
    return conv + " | add " + real(0) + " | layer_norm channel | avg_pool 2 | gelu";
  if (f.slug.ends_with("scaling")) return conv + " | layer_norm channel | gelu | mul " + real(0);
  if (f.slug.ends_with("sum")) return conv + " | max_pool 2 | max_pool 3 | sum channel";
  if (f.slug.ends_with("multiply")) {
    return "avg_pool " + std::to_string(f.size(copy, "pool_kernel")) + " | " + conv + " | clamp " + real(0) +
           " " + real(1) + " | softmax space | mul scale";
  }
  return conv + " | batch_norm bn_weight bn_bias | tanh | max_pool 2 | group_norm " +
         std::to_string(f.size(copy, "num_groups")) + " gn_weight gn_bias";
}

}  // namespace upweave::testing
