// Direct convolution kernels against naive float64 sums: random shapes and boxes, every instruction set of
// the machine. The bounds are derived, not tuned.
#include "conv_problem.h"

namespace upweave::cpu {
namespace {

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

TEST(ConvShapes, NonsenseIsRefused) {
  ConvShape s;
  s.c_in = 3, s.c_out = 4, s.groups = 2;
  EXPECT_THROW(make_direct_conv(s), Error);
  s.c_in = 4;
  EXPECT_NO_THROW(make_direct_conv(s));
  s.stride[1] = 0;
  EXPECT_THROW(make_direct_conv(s), Error);
  s.stride[1] = 2;
  EXPECT_NO_THROW(make_direct_conv(s));
  s.step[1] = 2;  // no convolution has both
  EXPECT_THROW(make_direct_conv(s), Error);
}

}  // namespace
}  // namespace upweave::cpu
