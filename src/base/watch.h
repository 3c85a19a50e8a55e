#pragma once
// Lets whoever waits for long work end it: engines ask the caller's watch between passes and between tiles.
#include <atomic>
#include <chrono>
#include <exception>

namespace upweave {

// The work was ended by its caller's watch. The output holds nothing that may be used.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted by the caller"; }
};

// While it lives, what its thread runs can be ended: `ask` is called now and then, in that thread, and says
// true to end it. It is rarely called, so that it may be slow and short work never meets it.
class Watch {
 public:
  using Ask = bool (*)(void* context);
  static constexpr std::chrono::milliseconds kInterval{100};

  Watch(Ask ask, void* context) : ask_(ask), context_(context), outer_(current()) { current() = this; }
  ~Watch() { current() = outer_; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The calling thread's innermost one, or null; work on several threads takes it along before it forks.
  static Watch* here() { return current(); }

  // In the thread that made it: true from the moment on that the work should end.
  bool ended_after_asking() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_ || ended()) return ended();
    ended_.store(ask_(context_), std::memory_order_relaxed);
    next_ = std::chrono::steady_clock::now() + kInterval;
    return ended();
  }
  // In any thread.
  bool ended() const { return ended_.load(std::memory_order_relaxed); }

 private:
  static Watch*& current() {
    thread_local Watch* watch = nullptr;
    return watch;
  }

  const Ask ask_;
  void* const context_;
  Watch* const outer_;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kInterval;
  std::atomic<bool> ended_{false};
};

// Between passes, in the caller's thread.
inline void throw_if_interrupted() {
  if (Watch* watch = Watch::here(); watch && watch->ended_after_asking()) throw Interrupted();
}

// Between tiles, in any thread of a pass; only the one that made the watch asks. The pass may leave its
// results unfinished: whoever ran it throws behind it.
inline bool interrupted(Watch* watch) {
  return watch && (watch == Watch::here() ? watch->ended_after_asking() : watch->ended());
}

}  // namespace upweave
