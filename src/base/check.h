#pragma once
// Each stage of the road states what its result must be in a function `check`, which throws what broken()
// makes.
#include "base/error.h"

namespace upweave {

// Whether results are checked: in debug builds, in all tests, and where $UPWEAVE_CHECK is 1.
bool checks_stages();

template <class... Args>
Error broken(fmt::format_string<Args...> format, Args&&... args) {
  return fail<Args...>(Status::kInternal, format, std::forward<Args>(args)...);
}

}  // namespace upweave
