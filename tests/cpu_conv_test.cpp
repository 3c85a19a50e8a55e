// The CPU engine's convolution kernels against naive float64 sums: random shapes and boxes, every instruction
// set of the machine, every algorithm. The bounds are derived, not tuned.
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
namespace {

using testing::fresh_seed;

int effort(int full) {
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

Sum naive(const Problem& p, int64_t c, const Extents& o) {
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
          const int64_t t = o[a] + s.padding[a] - k[a] * s.dilation[a];
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

Problem random_problem(Random& random, const ConvShape& shape, Dtype type) {
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

Extents position(const Box& box, int64_t i) {
  return {i / (box.extent[1] * box.extent[2]), i / box.extent[2] % box.extent[1], i % box.extent[2]};
}
Extents output_of(const Box& box, const Extents& i) {
  return {box.lo[0] + box.step[0] * i[0], box.lo[1] + box.step[1] * i[1], box.lo[2] + box.step[2] * i[2]};
}

Box whole(const ConvShape& shape) {
  Box box;
  box.extent = shape.out;
  return box;
}

Box random_box(Random& random, const ConvShape& shape) {
  Box box;
  for (int a = 0; a < 3; ++a) {
    box.step[a] = random.between(0, 2) == 0 ? shape.stride[a] : 1;
    box.lo[a] = random.between(0, shape.out[a] - 1);
    box.extent[a] = random.between(1, (shape.out[a] - 1 - box.lo[a]) / box.step[a] + 1);
  }
  return box;
}

ConvShape random_shape(Random& random) {
  ConvShape s;
  s.groups = random.between(0, 3) == 0 ? random.between(2, 3) : 1;
  s.c_in = s.groups * random.between(1, random.between(0, 1) ? 6 : 40);
  s.c_out = s.groups * random.between(1, random.between(0, 1) ? 10 : 140);
  const int64_t rank = random.between(1, 3);
  for (int64_t a = 3 - rank; a < 3; ++a) {
    s.kernel[a] = random.between(1, 5);
    s.stride[a] = random.between(1, 3);
    s.dilation[a] = random.between(0, 3) == 0 ? random.between(2, 3) : 1;
    s.in[a] = random.between(1, 7);
    const int64_t reach = (s.in[a] - 1) * s.stride[a] + s.dilation[a] * (s.kernel[a] - 1) + 1;
    s.padding[a] = random.between(0, std::min<int64_t>(3, (reach - 1) / 2));
    s.out[a] = reach - 2 * s.padding[a] + random.between(0, s.stride[a] - 1);
  }
  return s;
}

std::string text(const ConvShape& s) {
  auto e = [](const Extents& x) { return fmt::format("{}x{}x{}", x[0], x[1], x[2]); };
  return fmt::format("{}->{} groups {} kernel {} stride {} dilation {} padding {} in {} out {}", s.c_in,
                     s.c_out, s.groups, e(s.kernel), e(s.stride), e(s.dilation), e(s.padding), e(s.in),
                     e(s.out));
}

// A sum of n products by fused multiply-adds, or by a product and a sum each: (n + 1) u sum|a||b| at most.
void expect_direct_accuracy(const Problem& p, const Result& r, int64_t c_padded) {
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

class ConvOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    std::printf("UPWEAVE_TEST_SEED=%u\n", fresh_seed());
    hwy::SetSupportedTargetsForTest(GetParam());
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
INSTANTIATE_TEST_SUITE_P(Targets, ConvOnTarget, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

TEST_P(ConvOnTarget, DirectIsAsExactAsItsTerms) {
  Random random(fresh_seed());
  for (int n = 0; n < effort(60); ++n) {
    const ConvShape shape = random_shape(random);
    SCOPED_TRACE(text(shape));
    const Problem p = random_problem(random, shape, Dtype::kF32);
    const Packed conv(p, make_direct_conv(shape));
    expect_direct_accuracy(p, conv.compute(whole(shape)), conv.kernel().channels_out());
    expect_direct_accuracy(p, conv.compute(random_box(random, shape), 1), conv.kernel().channels_out());
    if (HasFatalFailure()) return;
  }
}

// Each product of bfloat16 values is exact in float32, and a dot product rounds each of its two sums once.
TEST(ConvBf16, DotProductsAreAsExactAsTheirTerms) {
  Random random(fresh_seed() + 2);
  std::printf("UPWEAVE_TEST_SEED=%u\n", fresh_seed());
  for (int n = 0; n < effort(60); ++n) {
    const ConvShape shape = random_shape(random);
    SCOPED_TRACE(text(shape));
    const Problem p = random_problem(random, shape, Dtype::kBF16);
    std::unique_ptr<ConvKernel> kernel = make_conv_kernel(shape, Dtype::kBF16, Algorithm::kDirect);
    const Packed conv(p, std::move(kernel));
    expect_direct_accuracy(p, conv.compute(whole(shape)), conv.kernel().channels_out());
    expect_direct_accuracy(p, conv.compute(random_box(random, shape), 1), conv.kernel().channels_out());
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// The same bits from any box, margin and leading dimension.
void expect_same_bits(const Packed& conv, const ConvShape& shape, Random& random) {
  const Result all = conv.compute(whole(shape));
  for (int n = 0; n < 3; ++n) {
    const Result part = conv.compute(random_box(random, shape), n);
    for (int64_t i = 0; i < part.box.count(); ++i) {
      const Extents at = position(part.box, i);
      ASSERT_EQ(std::memcmp(part.at(at), all.at(output_of(part.box, at)), shape.c_out * sizeof(float)), 0);
    }
  }
}

// Dot products take what is subnormal for zero; a kernel notices before that shows. Inputs and weights around
// every edge of it: subnormal themselves, products and sums that are, and now and then one among others that
// are not.
TEST(ConvBf16, SubnormalsAreNotTakenForZero) {
  const auto rounded = [](double v) { return double{bf16_to_float(double_to_bf16(v))}; };
  Random random(fresh_seed() + 7);
  std::printf("UPWEAVE_TEST_SEED=%u\n", fresh_seed());
  const struct {
    int input, weights;  // powers of two
  } scales[] = {{-126, 0},  {-130, 0},  {-133, 4},  {0, -126}, {4, -133},
                {-63, -63}, {-56, -56}, {-70, -50}, {-100, 0}};
  for (int n = 0; n < effort(36); ++n) {
    const ConvShape shape = random_shape(random);
    const auto& scale = scales[n % std::size(scales)];
    const int64_t every = n / static_cast<int>(std::size(scales)) % 2 ? 50 : 1;  // mixed, or all of them
    SCOPED_TRACE(text(shape) + ", 2^" + std::to_string(scale.input) + " and 2^" +
                 std::to_string(scale.weights));
    Problem p = random_problem(random, shape, Dtype::kBF16);
    for (double& v : p.x) v = random.between(1, every) == 1 ? rounded(std::ldexp(v, scale.input)) : v;
    for (double& v : p.w) v = random.between(1, every) == 1 ? rounded(std::ldexp(v, scale.weights)) : v;
    const Packed conv(p, make_conv_kernel(shape, Dtype::kBF16, Algorithm::kDirect));
    expect_direct_accuracy(p, conv.compute(whole(shape)), conv.kernel().channels_out());
    expect_same_bits(conv, shape, random);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(ConvOnTarget, DirectBitsDoNotDependOnTheBox) {
  Random random(fresh_seed() + 1);
  for (int n = 0; n < effort(20); ++n) {
    const ConvShape shape = random_shape(random);
    SCOPED_TRACE(text(shape));
    const Problem p = random_problem(random, shape, Dtype::kF32);
    expect_same_bits(Packed(p, make_direct_conv(shape)), shape, random);
    if (HasFatalFailure()) return;
  }
}

struct ToomCase {
  ConvShape shape;
  Extents tile;
};

ToomCase random_toom(Random& random) {
  for (;;) {
    ToomCase c;
    c.shape.c_in = random.between(1, 40);
    c.shape.c_out = random.between(1, 70);
    const int64_t rank = random.between(1, 3);
    for (int64_t a = 3 - rank; a < 3; ++a) {
      ConvShape& s = c.shape;
      s.kernel[a] = random.between(1, 5);
      s.stride[a] = random.between(1, 2);
      s.in[a] = random.between(1, 9);
      const int64_t reach = (s.in[a] - 1) * s.stride[a] + s.kernel[a];
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

std::string text(const ToomCase& c) {
  return text(c.shape) + fmt::format(" tile {}x{}x{}", c.tile[0], c.tile[1], c.tile[2]);
}

// Which tile, and which output of it, along one axis; and what the transform may magnify there: term
// x[j]*g[t] of the window's inputs and the phase's taps is rounded at magnitude growth[j][t], the sum over
// points p of |A^T[i][p]| |G[p][t]| |B^T[p][j]|.
struct ToomPlace {
  int64_t first_input;     // of the window
  std::vector<int64_t> k;  // taps in the order of the window
  std::vector<std::vector<double>> growth;

  ToomPlace(const ConvShape& s, int axis, int64_t m, int64_t o) {
    const int64_t e = o % s.stride[axis], j = o / s.stride[axis];
    int64_t shift = 0;
    for (int64_t tap = s.kernel[axis] - 1; tap >= 0; --tap) {
      if ((e + s.padding[axis] - tap) % s.stride[axis] != 0) continue;
      if (k.empty()) shift = (e + s.padding[axis] - tap) / s.stride[axis];
      k.push_back(tap);
    }
    first_input = j / m * m + shift;
    const ToomAxis f = {static_cast<int>(m), static_cast<int>(k.size())};
    const int i = static_cast<int>(j % m);
    growth.assign(f.points(), std::vector<double>(f.r, 0.0));
    for (int p = 0; p < f.points(); ++p) {
      for (int x = 0; x < f.points(); ++x) {
        for (int t = 0; t < f.r; ++t) growth[x][t] += std::abs(f.at(i, p) * f.g(p, t) * f.bt(p, x));
      }
    }
  }
};

// The bound on an output's error: every value is rounded at most once a term in the three input transforms,
// once as a weight, c_in times in the product and once a term in the three inverses; first order in the unit
// roundoff.
double toom_bound(const Problem& p, const Extents& tile, int64_t c, const Extents& o) {
  const ConvShape& s = p.shape;
  const ToomPlace d(s, 0, tile[0], o[0]), h(s, 1, tile[1], o[1]), w(s, 2, tile[2], o[2]);
  double magnitude = 0;
  auto real = [](int64_t i, int64_t n) { return i >= 0 && i < n; };
  for (size_t x = 0; x < d.growth.size(); ++x) {
    for (size_t y = 0; y < h.growth.size(); ++y) {
      for (size_t z = 0; z < w.growth.size(); ++z) {
        const Extents i = {d.first_input + static_cast<int64_t>(x), h.first_input + static_cast<int64_t>(y),
                           w.first_input + static_cast<int64_t>(z)};
        if (!real(i[0], s.in[0]) || !real(i[1], s.in[1]) || !real(i[2], s.in[2])) continue;
        for (size_t a = 0; a < d.k.size(); ++a) {
          for (size_t b = 0; b < h.k.size(); ++b) {
            for (size_t e = 0; e < w.k.size(); ++e) {
              const double growth = d.growth[x][a] * h.growth[y][b] * w.growth[z][e];
              if (growth == 0) continue;
              for (int64_t ci = 0; ci < s.c_in; ++ci) {
                const double value = p.x[((ci * s.in[0] + i[0]) * s.in[1] + i[1]) * s.in[2] + i[2]];
                const double weight =
                    p.w[(((ci * s.c_out + c) * s.kernel[0] + d.k[a]) * s.kernel[1] + h.k[b]) * s.kernel[2] +
                        w.k[e]];
                magnitude += growth * std::abs(value * weight);
              }
            }
          }
        }
      }
    }
  }
  const double points = static_cast<double>(d.growth.size() + h.growth.size() + w.growth.size());
  return (static_cast<double>(s.c_in) + 2 * points + 1) * 0x1p-24 * magnitude;
}

TEST_P(ConvOnTarget, ToomStaysInsideItsBound) {
  Random random(fresh_seed() + 3);
  for (int n = 0; n < effort(60); ++n) {
    const ToomCase c = random_toom(random);
    SCOPED_TRACE(text(c));
    const Problem p = random_problem(random, c.shape, Dtype::kF32);
    const Packed conv(p, make_toom_conv(c.shape, c.tile));
    const Result r = conv.compute(n % 2 == 0 ? whole(c.shape) : random_box(random, c.shape), n % 3);
    for (int64_t i = 0; i < r.box.count(); ++i) {
      const Extents at = position(r.box, i), o = output_of(r.box, at);
      for (int64_t ch = 0; ch < r.ld; ++ch) {
        if (ch >= c.shape.c_out) {
          ASSERT_EQ(r.at(at)[ch], 0.0f) << "padding channel " << ch;
        } else if (random.between(0, r.box.count() * c.shape.c_out / 200) == 0) {  // about 200 of all
          ASSERT_LE(std::abs(r.at(at)[ch] - naive(p, ch, o).value), toom_bound(p, c.tile, ch, o))
              << "output " << o[0] << " " << o[1] << " " << o[2] << " channel " << ch;
        } else {
          ASSERT_TRUE(std::isfinite(r.at(at)[ch]));
        }
      }
    }
  }
}

// What weights may be like: normal; some taps zero; an output channel of zeros and one of tiny weights; each
// output channel seeing one input channel, as interpolation does; most of them zero; all of one sign.
enum class Weights { kNormal, kTaps, kChannels, kDiagonal, kPruned, kPositive };
constexpr Weights kWeights[] = {Weights::kNormal,   Weights::kTaps,   Weights::kChannels,
                                Weights::kDiagonal, Weights::kPruned, Weights::kPositive};

void change_weights(Problem& p, Weights kind, Random& random) {
  const ConvShape& s = p.shape;
  const int64_t volume = s.kernel[0] * s.kernel[1] * s.kernel[2];
  const int64_t tap = random.between(0, volume - 1), zero = random.between(0, s.c_out - 1);
  for (int64_t i = 0; i < static_cast<int64_t>(p.w.size()); ++i) {
    const int64_t ci = i / volume / s.c_out, co = i / volume % s.c_out, k = i % volume;
    double& w = p.w[i];
    if (kind == Weights::kTaps && (k == tap || (co == zero && k % 2))) w = 0;
    if (kind == Weights::kChannels && co == zero) w = 0;
    if (kind == Weights::kChannels && co == zero + 1) w *= 0x1p-40;
    if (kind == Weights::kDiagonal) w = ci == co % s.c_in ? 0.25 : 0;
    if (kind == Weights::kPruned && random.between(0, 9) < 7) w = 0;
    if (kind == Weights::kPositive) w = std::abs(w);
  }
}

// What the reference allows direct sums, elementwise: (4 + 2 sqrt(n)) u sum|a||b|, n terms of the longest
// phase; or eight times what they err.
void expect_error_of_direct_sums(const Problem& p, const Result& r, const Result& direct, double* worst) {
  const ConvShape& s = p.shape;
  double terms = static_cast<double>(s.c_in);
  for (int a = 0; a < 3; ++a) terms *= static_cast<double>((s.kernel[a] + s.stride[a] - 1) / s.stride[a]);
  for (int64_t i = 0; i < r.box.count(); ++i) {
    const Extents at = position(r.box, i), o = output_of(r.box, at);
    for (int64_t c = 0; c < s.c_out; ++c) {
      const float got = r.at(at)[c], by_direct = direct.at(at)[c];
      if (got == by_direct) continue;
      const Sum sum = naive(p, c, o);
      const double bound = std::max((4 + 2 * std::sqrt(terms)) * 0x1p-24 * sum.magnitude + 0x1p-149,
                                    8 * std::abs(by_direct - sum.value));
      *worst = std::max(*worst, std::abs(got - sum.value) / bound);
      ASSERT_LE(std::abs(got - sum.value), bound)
          << "output " << o[0] << " " << o[1] << " " << o[2] << " channel " << c << ": " << got
          << ", by direct sums " << by_direct << " of magnitudes " << sum.magnitude;
    }
  }
}

TEST_P(ConvOnTarget, StrictIsAsExactAsDirectSumsOnAnyData) {
  Random random(fresh_seed() + 9);
  std::map<std::string, double> worst;
  for (int n = 0; n < effort(40); ++n) {
    for (const upweave::testing::DataKind kind : upweave::testing::kDataKinds) {
      const ToomCase c = random_toom(random);
      const Weights weights = n % 2 == 0 ? Weights::kNormal : kWeights[random.between(0, 5)];
      SCOPED_TRACE(text(c) + fmt::format(", {}, weights {}", name_of(kind), static_cast<int>(weights)));
      Problem p = random_problem(random, c.shape, Dtype::kF32);
      p.x = upweave::testing::make_kind(kind, c.shape.c_in, c.shape.in, random.engine);
      for (double& x : p.x) x = static_cast<float>(x);
      change_weights(p, weights, random);
      const Packed toom(p, make_toom_conv(c.shape, c.tile)), direct(p, make_direct_conv(c.shape));
      const Result r = toom.compute(whole(c.shape));
      expect_error_of_direct_sums(p, r, direct.compute(whole(c.shape)), &worst[name_of(kind)]);
      if (n % 8 == 0) expect_same_bits(toom, c.shape, random);
      if (HasFatalFailure()) return;
    }
  }
  for (const auto& [name, fraction] : worst) std::printf("%s: %.2g of the bound\n", name.c_str(), fraction);
}

TEST_P(ConvOnTarget, ToomBitsDoNotDependOnTheBox) {
  Random random(fresh_seed() + 4);
  for (int n = 0; n < effort(30); ++n) {
    const ToomCase c = random_toom(random);
    SCOPED_TRACE(text(c));
    Problem p = random_problem(random, c.shape, Dtype::kF32);
    if (n % 3 == 0) p.x[random.between(0, p.x.size() - 1)] = 0x1p100;  // its tiles go the direct way
    expect_same_bits(Packed(p, make_toom_conv(c.shape, c.tile)), c.shape, random);
    if (HasFatalFailure()) return;
  }
}

// What the library promises of any kernel that it picks by itself: |error| <= c 2^-24 times the largest sum
// |a||b| among the outputs of the tile, c the number of terms, as for a float32 sum of them.
struct Named {
  const char* name;
  ConvShape shape;
};
const std::vector<Named>& pipelines() {
  static const std::vector<Named> all = {
      {"k3", {32, 64, 1, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {8, 8, 12}, {16, 16, 24}}},
      {"k4", {32, 64, 1, {4, 4, 4}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {8, 8, 12}, {16, 16, 24}}},
      {"k5", {32, 64, 1, {5, 5, 5}, {2, 2, 2}, {1, 1, 1}, {2, 2, 2}, {9, 9, 9}, {17, 17, 17}}},
      {"2d", {64, 128, 1, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {1, 14, 14}, {1, 16, 16}}}};
  return all;
}

void expect_promise(Dtype type, Precision precision, double of_direct) {
  Random random(fresh_seed() + 5);
  std::printf("UPWEAVE_TEST_SEED=%u\n", fresh_seed());
  for (const Named& named : pipelines()) {
    const ConvShape& s = named.shape;
    const Problem p = random_problem(random, s, type);
    const Packed chosen(p, make_conv_kernel(s, type, Algorithm::kAuto, precision)),
        direct(p, make_direct_conv(s));
    SCOPED_TRACE(chosen.kernel().describe());
    const Result r = chosen.compute(whole(s)), q = direct.compute(whole(s));
    const Extents tile = chosen.kernel().tile_quantum();
    double error2 = 0, direct2 = 0, all2 = 0;
    for (int64_t outputs = 0; outputs < effort(10000);) {
      // One output channel of one whole tile.
      const int64_t c = random.between(0, s.c_out - 1);
      Extents lo;
      for (int a = 0; a < 3; ++a) lo[a] = random.between(0, (s.out[a] - 1) / tile[a]) * tile[a];
      double worst = 0, magnitude = 0;
      int64_t terms = 0;
      for (int64_t d = lo[0]; d < std::min(lo[0] + tile[0], s.out[0]); ++d) {
        for (int64_t h = lo[1]; h < std::min(lo[1] + tile[1], s.out[1]); ++h) {
          for (int64_t w = lo[2]; w < std::min(lo[2] + tile[2], s.out[2]); ++w) {
            const Sum sum = naive(p, c, {d, h, w});
            ++outputs;
            const double e = r.at({d, h, w})[c] - sum.value, f = q.at({d, h, w})[c] - sum.value;
            error2 += e * e, direct2 += f * f, all2 += sum.value * sum.value;
            worst = std::max(worst, std::abs(e));
            magnitude = std::max(magnitude, sum.magnitude);
            terms = std::max(terms, sum.terms);
          }
        }
      }
      ASSERT_LE(worst, static_cast<double>(terms) * 0x1p-24 * magnitude);
    }
    std::printf("%s: relative rms error %.2g, of direct sums %.2g; %s\n", named.name,
                std::sqrt(error2 / all2), std::sqrt(direct2 / all2), chosen.kernel().describe().c_str());
    EXPECT_LE(std::sqrt(error2), of_direct * std::sqrt(direct2));
  }
}

// Nested transforms of 5 points in three axes, or 6 in two, about double a direct sum's error.
TEST(ConvPromise, StrictKernelsAreAsExactAsFloat32) { expect_promise(Dtype::kF32, Precision::kStrict, 3); }
// 16-bit values and TF32 leave room for more: these are still a hundred times more exact than TF32.
TEST(ConvPromise, FastKernelsAreMoreExactThanTf32) { expect_promise(Dtype::kF32, Precision::kFast, 16); }
TEST(ConvPromise, Bf16KernelsLoseNothingThatBf16Has) { expect_promise(Dtype::kBF16, Precision::kStrict, 16); }

// Outputs that a strange value reaches are what direct sums make of it; its neighbours do not notice.
TEST_P(ConvOnTarget, StrangeValuesStayWhereTheyAre) {
  Random random(fresh_seed() + 6);
  const float inf = std::numeric_limits<float>::infinity();
  for (int n = 0; n < effort(30); ++n) {
    const ToomCase c = random_toom(random);
    SCOPED_TRACE(text(c));
    const Problem clean = random_problem(random, c.shape, Dtype::kF32);
    Problem p = clean;
    const double strange[] = {inf, -inf, std::nan(""), 0x1p127, -0x1p100, 0x1p41};
    const int64_t where = random.between(0, p.x.size() - 1);
    p.x[where] = strange[n % 6];
    const Packed before(clean, make_toom_conv(c.shape, c.tile)), after(p, make_toom_conv(c.shape, c.tile)),
        direct(p, make_direct_conv(c.shape));
    const Result a = before.compute(whole(c.shape)), b = after.compute(whole(c.shape)),
                 d = direct.compute(whole(c.shape));
    const ConvShape& s = c.shape;
    const int64_t volume = s.in[0] * s.in[1] * s.in[2], at = where % volume;
    const Extents in = {at / (s.in[1] * s.in[2]), at / s.in[2] % s.in[1], at % s.in[2]};
    for (int64_t i = 0; i < a.box.count(); ++i) {
      const Extents o = position(a.box, i);
      bool window = true, reached = true;
      for (int x = 0; x < 3; ++x) {
        const int64_t k = o[x] + s.padding[x] - in[x] * s.stride[x],
                      far = c.tile[x] * s.stride[x] + s.kernel[x];
        reached = reached && k >= 0 && k < s.kernel[x];
        window = window && k > -far && k < far;
      }
      for (int64_t ch = 0; ch < s.c_out; ++ch) {
        const float value = b.at(o)[ch];
        if (reached) {
          EXPECT_EQ(std::memcmp(&value, &d.at(o)[ch], sizeof value), 0) << value << " " << d.at(o)[ch];
        } else if (!window) {
          EXPECT_EQ(std::memcmp(&value, &a.at(o)[ch], sizeof value), 0) << value << " " << a.at(o)[ch];
        } else {
          EXPECT_TRUE(std::isfinite(value));  // a tile mate: direct or not, it never meets the strange value
        }
      }
      if (HasFailure()) return;
    }
  }
}

// Tiny inputs and tiny or enormous weights are as exact as direct sums: they are direct sums.
TEST_P(ConvOnTarget, ExtremeScalesGoTheDirectWay) {
  Random random(fresh_seed() + 7);
  for (const auto& [input, weight] :
       {std::pair{0x1p-140, 0x1p20}, {0x1p-70, 1.0}, {1.0, 0x1p-130}, {1.0, 0x1p90}}) {
    ToomCase c = random_toom(random);
    c.shape.c_in = 8;
    SCOPED_TRACE(text(c));
    Problem p = random_problem(random, c.shape, Dtype::kF32);
    for (double& x : p.x) x = static_cast<float>(x * input);
    for (double& w : p.w) w = static_cast<float>(w * weight);
    const Result a = Packed(p, make_toom_conv(c.shape, c.tile)).compute(whole(c.shape)),
                 b = Packed(p, make_direct_conv(c.shape)).compute(whole(c.shape));
    for (int64_t i = 0; i < a.box.count(); ++i) {
      const Extents o = position(a.box, i);
      ASSERT_EQ(std::memcmp(a.at(o), b.at(o), c.shape.c_out * sizeof(float)), 0);
    }
  }
}

TEST(ConvChoice, TransformsWhereTheyPay) {
  for (const Named& named : pipelines()) {
    const auto chosen = make_conv_kernel(named.shape, Dtype::kF32, Algorithm::kAuto);
    const auto direct = make_conv_kernel(named.shape, Dtype::kF32, Algorithm::kDirect);
    EXPECT_LT(chosen->products_per_output(), 0.6 * direct->products_per_output()) << named.name;
    EXPECT_EQ(direct->tile_quantum(), named.shape.stride);
  }
  ConvShape s = pipelines()[1].shape;
  s.window = {6, 6, 6};  // of 6 outputs, a tile must take 2 or 6 on each axis
  for (const int64_t quantum : make_conv_kernel(s, Dtype::kF32, Algorithm::kAuto)->tile_quantum()) {
    EXPECT_EQ(6 % quantum, 0) << quantum;
  }
  for (const auto& change : std::vector<std::function<void(ConvShape&)>>{
           [](ConvShape& x) { x.groups = 4; },  // each group is too small
           [](ConvShape& x) { x.c_in = 1; },    // transforms would outweigh products
           [](ConvShape& x) {
             x.dilation = {3, 3, 3};
           },  // taps are not neighbours
           [](ConvShape& x) {
             x.kernel = {1, 1, 1};
           }}) {  // nothing to save
    ConvShape changed = pipelines()[1].shape;
    change(changed);
    const auto kernel = make_conv_kernel(changed, Dtype::kF32, Algorithm::kAuto);
    EXPECT_EQ(kernel->tile_quantum(), changed.stride) << kernel->describe();
  }
}

// Kernels longer than any transform, strides, few outputs: some kernel serves whatever there is.
TEST(ConvChoice, EveryShapeHasAKernel) {
  for (int64_t depth = 1; depth <= 9; ++depth) {
    for (int64_t width = 1; width <= 9; ++width) {
      for (const int64_t stride : {1, 2, 3}) {
        ConvShape s;
        s.c_in = 2;
        s.c_out = 7;
        s.kernel = {depth, 1, width};
        s.stride = {1, 3, stride};
        s.in = {2, 5, 3};
        for (size_t a = 0; a < 3; ++a) s.out[a] = (s.in[a] - 1) * s.stride[a] + s.kernel[a];
        for (const Dtype type : {Dtype::kF32, Dtype::kBF16}) {
          for (const Precision precision : {Precision::kStrict, Precision::kFast})
            EXPECT_NO_THROW(make_conv_kernel(s, type, Algorithm::kAuto, precision))
                << depth << "x1x" << width << " by " << stride;
        }
      }
    }
  }
}

TEST(ConvChoice, BoxesHoldWholeTileQuantaAndWindows) {
  Random random(fresh_seed() + 8);
  for (int n = 0; n < 200; ++n) {
    ToomCase c = random_toom(random);
    for (int a = 0; a < 3; ++a) c.shape.window[a] = random.between(1, 6);
    const auto kernel = make_toom_conv(c.shape, c.tile);
    const int64_t bytes = int64_t{1} << random.between(6, 22);
    Box box;
    box.extent = box_extent(*kernel, c.shape, bytes);
    int64_t least = 1;
    for (int a = 0; a < 3; ++a) {
      const int64_t unit = std::min(std::lcm(kernel->tile_quantum()[a], c.shape.window[a]), c.shape.out[a]);
      EXPECT_TRUE(box.extent[a] == c.shape.out[a] || box.extent[a] % unit == 0) << text(c);
      EXPECT_LE(box.extent[a], c.shape.out[a]);
      least *= unit;
    }
    EXPECT_TRUE(box.count() <= least || box.count() * kernel->channels_out() * 4 <= bytes) << text(c);
  }
}

TEST(ConvShapes, NonsenseIsRefused) {
  ConvShape s;
  s.c_in = 3, s.c_out = 4, s.groups = 2;
  EXPECT_THROW(make_direct_conv(s), Error);
  s.c_in = 4;
  EXPECT_NO_THROW(make_direct_conv(s));
  s.stride[1] = 0;
  EXPECT_THROW(make_direct_conv(s), Error);
}

}  // namespace
}  // namespace upweave::cpu
