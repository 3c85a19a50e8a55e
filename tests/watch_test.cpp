// A caller's watch ends what its thread runs, between passes and tiles, and harms nothing else.
#include "base/watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "upweave/upweave.hpp"

namespace upweave {
namespace {

struct Answers {  // false `patience` times, then true
  int patience, asked = 0;
  static bool ask(void* self) {
    auto& answers = *static_cast<Answers*>(self);
    return answers.asked++ >= answers.patience;
  }
};

// From here on a watch that was made before asks at the first chance.
void let_time_pass() { std::this_thread::sleep_for(Watch::kInterval + std::chrono::milliseconds(5)); }

struct Case {
  const char* text;
  Engine engine;
  Dtype dtype;
};

class Watched : public testing::TestWithParam<Case> {
 protected:
  Watched() {
    const Case& c = GetParam();
    plan_ = std::make_unique<Plan>(
        Pipeline::parse(c.text).compile({{"input", {3, 8, 12, 14}}, {"kernel", {8, 16, 4, 4}}},
                                        {.dtype = c.dtype, .engine = c.engine, .threads = 2}));
    const size_t element = static_cast<size_t>(size_of(c.dtype));
    x_.resize(3 * 8 * 12 * 14 * element);
    kernel_.resize(8 * 16 * 4 * 4 * element);
    for (auto* tensor : {&x_, &kernel_}) {
      for (size_t i = 0; i < tensor->size() / element; ++i)
        store_element(tensor->data(), c.dtype, static_cast<int64_t>(i),
                      std::sin(1.7 * static_cast<double>(i)));
    }
  }
  std::vector<char> run() const {
    size_t bytes = static_cast<size_t>(size_of(GetParam().dtype));
    for (const int64_t extent : plan_->output_shape()) bytes *= static_cast<size_t>(extent);
    std::vector<char> y(bytes);
    plan_->run({{"input", x_.data()}, {"kernel", kernel_.data()}}, y.data());
    return y;
  }

  std::unique_ptr<Plan> plan_;
  std::vector<char> x_, kernel_;
};

TEST_P(Watched, EndsAndThePlanGoesOn) {
  const std::vector<char> expected = run();
  {
    Answers yes{0};
    Watch watch(Answers::ask, &yes);
    let_time_pass();
    EXPECT_THROW(run(), Interrupted);
    EXPECT_THROW(run(), Interrupted);  // what is ended stays ended
    EXPECT_EQ(yes.asked, 1);
  }
  EXPECT_EQ(run(), expected);
}

TEST_P(Watched, GoesOnWhereTheAnswerIsNo) {
  const std::vector<char> expected = run();
  Answers no{1000};
  Watch watch(Answers::ask, &no);
  let_time_pass();
  EXPECT_EQ(run(), expected);
  EXPECT_GE(no.asked, 1);
}

TEST_P(Watched, OtherThreadsRunOn) {
  const std::vector<char> expected = run();
  Answers yes{0};
  Watch watch(Answers::ask, &yes);
  let_time_pass();
  std::thread other([&] { EXPECT_EQ(run(), expected); });
  EXPECT_THROW(run(), Interrupted);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(
    Engines, Watched,
    testing::Values(Case{"conv_transpose kernel s2 | layer_norm channel | gelu", Engine::kCpu, Dtype::kF32},
                    Case{"conv_transpose kernel | batch_norm | tanh | max_pool 2", Engine::kCpu, Dtype::kF32},
                    Case{"conv_transpose kernel s2 | softmax space", Engine::kCpu, Dtype::kBF16},
                    Case{"conv_transpose kernel s2 | max_pool 3 s1 | sum width | mean channel", Engine::kCpu,
                         Dtype::kF16},
                    Case{"conv_transpose kernel s2 | instance_norm | relu", Engine::kReference,
                         Dtype::kF64}));

TEST(Watch, TheInnermostCounts) {
  EXPECT_EQ(Watch::here(), nullptr);
  Answers answers{0};
  Watch outer(Answers::ask, &answers);
  {
    Watch inner(Answers::ask, &answers);
    EXPECT_EQ(Watch::here(), &inner);
  }
  EXPECT_EQ(Watch::here(), &outer);
  std::thread([] { EXPECT_EQ(Watch::here(), nullptr); }).join();
}

}  // namespace
}  // namespace upweave
