#include "base/check.h"

#include <cstdlib>

namespace upweave {

bool checks_stages() {
#ifdef NDEBUG
  static const bool asked = [] {
    const char* given = std::getenv("UPWEAVE_CHECK");
    return given && std::string_view(given) == "1";
  }();
  return asked;
#else
  return true;
#endif
}

}  // namespace upweave
