// The vector functions against float64, in units in the last place: what math-inl.h says of each is measured
// here on every instruction set, over a sample of all floats and over the special ones.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/dtype.h"
#include "cpu_targets.h"
#include "engine/cpu/kernels/kernels.h"

namespace upweave::cpu {
namespace {

using testing::for_each_target;

double ulp(double y) {
  const double a = std::max(std::fabs(y), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(a) - 23);
}

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double mish(double x) { return x * std::tanh(x > 20 ? x : std::log1p(std::exp(x))); }
double gelu(double x) { return x * (0.5 * std::erfc(-x * M_SQRT1_2)); }
double gelu_tanh(double x) { return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
double hardswish(double x) { return x * std::min(std::max(x + 3, 0.0), 6.0) / 6; }

struct Function {
  const char* name;
  Fn fn;
  double (*truth)(double);
  // |error| <= ulps * ulp(y) + (of_x * 2^-24 + 2^-149) |x|: the last where x meets a subnormal
  double ulps, of_x;
  float a = 0, b = 0;
};

const Function kFunctions[] = {
    {"exp", Fn::kExp, [](double x) { return std::exp(x); }, 1.5, 0},
    {"tanh", Fn::kTanh, [](double x) { return std::tanh(x); }, 2, 0},
    {"sigmoid", Fn::kSigmoid, sigmoid, 2.5, 0},
    {"swish", Fn::kSwish, [](double x) { return x * sigmoid(x); }, 3, 0},
    {"mish", Fn::kMish, mish, 4, 0},
    {"hardswish", Fn::kHardswish, hardswish, 2, 1},
    {"gelu", Fn::kGelu, gelu, 2, 2},
    {"elu", Fn::kElu, [](double x) { return x > 0 ? x : std::expm1(x); }, 1.5, 0, 1},
    {"softplus", Fn::kSoftplus, [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); }, 4, 0, 1, 20},
    {"sin", Fn::kSin, [](double x) { return std::sin(x); }, 2, 0},
    {"gelu tanh", Fn::kGeluTanh, gelu_tanh, 2, 4},
};

std::vector<float> inputs() {
  std::vector<float> x;
  std::mt19937 rng(7);
  for (int i = 0; i < 200000; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng())));
  std::uniform_real_distribution<float> near(-20, 20), wide(-110, 110);
  for (int i = 0; i < 400000; ++i) x.push_back(near(rng));
  for (int i = 0; i < 100000; ++i) x.push_back(wide(rng));
  const float inf = std::numeric_limits<float>::infinity();
  for (const float v : {0.0f, -0.0f, inf, -inf, std::numeric_limits<float>::quiet_NaN(), 1e-45f, -1e-40f,
                        3e38f, -3e38f, 88.72f, 88.73f, -87.33f, -103.9f, -104.1f}) {
    x.push_back(v);
  }
  while (x.size() % kLane != 0) x.push_back(1.0f);
  return x;
}

TEST(CpuMath, ErrorsAreAsStated) {
  const std::vector<float> x = inputs();
  std::vector<float> y(x.size());
  for_each_target([&](int64_t) {
    for (const Function& f : kFunctions) {
      pointwise(f.fn, f.a, f.b, {x.data(), 0, 1}, {x.data(), 0, 1}, y.data(), 0, 1,
                static_cast<int64_t>(x.size()));
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = f.truth(x[i]);
        if (std::isnan(want) || std::fabs(want) > std::numeric_limits<float>::max()) {
          EXPECT_TRUE(std::isnan(want) ? std::isnan(y[i])
                                       : y[i] == static_cast<float>(want) || std::fabs(want) < 3.5e38)
              << f.name << "(" << x[i] << ") is " << y[i] << ", not " << want;
          continue;
        }
        const double bound = f.ulps * ulp(want) + (f.of_x * 0x1p-24 + 0x1p-149) * std::fabs(x[i]);
        const double error = std::fabs(y[i] - want) / bound;
        if (!(error <= worst)) worst = error, at = x[i];
      }
      EXPECT_LE(worst, 1) << f.name << "(" << at << ")";
      RecordProperty(f.name, std::to_string(worst));
    }
  });
}

TEST(CpuMath, ExponentialsBelowAClamp) {
  std::vector<float> x = {std::numeric_limits<float>::quiet_NaN(), 7, -7,
                          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (int i = 0; i <= 1 << 20; ++i) x.push_back(2 - static_cast<float>(i) * 0x1p-20f);
  while (x.size() % kLane != 0) x.push_back(0.0f);
  std::vector<float> y(x.size());
  for_each_target([&](int64_t) {
    pointwise(Fn::kExpBelow, 1, 2, {x.data(), 0, 1}, {x.data(), 0, 1}, y.data(), 0, 1,
              static_cast<int64_t>(x.size()));
    EXPECT_TRUE(std::isnan(y[0]));
    double worst = 0;
    for (size_t i = 1; i < x.size(); ++i) {
      const double want = std::exp(std::clamp(static_cast<double>(x[i]), 1.0, 2.0) - 2);
      worst = std::max(worst, std::fabs(y[i] - want) / ulp(want));
    }
    EXPECT_LE(worst, 1.6);
  });
}

// x / y * z with one y and z a row, and one a column. Where z / y leaves the range in which it may be formed
// first, it must not be: 1e-20 / 1e-38 * 1e10 is a float, 1e10 / 1e-38 is not.
TEST(CpuMath, QuotientsTimesAFactor) {
  constexpr int64_t n = 2 * kLane;
  const float inf = std::numeric_limits<float>::infinity();
  const float some[] = {1,   -3,    1e-20f, 1e20f,  1e-38f,        3e38f,  0,
                        inf, 1e10f, 0.7f,   1e-40f, std::nanf(""), -1e-10f};
  std::vector<float> x(n * n), y(n), z(n), out(n * n);
  for (size_t i = 0; i < x.size(); ++i) x[i] = some[i % std::size(some)];
  for (size_t i = 0; i < n; ++i) {
    y[i] = some[(i * 5 + 4) % std::size(some)];
    z[i] = some[(i * 7 + 8) % std::size(some)];
  }
  for_each_target([&](int64_t) {
    for (const bool rows : {true, false}) {
      const int64_t row = rows ? 1 : 0, col = rows ? 0 : 1;
      scale({x.data(), n, 1}, {y.data(), row, col}, {z.data(), row, col}, out.data(), n, n, n);
      for (int64_t i = 0; i < n * n; ++i) {
        const size_t k = static_cast<size_t>(rows ? i / n : i % n), at = static_cast<size_t>(i);
        const float plain = x[at] / y[k] * z[k];
        const double want = static_cast<double>(x[at]) / y[k] * z[k];
        EXPECT_TRUE(out[at] == plain || (std::isnan(plain) && std::isnan(out[at])) ||
                    std::fabs(out[at] - want) <= 2 * ulp(want))
            << x[at] << " / " << y[k] << " * " << z[k] << " is " << out[at] << ", not " << plain;
      }
    }
  });
}

// All 65536 halves there and back, and floats on both sides of every rounding boundary.
TEST(CpuMath, ElementTypesRoundOnce) {
  std::vector<float> values;
  for (uint32_t h = 0; h < 65536; ++h) {
    for (const uint32_t base :
         {h << 16, std::bit_cast<uint32_t>(static_cast<float>(f16_to_double(static_cast<uint16_t>(h))))}) {
      for (const uint32_t bits : {base, base + 1, base - 1, base + 0x8000, base + 0x7fff, base + 0x8001,
                                  base + 0x1000, base + 0xfff, base + 0x1001}) {
        values.push_back(std::bit_cast<float>(bits));
      }
    }
  }
  for_each_target([&](int64_t) {
    for (const Dtype type : {Dtype::kF16, Dtype::kBF16}) {
      std::vector<uint16_t> got(values.size());
      shrink(values.data(), static_cast<int64_t>(values.size()), got.data(), type, false);
      std::vector<float> back(values.size());
      expand(got.data(), type, static_cast<int64_t>(got.size()), back.data());
      int wrong = 0;
      for (size_t i = 0; i < values.size() && wrong < 5; ++i) {
        uint16_t want;
        store_element(&want, type, 0, values[i]);
        const double wide = load_element(&got[i], type, 0);
        if (std::isnan(values[i]) ? !std::isnan(wide) || !std::isnan(back[i])
                                  : got[i] != want || back[i] != wide) {
          ++wrong;
          ADD_FAILURE() << values[i] << " became " << got[i] << " and " << back[i] << ", not " << want;
        }
      }
    }
  });
}

TEST(CpuMath, TransposesEverySize) {
  for_each_target([&](int64_t) {
    for (const int64_t rows : {1, 3, 4, 5, 16, 17, 31}) {
      for (const int64_t cols : {1, 2, 4, 7, 15, 16, 33}) {
        std::vector<float> x(static_cast<size_t>(rows * (cols + 3))),
            y(static_cast<size_t>(cols * (rows + 2)), -1);
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
        transpose(x.data(), cols + 3, rows, cols, y.data(), rows + 2);
        for (int64_t r = 0; r < rows + 2; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            EXPECT_EQ(y[static_cast<size_t>(c * (rows + 2) + r)],
                      r < rows ? x[static_cast<size_t>(r * (cols + 3) + c)] : -1);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace upweave::cpu
