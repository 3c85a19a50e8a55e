#pragma once
// Writes the kernels of a convolution, and returns their launches.
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/epilogue.h"

namespace upweave::cuda {

// A convolution whose constants, products and operands are written down: all that its kernel is made of.
struct ConvKernel {
  Fusion fusion;
  std::unique_ptr<Schedule> schedule;
  Prepared prepared;
  Partials partials;
  EpilogueText text;
  int index = 0;  // of conv_0, conv_fma_0, ...

  std::string name() const { return fmt::format("G{}", index); }  // of the tiles' constants
};

// Making the fp16 copy of the input `x`, launched by every run, and the packing of the kernel's weights.
struct Conversion {
  std::vector<Launch> run, pack;
};
Conversion convert_and_pack(Lowering& l, const ConvKernel& k, Id x, Id kernel);
// The convolution on tensor cores; the same in float32, where fp16 cannot hold the data; and the kernel for
// windows whose tiles left parts of them.
std::vector<Launch> tensor_launches(Lowering& l, const ConvKernel& k);
Launch fma_launch(Lowering& l, const ConvKernel& k);
Launch combine_windows(Lowering& l, const ConvKernel& k);
// Kernels that combine the partial results of reductions, to be launched after the convolution's own.
std::vector<Launch> combine_reductions(Lowering& l, const ConvKernel& k);

// What explain says of it.
std::string conv_note(const Lowering& l, const ConvKernel& k);

}  // namespace upweave::cuda
