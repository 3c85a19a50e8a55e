#pragma once
// The convolutions that conv_bench measures: those of the five pipelines, and those of published decoders.
#include <string>
#include <vector>

#include "engine/cpu/conv/conv.h"

namespace upweave::bench {

struct ConvCase {
  std::string name;
  cpu::ConvShape shape;
  std::vector<cpu::Extents> tiles;  // of the transforms tried beside the chosen kernel
};

const std::vector<ConvCase>& conv_cases();

}  // namespace upweave::bench
