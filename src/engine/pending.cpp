#include "engine/engine.h"

// Engines that are still being built say so; weak, so that the real ones win.
namespace upweave {

__attribute__((weak)) std::unique_ptr<Program> compile_cpu(std::shared_ptr<const FusedPlan>, const Options&) {
  throw fail(Status::kUnsupported, "the cpu engine is not part of this build");
}

__attribute__((weak)) std::unique_ptr<Program> compile_cuda(std::shared_ptr<const FusedPlan>, const Options&) {
  throw fail(Status::kUnsupported, "the cuda engine is not part of this build");
}

}  // namespace upweave
