// The CUDA engine, which is left out: nobody asks for it.
#include "engine/engine.h"

namespace upweave {

extern const EngineEntry cuda_engine = {};

}  // namespace upweave
