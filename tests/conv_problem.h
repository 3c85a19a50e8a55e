#pragma once
// What the tests of the CPU engine's convolution kernels share: naive float64 sums, random shapes and boxes,
// a kernel that is packed and run, every instruction set of the machine.
// clang-format off
#include "engine/cpu/kernels/simd_targets.h"  // before Highway
// clang-format on
#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "base/dtype.h"
#include "base/error.h"
#include "data_kinds.h"
#include "engine/cpu/conv/conv.h"
#include "engine/cpu/conv/toom.h"
#include "fresh_seed.h"

namespace upweave::cpu {

using testing::fresh_seed;

inline int effort(int full) {
  const char* light = std::getenv("UPWEAVE_TEST_EFFORT");
  return light && std::string(light) == "light" ? std::max(1, full / 5) : full;
}

struct Random {
  explicit Random(unsigned s) : engine(s) {}
  int64_t between(int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(engine); }
  double normal() { return std::normal_distribution<double>()(engine); }
  std::mt19937 engine;
};

struct AlignedDelete {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
std::unique_ptr<T[], AlignedDelete> aligned(int64_t n) {
  return std::unique_ptr<T[], AlignedDelete>(
      static_cast<T*>(std::aligned_alloc(64, (std::max<int64_t>(n, 1) * sizeof(T) + 63) / 64 * 64)));
}

// One sample (c_in, in...) and weights (c_in, c_out/groups, kernel...), both exact in the tile's element
// type.
struct Problem {
  ConvShape shape;
  std::vector<double> x, w;

  double& at(int64_t c, int64_t d, int64_t h, int64_t i) {
    return x[((c * shape.in[0] + d) * shape.in[1] + h) * shape.in[2] + i];
  }
};

struct Sum {
  double value = 0, magnitude = 0;  // sum a*b, sum |a||b|
  int64_t terms = 0;
};

inline Sum naive(const Problem& p, int64_t c, const Extents& o) {
  const ConvShape& s = p.shape;
  const int64_t ci_group = s.c_in / s.groups, co_group = s.c_out / s.groups, group = c / co_group;
  Sum sum;
  for (int64_t kd = 0; kd < s.kernel[0]; ++kd) {
    for (int64_t kh = 0; kh < s.kernel[1]; ++kh) {
      for (int64_t kw = 0; kw < s.kernel[2]; ++kw) {
        const Extents k = {kd, kh, kw};
        Extents i;
        bool real = true;
        for (int a = 0; a < 3; ++a) {
          const int64_t t = o[a] * s.step[a] + s.padding[a] - k[a] * s.dilation[a];
          i[a] = t / s.stride[a];
          real = real && t >= 0 && t % s.stride[a] == 0 && i[a] < s.in[a];
        }
        if (!real) continue;
        for (int64_t ci = group * ci_group; ci < (group + 1) * ci_group; ++ci) {
          const double a = p.x[((ci * s.in[0] + i[0]) * s.in[1] + i[1]) * s.in[2] + i[2]];
          const double b =
              p.w[(((ci * co_group + c % co_group) * s.kernel[0] + kd) * s.kernel[1] + kh) * s.kernel[2] +
                  kw];
          sum.value += a * b;
          sum.magnitude += std::abs(a * b);
          ++sum.terms;
        }
      }
    }
  }
  return sum;
}

inline Problem random_problem(Random& random, const ConvShape& shape, Dtype type) {
  Problem p{shape, {}, {}};
  p.x.resize(shape.c_in * shape.in[0] * shape.in[1] * shape.in[2]);
  p.w.resize(shape.c_in * (shape.c_out / shape.groups) * shape.kernel[0] * shape.kernel[1] * shape.kernel[2]);
  auto exact = [&](double v) {
    return type == Dtype::kBF16 ? double{bf16_to_float(double_to_bf16(v))} : double{static_cast<float>(v)};
  };
  for (double& v : p.x) v = exact(random.normal());
  for (double& v : p.w) v = exact(0.1 * random.normal());
  return p;
}

// Packs the input box and computes the output box; poisons everything that the kernel must not read or
// keep.
struct Result {
  Box box;
  int64_t ld;
  std::unique_ptr<float[], AlignedDelete> data;
  const float* at(const Extents& i) const {
    return data.get() + ((i[0] * box.extent[1] + i[1]) * box.extent[2] + i[2]) * ld;
  }
};

class Packed {
 public:
  Packed(const Problem& problem, std::unique_ptr<ConvKernel> kernel)
      : problem_(problem), kernel_(std::move(kernel)), bytes_(aligned<char>(kernel_->packed_bytes())) {
    std::memset(bytes_.get(), 0xff, kernel_->packed_bytes());
    kernel_->pack(problem.w.data(), bytes_.get(), 2);
  }

  Result compute(const Box& box, int64_t margin = 0) const {
    const ConvShape& s = problem_.shape;
    ConvInput input;
    input.box = kernel_->input_box(box);
    for (int a = 0; a < 3; ++a) input.box.lo[a] -= margin, input.box.extent[a] += 2 * margin;
    input.ld = kernel_->channels_in() + 16 * margin;
    const int64_t size = kernel_->input_type() == Dtype::kBF16 ? 2 : 4;
    auto in = aligned<char>(input.box.count() * input.ld * size);
    std::memset(in.get(), 0, input.box.count() * input.ld * size);
    for (int64_t i = 0; i < input.box.count(); ++i) {
      const Extents& e = input.box.extent;
      const Extents at = {input.box.lo[0] + i / (e[1] * e[2]), input.box.lo[1] + i / e[2] % e[1],
                          input.box.lo[2] + i % e[2]};
      if (at[0] < 0 || at[0] >= s.in[0] || at[1] < 0 || at[1] >= s.in[1] || at[2] < 0 || at[2] >= s.in[2])
        continue;
      for (int64_t c = 0; c < s.c_in; ++c) {
        store_element(in.get(), kernel_->input_type(), i * input.ld + c,
                      problem_.x[((c * s.in[0] + at[0]) * s.in[1] + at[1]) * s.in[2] + at[2]]);
      }
    }
    input.data = in.get();
    Result result{box, kernel_->channels_out(), aligned<float>(box.count() * kernel_->channels_out())};
    std::fill_n(result.data.get(), box.count() * result.ld, std::numeric_limits<float>::quiet_NaN());
    auto scratch = aligned<char>(kernel_->scratch_bytes());
    std::memset(scratch.get(), 0xff, kernel_->scratch_bytes());
    kernel_->compute(bytes_.get(), input, {result.data.get(), box, result.ld}, scratch.get());
    return result;
  }
  const ConvKernel& kernel() const { return *kernel_; }

 private:
  const Problem& problem_;
  std::unique_ptr<ConvKernel> kernel_;
  std::unique_ptr<char[], AlignedDelete> bytes_;
};

inline Extents position(const Box& box, int64_t i) {
  return {i / (box.extent[1] * box.extent[2]), i / box.extent[2] % box.extent[1], i % box.extent[2]};
}
inline Extents output_of(const Box& box, const Extents& i) {
  return {box.lo[0] + box.step[0] * i[0], box.lo[1] + box.step[1] * i[1], box.lo[2] + box.step[2] * i[2]};
}

inline Box whole(const ConvShape& shape) {
  Box box;
  box.extent = shape.out;
  return box;
}

inline Box random_box(Random& random, const ConvShape& shape) {
  Box box;
  for (int a = 0; a < 3; ++a) {
    box.step[a] = random.between(0, 2) == 0 ? shape.stride[a] : 1;
    box.lo[a] = random.between(0, shape.out[a] - 1);
    box.extent[a] = random.between(1, (shape.out[a] - 1 - box.lo[a]) / box.step[a] + 1);
  }
  return box;
}

inline ConvShape random_shape(Random& random) {
  ConvShape s;
  s.groups = random.between(0, 3) == 0 ? random.between(2, 3) : 1;
  s.c_in = s.groups * random.between(1, random.between(0, 1) ? 6 : 40);
  s.c_out = s.groups * random.between(1, random.between(0, 1) ? 10 : 140);
  const int64_t kind = random.between(0, 7);
  if (kind == 0) s.groups = 1, s.c_in = random.between(60, 150);       // taps one by one
  if (kind == 1) s.groups = s.c_in = s.c_out = random.between(2, 90);  // each channel by itself
  if (kind == 2) s.groups = 1, s.c_out = random.between(1, 13);        // few output channels
  const int64_t rank = random.between(1, 3);
  for (int64_t a = 3 - rank; a < 3; ++a) {
    s.kernel[a] = random.between(1, 5);
    s.dilation[a] = random.between(0, 3) == 0 ? random.between(2, 3) : 1;
    s.in[a] = random.between(1, random.between(0, 2) == 0 ? 20 : 7);
    const bool ordinary = random.between(0, 1) == 0;
    s.stride[a] = ordinary ? 1 : random.between(1, 3);
    const int64_t reach = (s.in[a] - 1) * s.stride[a] + s.dilation[a] * (s.kernel[a] - 1) + 1;
    if (ordinary) {  // of step t and padding p, down to one that reaches nothing but zeros
      const int64_t t = random.between(1, 3), p = random.between(0, 3);
      s.step[a] = t;
      s.padding[a] = s.dilation[a] * (s.kernel[a] - 1) - p;
      s.out[a] = std::max<int64_t>(1, (s.in[a] + 2 * p - s.dilation[a] * (s.kernel[a] - 1) - 1 + t) / t);
      continue;
    }
    s.padding[a] = random.between(0, std::min<int64_t>(3, (reach - 1) / 2));
    s.out[a] = reach - 2 * s.padding[a] + random.between(0, s.stride[a] - 1);
  }
  return s;
}

inline std::string text(const ConvShape& s) {
  auto e = [](const Extents& x) { return fmt::format("{}x{}x{}", x[0], x[1], x[2]); };
  return fmt::format("{}->{} groups {} kernel {} stride {} step {} dilation {} padding {} in {} out {}",
                     s.c_in, s.c_out, s.groups, e(s.kernel), e(s.stride), e(s.step), e(s.dilation),
                     e(s.padding), e(s.in), e(s.out));
}

// A sum of n products by fused multiply-adds, or by a product and a sum each: (n + 1) u sum|a||b| at most.
inline void expect_direct_accuracy(const Problem& p, const Result& r, int64_t c_padded) {
  for (int64_t i = 0; i < r.box.count(); ++i) {
    const Extents at = position(r.box, i), o = output_of(r.box, at);
    for (int64_t c = 0; c < p.shape.c_out; ++c) {
      const Sum sum = naive(p, c, o);
      ASSERT_LE(std::abs(r.at(at)[c] - sum.value),
                static_cast<double>(sum.terms + 1) * (0x1p-24 * sum.magnitude + 0x1p-150))
          << "output " << o[0] << " " << o[1] << " " << o[2] << " channel " << c;
    }
    for (int64_t c = p.shape.c_out; c < c_padded; ++c)
      ASSERT_EQ(r.at(at)[c], 0.0f) << "padding channel " << c;
  }
}

// The same bits from any box, margin and leading dimension.
inline void expect_same_bits(const Packed& conv, const ConvShape& shape, Random& random) {
  const Result all = conv.compute(whole(shape));
  for (int n = 0; n < 3; ++n) {
    const Result part = conv.compute(random_box(random, shape), n);
    for (int64_t i = 0; i < part.box.count(); ++i) {
      const Extents at = position(part.box, i);
      ASSERT_EQ(std::memcmp(part.at(at), all.at(output_of(part.box, at)), shape.c_out * sizeof(float)), 0);
    }
  }
}

class ConvOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    std::printf("UPWEAVE_TEST_SEED=%u\n", fresh_seed());
    hwy::SetSupportedTargetsForTest(GetParam());
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

struct ToomCase {
  ConvShape shape;
  Extents tile;
};

inline ToomCase random_toom(Random& random) {
  for (;;) {
    ToomCase c;
    c.shape.c_in = random.between(1, 40);
    c.shape.c_out = random.between(1, 70);
    const int64_t rank = random.between(1, 3);
    for (int64_t a = 3 - rank; a < 3; ++a) {
      ConvShape& s = c.shape;
      s.kernel[a] = random.between(1, random.between(0, rank) == 0 && a == 2 ? 13 : 5);
      s.stride[a] = random.between(1, 2);
      if (s.stride[a] == 1 && random.between(0, 2) == 0) s.dilation[a] = random.between(2, 3);
      s.in[a] = random.between(1, s.dilation[a] == 1 ? 9 : 16);
      const int64_t reach = (s.in[a] - 1) * s.stride[a] + s.dilation[a] * (s.kernel[a] - 1) + 1;
      s.padding[a] = random.between(0, std::min<int64_t>(2, (reach - 1) / 2));
      s.out[a] = reach - 2 * s.padding[a] + random.between(0, s.stride[a] - 1);
      c.tile[a] = random.between(1, 4);
    }
    for (int64_t a = 0; a < 3 - rank; ++a) c.tile[a] = 1;
    try {
      make_toom_conv(c.shape, c.tile);
      return c;
    } catch (const Error& e) {
      if (e.status() != Status::kUnsupported) throw;
    }
  }
}

inline std::string text(const ToomCase& c) {
  return text(c.shape) + fmt::format(" tile {}x{}x{}", c.tile[0], c.tile[1], c.tile[2]);
}

}  // namespace upweave::cpu
