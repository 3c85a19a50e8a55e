// Toom-Cook kernels against naive float64 sums and against direct sums: their own error bound, strictness on
// any kind of data, strange values. The bounds are derived, not tuned.
#include "conv_problem.h"

namespace upweave::cpu {
namespace {

INSTANTIATE_TEST_SUITE_P(Targets, ConvOnTarget, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

// Which tile, and which output of it, along one axis; and what the transform may magnify there: term
// x[j]*g[t] of the window's inputs and the phase's taps is rounded at magnitude growth[j][t], the sum over
// points p of |A^T[i][p]| |G[p][t]| |B^T[p][j]|.
struct ToomPlace {
  int64_t first_input = 0, next = 1;  // of the window, and how far apart its inputs are
  std::vector<int64_t> k;             // taps in the order of the window
  std::vector<std::vector<double>> growth;
  int blocks, points;  // of taps; of the transform

  ToomPlace(const ConvShape& s, int axis, int64_t m, int64_t o) {
    // Outputs of one residue of the stride, or of the dilation, are tiled by themselves.
    const int64_t apart = s.stride[axis] * s.dilation[axis], e = o % apart, j = o / apart;
    next = s.dilation[axis];
    for (int64_t tap = s.kernel[axis] - 1; tap >= 0; --tap) {
      if ((e + s.padding[axis] - tap * next) % s.stride[axis] != 0) continue;
      if (k.empty()) first_input = j / m * m * next + (e + s.padding[axis] - tap * next) / s.stride[axis];
      k.push_back(tap);
    }
    const ToomAxis f = toom_axis(m, static_cast<int64_t>(k.size()), axis == 2);
    const int i = static_cast<int>(j % m);
    blocks = f.blocks();
    points = f.points();
    growth.assign(f.points() + (blocks - 1) * f.r, std::vector<double>(f.taps, 0.0));
    for (int p = 0; p < f.points(); ++p) {
      for (int x = 0; x < f.points(); ++x) {
        for (int t = 0; t < f.taps; ++t)
          growth[t / f.r * f.r + x][t] += std::abs(f.at(i, p) * f.g(p, t % f.r) * f.bt(p, x));
      }
    }
  }
};

// The bound on an output's error: every value is rounded at most once a term in the three input transforms,
// once as a weight, c_in times a block of taps in the product and once a term in the three inverses; first
// order in the unit roundoff.
double toom_bound(const Problem& p, const Extents& tile, int64_t c, const Extents& o) {
  const ConvShape& s = p.shape;
  const ToomPlace d(s, 0, tile[0], o[0]), h(s, 1, tile[1], o[1]), w(s, 2, tile[2], o[2]);
  double magnitude = 0;
  auto real = [](int64_t i, int64_t n) { return i >= 0 && i < n; };
  for (size_t x = 0; x < d.growth.size(); ++x) {
    for (size_t y = 0; y < h.growth.size(); ++y) {
      for (size_t z = 0; z < w.growth.size(); ++z) {
        const Extents i = {d.first_input + d.next * static_cast<int64_t>(x),
                           h.first_input + h.next * static_cast<int64_t>(y),
                           w.first_input + w.next * static_cast<int64_t>(z)};
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
  const double points = d.points + h.points + w.points;
  return (static_cast<double>(s.c_in) * w.blocks + 2 * points + 1) * 0x1p-24 * magnitude;
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
                      far = (c.tile[x] * s.stride[x] + s.kernel[x] + 4) * s.dilation[x];
        reached = reached && k >= 0 && k < s.kernel[x] * s.dilation[x] && k % s.dilation[x] == 0;
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
    c.shape.c_out += 16;  // few output channels are summed in another order
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

}  // namespace
}  // namespace upweave::cpu
