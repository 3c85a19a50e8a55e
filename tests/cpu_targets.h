#pragma once
#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace upweave::testing {

// Runs f() on each instruction set of this machine that the library has code for.
template <class F>
void for_each_target(F f) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    f(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace upweave::testing
