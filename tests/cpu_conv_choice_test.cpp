// Which convolution kernel is chosen, what is promised of any that is, and the boxes that suit it.
#include "conv_problem.h"

namespace upweave::cpu {
namespace {

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
      {"2d", {64, 128, 1, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {1, 14, 14}, {1, 16, 16}}},
      {"1d k11", {64, 64, 1, {1, 1, 11}, {1, 1, 1}, {1, 1, 3}, {0, 0, 15}, {1, 1, 400}, {1, 1, 400}}},
      {"1d k7", {64, 64, 1, {1, 1, 7}, {1, 1, 1}, {1, 1, 1}, {0, 0, 3}, {1, 1, 400}, {1, 1, 400}}}};
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
           },  // of a stride: taps are not neighbours
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

}  // namespace
}  // namespace upweave::cpu
