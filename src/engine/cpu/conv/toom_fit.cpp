#include "engine/cpu/conv/toom_fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace upweave::cpu {
namespace {

// The bound on direct sums is eight deviations of their error wide; four of a transform's must
// stay inside.
constexpr double kDeviations = 4;
// The fewest terms of like size that tell an output's sum of |x||w| from sums over all channels: their mean
// is then off by a half at most.
constexpr double kLeastTerms = 4;
// The share of the input's channels that an output channel must see.
constexpr double kLeastShare = 0.25;

double squared(double x) { return x * x; }

bool mixes(const ToomAxis (&f)[3]) { return !f[0].plain() || !f[1].plain() || !f[2].plain(); }

// How F(m, r) of one axis magnifies independent errors of its products: of output i, those that come with tap
// t,
//   noise[i][t] = sum over p of A^T[i][p]^2 * G[p][t]^2 * (sum over j of B^T[p][j]^2),
// the same in each block of taps.
struct AxisNoise {
  explicit AxisNoise(const ToomAxis& f) : m(f.m), taps(f.taps) {
    for (int p = 0; p < f.points(); ++p) {
      double b = 0;
      for (int j = 0; j < f.points(); ++j) b += squared(f.bt(p, j));
      for (int t = 0; t < f.taps; ++t) {
        const double bg = b * squared(f.g(p, t % f.r));
        for (int i = 0; i < f.m; ++i) noise[i][t] += squared(f.at(i, p)) * bg;
      }
    }
  }
  int m, taps;
  double noise[kMaxPoints][kMaxTaps] = {};
};

// In the worst output of a tile, the sum over taps of their noise times a weight's mean square.
double magnified(const AxisNoise (&axis)[3], const std::vector<double>& squares) {
  const int lines = axis[0].taps * axis[1].taps;
  double line[kMaxPoints * kMaxPoints], plane[kMaxPoints], most = 0;
  for (int k = 0; k < axis[2].m; ++k) {
    const double* square = squares.data();
    for (int ab = 0; ab < lines; ++ab) {
      line[ab] = 0;
      for (int c = 0; c < axis[2].taps; ++c) line[ab] += axis[2].noise[k][c] * *square++;
    }
    for (int j = 0; j < axis[1].m; ++j) {
      for (int a = 0; a < axis[0].taps; ++a) {
        plane[a] = 0;
        for (int b = 0; b < axis[1].taps; ++b) plane[a] += axis[1].noise[j][b] * line[a * axis[1].taps + b];
      }
      for (int i = 0; i < axis[0].m; ++i) {
        double sum = 0;
        for (int a = 0; a < axis[0].taps; ++a) sum += axis[0].noise[i][a] * plane[a];
        most = std::max(most, sum);
      }
    }
  }
  return most;
}

// What an output's sum of |x||w| must be, for the deviations of a transform to stay inside the bound on
// direct sums: this times sqrt(Q) and the root of `magnified`. Of a product, its operands' rounding counts
// 2.5 u^2, and a sum of n of them (the channels of all blocks) adds 0.08 u^2 n if their signs vary, up to
// 0.058 u^2 n^2 if they do not; `one_sign` says how far the weights are from varying. `terms` are those of a
// direct sum.
double scale(double n, double terms, double one_sign) {
  return kDeviations * std::sqrt(2.5 + 0.08 * n + 0.058 * n * n * one_sign) / (4 + 2 * std::sqrt(terms));
}
double summed(const ToomAxis (&f)[3], double c_in) {
  return c_in * f[0].blocks() * f[1].blocks() * f[2].blocks();
}

// The least sum over the taps that are left where each axis of `cut` keeps one.
double least_left(const ToomAxis (&f)[3], const std::vector<double>& taps, int cut) {
  int n = 1, step[3];
  for (int axis = 2; axis >= 0; --axis) {
    step[axis] = cut >> axis & 1 ? n : 0;
    if (cut >> axis & 1) n *= f[axis].taps;
  }
  std::vector<double> left(static_cast<size_t>(n));  // of what is kept on cut axes
  size_t t = 0;
  for (int a = 0; a < f[0].taps; ++a) {
    for (int b = 0; b < f[1].taps; ++b) {
      for (int c = 0; c < f[2].taps; ++c)
        left[static_cast<size_t>(a * step[0] + b * step[1] + c * step[2])] += taps[t++];
    }
  }
  return *std::min_element(left.begin(), left.end());
}

}  // namespace

bool toom_limits(const ToomAxis (&f)[3], const PhaseWeights& weights, ToomLimits* limits) {
  *limits = {};
  if (!mixes(f)) return true;
  const AxisNoise axis[3] = {AxisNoise(f[0]), AxisNoise(f[1]), AxisNoise(f[2])};
  const size_t taps = static_cast<size_t>(f[0].taps * f[1].taps * f[2].taps);
  const double n = static_cast<double>(weights.c_in), terms = n * static_cast<double>(taps);
  std::array<double, 8> cut = {};
  double spread = 0;
  size_t several = 0;  // axes of more than one tap: no other can be cut and keep any
  for (int i = 0; i < 3; ++i) several |= f[i].taps > 1 ? size_t{1} << i : 0;
  // Of each tap and output channel: sums over the input's channels. All in the order of memory.
  struct TapSums {
    double magnitude = 0, value = 0, square = 0;
  };
  std::vector<TapSums> sums(static_cast<size_t>(weights.c_out) * taps);
  std::vector<double> seen(static_cast<size_t>(weights.c_out)), mean(taps), squares(taps);
  for (int64_t ci = 0; ci < weights.c_in; ++ci) {
    TapSums* tap = sums.data();
    for (int64_t co = 0; co < weights.c_out; ++co) {
      const double* w = weights.w + ci * weights.in_step + co * weights.out_step;
      double square = 0;
      for (size_t t = 0; t < taps; ++t, ++tap) {
        const double x = w[weights.tap_at[t]];
        tap->magnitude += std::abs(x);
        tap->value += x;
        tap->square += x * x;
        square += x * x;
      }
      seen[static_cast<size_t>(co)] += std::sqrt(square);
    }
  }
  for (size_t co = 0; co < seen.size(); ++co) {
    double sum = 0, square = 0, alike = 0;
    for (size_t t = 0; t < taps; ++t) {
      const TapSums& tap = sums[co * taps + t];
      mean[t] = tap.magnitude / n;
      squares[t] = tap.square / n;
      sum += tap.magnitude, square += tap.square;
      // Signs that vary make a sum of three deviations at most.
      alike += std::max(0.0, tap.value * tap.value - 9 * tap.square) / n;
    }
    if (square == 0) continue;  // this channel is zero, and transforms know it
    if (seen[co] * seen[co] < kLeastShare * n * square) return false;
    const double needed = scale(summed(f, n), terms, alike / square) * std::sqrt(magnified(axis, squares));
    for (size_t a = 0; a < 8; ++a) {
      if ((a & several) == a) cut[a] = std::max(cut[a], needed / least_left(f, mean, static_cast<int>(a)));
    }
    spread = std::max(spread, kLeastTerms * square * terms / (sum * sum));
  }
  constexpr double kNever = 1e30;  // of a tap without weights
  for (size_t a = 0; a < 8; ++a) limits->cut[a] = static_cast<float>(std::min(cut[a & several], kNever));
  limits->spread = static_cast<float>(spread);
  return true;
}

// Of normal values, mean|x| = 0.8 and the deviation of |x| is 0.6: among a few hundred positions, sums over n
// channels are off by three deviations, so that s >= 0.8 n - 1.8 sqrt(n) and q <= n + 4.2 sqrt(n). The square
// of N values' mean over their mean square is 0.64, and its deviation 0.34 / sqrt(N).
bool serves_normal_data(const ToomAxis (&f)[3], int64_t c_in) {
  if (!mixes(f)) return true;
  const AxisNoise axis[3] = {AxisNoise(f[0]), AxisNoise(f[1]), AxisNoise(f[2])};
  const std::vector<double> ones(static_cast<size_t>(f[0].taps * f[1].taps * f[2].taps), 1.0);
  const double n = static_cast<double>(c_in), taps = static_cast<double>(ones.size());
  const double least = 0.8 * n - 1.8 * std::sqrt(n), most = n + 4.2 * std::sqrt(n);
  const double mean = 0.8 - 1.8 / std::sqrt(n * taps), alike = 0.64 - 1.02 / std::sqrt(n * taps);
  return least > 0 && mean > 0 && alike > 0 &&
         taps * mean * least >= scale(summed(f, n), n * taps, 0) * std::sqrt(magnified(axis, ones) * most) &&
         n * taps * alike * alike >= kLeastTerms;
}

}  // namespace upweave::cpu
