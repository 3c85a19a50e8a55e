// What libhwy would say on a machine for which only Highway's headers are installed: one target, the
// baseline.
#include <hwy/highway.h>

#include <cstdlib>

namespace hwy {

int64_t SupportedTargets() { return HWY_STATIC_TARGET; }
void SetSupportedTargetsForTest(int64_t) {}
void Abort(const char*, int, const char*, ...) { std::abort(); }
ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
