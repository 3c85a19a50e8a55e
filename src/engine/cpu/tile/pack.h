#pragma once
// Packs the input of a convolution: channels last, zeros around it, on its way through the heads of its
// sources: once for each input element, before the tiles that read it.
#include "engine/cpu/tile/head.h"

namespace upweave::cpu {

int64_t pack_scratch_floats(const ConvStage& conv);

// One thread's, for one run. `scratch` holds pack_scratch_floats().
class Packer {
 public:
  Packer(const ConvStage& conv, const Bases& bases, float* scratch);

  // `rows` rows of `box` from (d, h) on, at most kPackRows, all its width, of sample n: dst[w*ld + channel],
  // of the kernel's input type.
  void pack_rows(const Box& box, int64_t n, int64_t d, int64_t h, int64_t rows, char* dst);

 private:
  const ConvStage& conv_;
  const Bases& bases_;
  float *vectors_, *scratch_;
  int64_t sample_ = -1;  // whose vectors are there
};

}  // namespace upweave::cpu
