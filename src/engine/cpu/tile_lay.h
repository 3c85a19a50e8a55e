#pragma once
// Lays the input of a convolution out channels last, zeros around it, on its way through the head's pool and
// pointwise steps: once for each input element, before the tiles that read it.
#include "engine/cpu/tile.h"

namespace upweave::cpu {

int64_t lay_scratch_floats(const ConvStage& conv);
// Row (d, h) of `box`, all its width, of sample n: dst[w*ld + channel], of the kernel's input type.
void lay_row(const ConvStage& conv, const Bases& bases, const Box& box, int64_t n, int64_t d, int64_t h,
             char* dst, float* scratch);

}  // namespace upweave::cpu
