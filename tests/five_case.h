#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "api/plan_impl.h"
#include "base/dtype.h"
#include "engine/reference/reference.h"
#include "five_functions.h"

namespace upweave::testing {

// Signed data of a case, the answer of the reference with its bounds, and a poisoned output.
struct FiveCase {
  FiveCase(const Function& function, Dtype type) : f(function), dtype(type) {
    const Shapes shapes = shapes_of(f, f.size_values);
    const Plan plan = Pipeline::parse(text_of(f, f.size_values, f.real_values))
                          .compile(shapes, {.dtype = dtype, .engine = Engine::kReference});
    std::mt19937 bits(7);
    std::map<std::string, Tensor> tensors;
    for (const std::string& name : f.tensors) {
      const Shape& shape = shapes.at(name);
      data.emplace_back(static_cast<size_t>(count(shape) * size_of(dtype)));
      for (int64_t i = 0; i < count(shape); ++i) {
        store_element(data.back().data(), dtype, i, (static_cast<double>(bits()) * 0x1p-31 - 1) * 1.2);
      }
      pointers.push_back(data.back().data());
      tensors[name] = load_tensor(data.back().data(), dtype, shape);
    }
    const Rounding rounding;
    want = evaluate(plan.impl().plan().source, tensors, &rounding);
    output.assign(want.data.size() * static_cast<size_t>(size_of(dtype)) + kGuard, std::byte{0xff});
  }

  void check() const {
    for (size_t i = 0; i < want.data.size(); ++i) {
      const double got = load_element(output.data(), dtype, static_cast<int64_t>(i));
      ASSERT_LE(std::fabs(got - want.data[i]), element_bound(want.data[i], want.err[i], dtype))
          << f.slug << " element " << i << ": " << got << " for " << want.data[i];
    }
    for (size_t i = output.size() - kGuard; i < output.size(); ++i) ASSERT_EQ(output[i], std::byte{0xff});
  }

  static constexpr size_t kGuard = 64;
  const Function& f;
  Dtype dtype;
  std::vector<std::vector<std::byte>> data;
  std::vector<const void*> pointers;
  Tensor want;
  std::vector<std::byte> output;
};

}  // namespace upweave::testing
