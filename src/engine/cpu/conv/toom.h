#pragma once
// Toom-Cook (Winograd) correlation F(m, r): m outputs y[i] = sum over j < r of x[i + j]*g[j] by n = m + r - 1
// products,
//   y = A^T [ (G g) . (B^T x) ],
// from n points at which polynomials are evaluated, one of them at infinity. With N_p(t) the product of (t -
// q) over the other finite points q:
//   row p of B^T holds N_p's coefficients (for infinity: those of the product over all finite points),
//   row p of G is p^j / N_p(p) (for infinity: 1 at j = r - 1),
//   column p of A^T is p^i (for infinity: 1 at i = m - 1).
// F(m, 1) and F(1, r) need no points: B^T is the identity there.
//
// More taps than a transform has are b blocks of r, the last filled up with zeros: block q reads the inputs
// q*r further on, and the products of all blocks are summed at each point before A^T. That is b*n products
// for m outputs.
#include <cstdint>

namespace upweave::cpu {

constexpr int kMaxPoints = 8;
constexpr int kMaxTaps = 48;      // of all blocks
constexpr int kMostOfBlocks = 6;  // points of a transform that has blocks: as exact as direct sums

// The finite points for n = 3 .. 8, found by trying small dyadic rationals for the least error of nested
// transforms in float32: pairs +-p of moderate size, some on each side of 1. They are exact in binary, and so
// are B^T and A^T.
constexpr double toom_point(int n, int p) {
  constexpr double kPoints[kMaxPoints + 1][kMaxPoints - 1] = {
      {},
      {},
      {},
      {1, -1},
      {0, 1, -1},
      {0.375, -0.375, 1.25, -1.25},
      {0, 0.625, -0.625, 1.5, -1.5},
      {0.375, -0.375, 0.75, -0.75, 2, -2},
      {0, 0.5, -0.5, 1, -1, 2, -2},
  };
  return kPoints[n][p];
}

constexpr double toom_power(double x, int e) { return e == 0 ? 1 : x * toom_power(x, e - 1); }

// Coefficient j of the product of (t - q) over the finite points q of n, leaving out point `except`.
constexpr double toom_coefficient(int n, int except, int j) {
  double c[kMaxPoints + 1] = {1};
  int degree = 0;
  for (int q = 0; q < n - 1; ++q) {
    if (q == except) continue;
    ++degree;
    for (int i = degree; i >= 0; --i)
      c[i] = (i > 0 ? c[i - 1] : 0) - toom_point(n, q) * (i < degree ? c[i] : 0);
  }
  return j <= degree ? c[j] : 0;
}

struct ToomAxis {
  int m, r, taps = r;
  constexpr int points() const { return m + r - 1; }
  constexpr int blocks() const { return r > 0 ? (taps + r - 1) / r : 0; }
  constexpr bool plain() const { return m == 1 || r == 1; }
  constexpr double bt(int p, int j) const {
    return plain() ? (p == j) : toom_coefficient(points(), p, j);  // p = n - 1, infinity, leaves out nothing
  }
  constexpr double g(int p, int j) const {
    if (r == 1) return 1;
    if (m == 1) return p == j;
    if (p == points() - 1) return j == r - 1;
    double at_p = 1;
    for (int q = 0; q < points() - 1; ++q) {
      if (q != p) at_p *= toom_point(points(), p) - toom_point(points(), q);
    }
    return toom_power(toom_point(points(), p), j) / at_p;
  }
  constexpr double at(int i, int p) const {
    if (m == 1) return 1;
    if (r == 1) return i == p;
    return p == points() - 1 ? i == m - 1 : toom_power(toom_point(points(), p), i);
  }
};

// One transform along one axis of an array: each row holds `count` contiguous floats, a multiple of 16. The
// whole is repeated `repeat` times, from_next and to_next floats further on.
struct AxisPass {
  const float* from;
  float* to;
  int64_t from_step, to_step;  // floats between rows along the axis
  int64_t count;
  int64_t repeat = 1, from_next = 0, to_next = 0;
};

// A^T along two axes at once, so that what lies between them stays in registers.
struct PlanePass {
  const float* from;
  float* to;
  int64_t from_a, from_b, to_a, to_b;  // floats between rows along each axis
  int64_t count;
};

// Rows of a grid of positions; both steps count positions.
struct Grid {
  int64_t planes, rows, columns, plane_step, row_step;
};

struct ToomOps {
  void (*copy)(const AxisPass&, int n);                             // rows as they are
  void (*input[kMaxPoints + 1])(const AxisPass&);                   // by n: rows n -> n by B^T
  void (*output[kMaxPoints + 1][kMaxPoints + 1])(const AxisPass&);  // by m and n: rows n -> m by A^T
  // By m and n of axis a, then of b; null where only one axis at a time is served.
  void (*output_plane[5][kMaxPoints + 1][5][kMaxPoints + 1])(const PlanePass&);
  // y[c] = sum over j < r of g[j]*x[j*step + c] for `count` channels, a multiple of 16; the second rounds to
  // float32.
  void (*weights)(const double* x, int64_t step, const double* g, int r, double* y, int64_t count);
  void (*round_weights)(const double* x, int64_t step, const double* g, int r, float* y, int64_t count);
  // Of `positions` positions `step` floats apart, over their `count` channels, a multiple of 16: the sum of
  // magnitudes and the sum of squares. Neither has a sign, even where it is not a number. Four are written
  // at a time.
  void (*measure)(const float* x, int64_t count, int64_t step, int64_t positions, float* sums,
                  float* squares);
  // Column by column over `planes` x `rows` rows of `columns` of them: the least sum and the most squares,
  // by their bit patterns, which order as magnitudes do, NaN above infinity. Whole vectors are read and
  // written.
  void (*extremes)(const float* sums, const float* squares, const Grid& grid, float* least, float* most);
  // y[i] = x[i] + x[i + step] + ... + x[i + (r - 1)*step] for i < n, or the least of them by their bit
  // patterns; y may be x. Whole vectors are read and written.
  void (*add_boxes)(const float* x, float* y, int64_t n, int64_t step, int64_t r);
  void (*least_boxes)(const float* x, float* y, int64_t n, int64_t step, int64_t r);
};

const ToomOps& toom_ops();            // of the best instruction set here
bool toom_serves(const ToomAxis& f);  // whether they have what it needs
// For m outputs and as many taps: in blocks if there is no other way and the axis may have them.
ToomAxis toom_axis(int64_t m, int64_t taps, bool blocks);

}  // namespace upweave::cpu
