#pragma once
// What becomes of a pipeline, on stderr, for whoever asks: $UPWEAVE_LOG=info has a line for each plan and
// program, debug also laws, choices, packing and runs.
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

namespace upweave {

enum class LogLevel { kOff, kInfo, kDebug };

LogLevel log_level();  // of the environment, read once
void log_line(const std::string& line);

inline bool logs(LogLevel level) { return log_level() >= level; }

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (logs(LogLevel::kInfo)) log_line(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (logs(LogLevel::kDebug)) log_line(fmt::format(format, std::forward<Args>(args)...));
}

// Milliseconds since it was made, or asked last; it looks at no clock when nothing is logged.
class LogTimer {
 public:
  double lap() {
    const auto before = std::exchange(start_, now());
    return std::chrono::duration<double, std::milli>(start_ - before).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static Clock::time_point now() { return logs(LogLevel::kInfo) ? Clock::now() : Clock::time_point(); }
  Clock::time_point start_ = now();
};

}  // namespace upweave
