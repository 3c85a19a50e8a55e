// The transforms of Toom-Cook, one axis at a time, on vectors of channels. Points come in pairs +-p: the even
// and the odd half of a row's terms are summed once for both.
#include <algorithm>

#include "engine/cpu/conv/toom.h"
#include "engine/cpu/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/conv/toom_ops.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/cpu/conv/sum_four-inl.h"

HWY_BEFORE_NAMESPACE();
namespace upweave::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using I = hn::RebindToSigned<D>;

// Sum over j = First, First + Step, ... < N of c(j)*x[j], c known to the compiler: terms with c = 0 vanish, c
// = 1 add.
template <class C, int First, int Step, int N>
struct Terms {
  static constexpr float c = First < N ? static_cast<float>(C::at(First)) : 0;
  static constexpr bool empty = (First >= N || c == 0) && [] {
    if constexpr (First < N) return Terms<C, First + Step, Step, N>::empty;
    return true;
  }();
  static HWY_INLINE V Sum(const V* x) {
    const D d;
    using Rest = Terms<C, First + Step, Step, N>;
    if constexpr (c == 0)
      return Rest::Sum(x);
    else if constexpr (Rest::empty)
      return c == 1 ? x[First] : hn::Mul(hn::Set(d, c), x[First]);
    else if constexpr (c == 1)
      return hn::Add(x[First], Rest::Sum(x));
    else if constexpr (c == -1)
      return hn::Sub(Rest::Sum(x), x[First]);
    else
      return hn::MulAdd(hn::Set(d, c), x[First], Rest::Sum(x));
  }
};

template <int N, int P>
struct BtRow {
  static constexpr double at(int j) { return ToomAxis{2, N - 1}.bt(P, j); }
};

// Finite points from P on: a lone zero, else a pair.
template <int N, int P>
HWY_INLINE void BtRows(const V* x, V* y) {
  if constexpr (P == N - 1 || toom_point(N, P) == 0) {
    y[P] = Terms<BtRow<N, P>, 0, 1, N>::Sum(x);
    if constexpr (P < N - 1) BtRows<N, P + 1>(x, y);
  } else {
    const V even = Terms<BtRow<N, P>, 0, 2, N>::Sum(x), odd = Terms<BtRow<N, P>, 1, 2, N>::Sum(x);
    y[P] = hn::Add(even, odd);
    // N_p is monic of degree n - 2: of p and -p, the terms of that parity agree and the others change sign.
    y[P + 1] = N % 2 == 0 ? hn::Sub(even, odd) : hn::Sub(odd, even);
    BtRows<N, P + 2>(x, y);
  }
}

// Each kind of transform says what happens to one vector of every row.
template <int N>
struct InputRows {
  static HWY_INLINE void Apply(const float* HWY_RESTRICT from, int64_t from_step, float* HWY_RESTRICT to,
                               int64_t to_step) {
    const D d;
    V x[N], y[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) x[j] = hn::LoadU(d, from + j * from_step);
    BtRows<N, 0>(x, y);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) hn::StoreU(y[j], d, to + j * to_step);
  }
};

template <int M, int N, int Row>
struct AtRow {  // over the sums (even rows) or differences (odd rows) of pairs; zero and infinity stand for
                // themselves
  static constexpr double at(int p) {
    const bool second = N > 2 && p < N - 1 && p % 2 != (N % 2 == 0 ? 1 : 0) && toom_point(N, p) != 0;
    return second ? 0 : ToomAxis{M, N - M + 1}.at(Row, p);
  }
};

template <int M, int N, int Row>
HWY_INLINE void AtRows(const V* sum, const V* difference, V* y) {
  y[Row] = Terms<AtRow<M, N, Row>, 0, 1, N>::Sum(Row % 2 == 0 ? sum : difference);
  if constexpr (Row + 1 < M) AtRows<M, N, Row + 1>(sum, difference, y);
}

template <int M, int N>
HWY_INLINE void Invert(const V* x, V* y) {
  V sum[N], difference[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) sum[j] = difference[j] = x[j];
#pragma GCC unroll 8
  for (int j = N % 2 == 0 ? 1 : 0; j + 1 < N - 1; j += 2) {
    sum[j] = hn::Add(x[j], x[j + 1]);
    difference[j] = hn::Sub(x[j], x[j + 1]);
  }
  AtRows<M, N, 0>(sum, difference, y);
}

template <int M, int N>
struct OutputRows {
  static HWY_INLINE void Apply(const float* HWY_RESTRICT from, int64_t from_step, float* HWY_RESTRICT to,
                               int64_t to_step) {
    const D d;
    V x[N], y[M];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) x[j] = hn::LoadU(d, from + j * from_step);
    Invert<M, N>(x, y);
#pragma GCC unroll 8
    for (int j = 0; j < M; ++j) hn::StoreU(y[j], d, to + j * to_step);
  }
};

// F(1, r): the products of its taps are summed.
template <int N>
struct SumRows {
  static HWY_INLINE void Apply(const float* HWY_RESTRICT from, int64_t from_step, float* HWY_RESTRICT to,
                               int64_t) {
    const D d;
    V sum = hn::LoadU(d, from);
#pragma GCC unroll 8
    for (int j = 1; j < N; ++j) sum = hn::Add(sum, hn::LoadU(d, from + j * from_step));
    hn::StoreU(sum, d, to);
  }
};

template <class Rows>
HWY_ATTR void Pass(const AxisPass& p) {
  const AxisPass pass = p;  // a copy that no store can touch
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t r = 0; r < pass.repeat; ++r) {
    const float* from = pass.from + r * pass.from_next;
    float* to = pass.to + r * pass.to_next;
    for (int64_t i = 0; i < pass.count; i += lanes)
      Rows::Apply(from + i, pass.from_step, to + i, pass.to_step);
  }
}

template <int Ma, int Na, int Mb, int Nb>
HWY_ATTR void OutputPlane(const PlanePass& pass) {
  const D d;
  const PlanePass p = pass;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < p.count; i += lanes) {
    V half[Ma][Nb];
#pragma GCC unroll 8
    for (int b = 0; b < Nb; ++b) {
      V x[Na], y[Ma];
#pragma GCC unroll 8
      for (int a = 0; a < Na; ++a) x[a] = hn::LoadU(d, p.from + a * p.from_a + b * p.from_b + i);
      Invert<Ma, Na>(x, y);
#pragma GCC unroll 8
      for (int a = 0; a < Ma; ++a) half[a][b] = y[a];
    }
#pragma GCC unroll 8
    for (int a = 0; a < Ma; ++a) {
      V y[Mb];
      Invert<Mb, Nb>(half[a], y);
#pragma GCC unroll 8
      for (int b = 0; b < Mb; ++b) hn::StoreU(y[b], d, p.to + a * p.to_a + b * p.to_b + i);
    }
  }
}

template <int Ma, int Na>
void AddPlanes(ToomOps& t) {
  t.output_plane[Ma][Na][2][3] = OutputPlane<Ma, Na, 2, 3>;
  t.output_plane[Ma][Na][3][4] = OutputPlane<Ma, Na, 3, 4>;
  t.output_plane[Ma][Na][3][5] = OutputPlane<Ma, Na, 3, 5>;
  t.output_plane[Ma][Na][4][5] = OutputPlane<Ma, Na, 4, 5>;
}

HWY_ATTR void Copy(const AxisPass& p, int n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < p.repeat; ++r) {
    for (int j = 0; j < n; ++j) {
      const float* from = p.from + r * p.from_next + j * p.from_step;
      float* to = p.to + r * p.to_next + j * p.to_step;
      for (int64_t i = 0; i < p.count; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
    }
  }
}

HWY_ATTR void Measure(const float* x, int64_t count, int64_t step, int64_t positions, float* sums,
                      float* squares) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t p = 0; p < positions; p += 4) {
    const float* from[4];
    V sum[4], square[4];
    for (int k = 0; k < 4; ++k) {
      from[k] = x + std::min(p + k, positions - 1) * step;
      sum[k] = square[k] = hn::Zero(d);
    }
    for (int64_t i = 0; i < count; i += lanes) {
      for (int k = 0; k < 4; ++k) {
        const V v = hn::LoadU(d, from[k] + i);
        sum[k] = hn::Add(sum[k], hn::Abs(v));
        square[k] = hn::MulAdd(v, v, square[k]);
      }
    }
    sum_four::SumFour<true>(sum, sums + p);
    sum_four::SumFour<true>(square, squares + p);
  }
}

HWY_ATTR void Extremes(const float* sums, const float* squares, const Grid& grid, float* least, float* most) {
  const D d;
  const I di;
  for (int64_t x = 0; x < grid.columns; x += static_cast<int64_t>(hn::Lanes(d))) {
    auto low = hn::Set(di, 0x7fffffff), high = hn::Zero(di);
    for (int64_t a = 0; a < grid.planes; ++a) {
      for (int64_t b = 0; b < grid.rows; ++b) {
        const int64_t at = a * grid.plane_step + b * grid.row_step + x;
        low = hn::Min(low, hn::BitCast(di, hn::LoadU(d, sums + at)));
        high = hn::Max(high, hn::BitCast(di, hn::LoadU(d, squares + at)));
      }
    }
    hn::StoreU(hn::BitCast(d, low), d, least + x);
    hn::StoreU(hn::BitCast(d, high), d, most + x);
  }
}

template <bool Least>
HWY_ATTR void Boxes(const float* x, float* y, int64_t n, int64_t step, int64_t r) {
  const D d;
  const I di;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    V box = hn::LoadU(d, x + i);
    for (int64_t k = 1; k < r; ++k) {
      const V next = hn::LoadU(d, x + i + k * step);
      box = Least ? hn::BitCast(d, hn::Min(hn::BitCast(di, box), hn::BitCast(di, next))) : hn::Add(box, next);
    }
    hn::StoreU(box, d, y + i);
  }
}

using D64 = hn::ScalableTag<double>;
using D32 = hn::Rebind<float, D64>;

HWY_INLINE hn::Vec<D64> Combine(const double* HWY_RESTRICT x, int64_t step, const double* HWY_RESTRICT g,
                                int r) {
  const D64 d;
  auto sum = hn::Mul(hn::Set(d, g[0]), hn::LoadU(d, x));
  for (int j = 1; j < r; ++j) sum = hn::MulAdd(hn::Set(d, g[j]), hn::LoadU(d, x + j * step), sum);
  return sum;
}

HWY_ATTR void Weights(const double* x, int64_t step, const double* g, int r, double* y, int64_t count) {
  const D64 d;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(Combine(x + i, step, g, r), d, y + i);
  }
}

HWY_ATTR void RoundWeights(const double* x, int64_t step, const double* g, int r, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(D64()))) {
    hn::StoreU(hn::DemoteTo(D32(), Combine(x + i, step, g, r)), D32(), y + i);
  }
}

HWY_ATTR const ToomOps& GetToomOps() {
  static const ToomOps ops = [] {
    ToomOps t = {};
    t.copy = Copy;
    t.input[3] = Pass<InputRows<3>>;
    t.input[4] = Pass<InputRows<4>>;
    t.input[5] = Pass<InputRows<5>>;
    t.input[6] = Pass<InputRows<6>>;
    t.input[7] = Pass<InputRows<7>>;
    t.input[8] = Pass<InputRows<8>>;
    t.output[1][2] = Pass<SumRows<2>>;
    t.output[1][3] = Pass<SumRows<3>>;
    t.output[1][4] = Pass<SumRows<4>>;
    t.output[1][5] = Pass<SumRows<5>>;
    t.output[2][3] = Pass<OutputRows<2, 3>>;
    t.output[2][4] = Pass<OutputRows<2, 4>>;
    t.output[2][5] = Pass<OutputRows<2, 5>>;
    t.output[2][6] = Pass<OutputRows<2, 6>>;
    t.output[3][4] = Pass<OutputRows<3, 4>>;
    t.output[3][5] = Pass<OutputRows<3, 5>>;
    t.output[3][6] = Pass<OutputRows<3, 6>>;
    t.output[3][7] = Pass<OutputRows<3, 7>>;
    t.output[4][5] = Pass<OutputRows<4, 5>>;
    t.output[4][6] = Pass<OutputRows<4, 6>>;
    t.output[4][7] = Pass<OutputRows<4, 7>>;
    t.output[4][8] = Pass<OutputRows<4, 8>>;
    AddPlanes<2, 3>(t);
    AddPlanes<3, 4>(t);
    AddPlanes<3, 5>(t);
    AddPlanes<4, 5>(t);
    t.measure = Measure;
    t.extremes = Extremes;
    t.add_boxes = Boxes<false>;
    t.least_boxes = Boxes<true>;
    t.weights = Weights;
    t.round_weights = RoundWeights;
    return t;
  }();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace upweave::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {
HWY_EXPORT(GetToomOps);
const ToomOps& toom_ops() { return HWY_DYNAMIC_DISPATCH(GetToomOps)(); }
}  // namespace upweave::cpu
#endif
