#pragma once
#include "plan/plan.h"

namespace upweave {

// conv(x; K - mean K) = conv(x; K) - its mean over channels: where the target is better off with the weights
// as they were given, the norm for which a law has centred them takes the mean itself again.
void keep_given_weights(FusedPlan& plan, const Target& target, const Options& options);

}  // namespace upweave
