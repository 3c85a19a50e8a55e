// What the Python module carries in the place of Highway's library says what that library says.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#define SupportedTargets CarriedTargets
#define GetChosenTarget CarriedChosenTarget
#include "../python/carried/hwy.cpp"
#undef SupportedTargets
#undef GetChosenTarget

TEST(Carried, FindsTheSameInstructionSets) {
  EXPECT_EQ(hwy::CarriedTargets() & HWY_TARGETS, hwy::SupportedTargets() & HWY_TARGETS);
}

TEST(Carried, HasOneChoiceThatStartsOpen) {
  EXPECT_EQ(&hwy::CarriedChosenTarget(), &hwy::CarriedChosenTarget());
  EXPECT_FALSE(hwy::CarriedChosenTarget().IsInitialized());
}
