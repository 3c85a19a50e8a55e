#include "base/log.h"

#include <cstdio>
#include <cstdlib>

#include "base/error.h"

namespace upweave {

void log_line(const std::string& line) { std::fputs(("upweave: " + line + "\n").c_str(), stderr); }

LogLevel log_level() {
  static const LogLevel level = [] {
    const char* given = std::getenv("UPWEAVE_LOG");
    const std::string_view word = given ? given : "";
    if (word == "info") return LogLevel::kInfo;
    if (word == "debug") return LogLevel::kDebug;
    if (!word.empty() && word != "off")
      log_line(fmt::format("UPWEAVE_LOG is '{}'; it must be info, debug or off", excerpt(word)));
    return LogLevel::kOff;
  }();
  return level;
}

}  // namespace upweave
