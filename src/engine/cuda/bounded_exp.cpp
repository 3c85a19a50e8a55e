#include "engine/cuda/bounded_exp.h"

#include <cmath>
#include <numbers>

namespace upweave::cuda {
namespace {

constexpr int kMaxDegree = 8;

// P(t_i) = f(t_i) (1 + (-1)^i e) at the extrema t_i of the Chebyshev polynomial of degree n + 1: within a few
// per cent of the best relative error. Unknowns are the coefficients, lowest first, and e.
std::vector<double> fit(int degree, double slope, double offset, double length) {
  const int n = degree + 2;
  std::vector<std::vector<double>> m(n, std::vector<double>(n + 1));
  for (int i = 0; i < n; ++i) {
    const double t = length / 2 * (1 - std::cos(std::numbers::pi * i / (n - 1)));
    const double f = std::exp(slope * t + offset);
    for (int k = 0; k <= degree; ++k) m[i][k] = std::pow(t, k) / f;
    m[i][n - 1] = i % 2 ? 1 : -1;
    m[i][n] = 1;
  }
  for (int c = 0; c < n; ++c) {  // Gauss-Jordan with pivots
    int best = c;
    for (int i = c + 1; i < n; ++i) best = std::fabs(m[i][c]) > std::fabs(m[best][c]) ? i : best;
    std::swap(m[c], m[best]);
    for (int i = 0; i < n; ++i) {
      if (i == c) continue;
      const double q = m[i][c] / m[c][c];
      for (int k = c; k <= n; ++k) m[i][k] -= q * m[c][k];
    }
  }
  std::vector<double> result(degree + 1);
  for (int k = 0; k <= degree; ++k) result[k] = m[k][n] / m[k][k];
  return result;
}

}  // namespace

std::vector<float> exp_polynomial(double slope, double offset, double length, double error) {
  if (!(slope > 0) || !(length > 0) || !(slope * length <= 4) || !(std::fabs(offset) <= 64)) return {};
  for (int degree = 1; degree <= kMaxDegree; ++degree) {
    const std::vector<double> c = fit(degree, slope, offset, length);
    std::vector<float> rounded(c.rbegin(), c.rend());
    double worst = 0;
    for (int i = 0; i <= 256; ++i) {
      const double t = length * i / 256;
      double p = 0;
      for (const float x : rounded) p = p * t + x;
      worst = std::max(worst, std::fabs(p / std::exp(slope * t + offset) - 1));
    }
    if (worst <= error) return rounded;
  }
  return {};
}

}  // namespace upweave::cuda
