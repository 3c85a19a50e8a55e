#pragma once
// Packs the input of a convolution: channels last, zeros around it, on its way through the head's pool and
// pointwise steps: once for each input element, before the tiles that read it.
#include "engine/cpu/tile/tile.h"

namespace upweave::cpu {

constexpr int64_t kPackRows = 4;  // at most, at once
int64_t pack_scratch_floats(const ConvStage& conv);
// `rows` rows of `box` from (d, h) on, all its width, of sample n: dst[w*ld + channel], of the kernel's input
// type.
void pack_rows(const ConvStage& conv, const Bases& bases, const Box& box, int64_t n, int64_t d, int64_t h,
               int64_t rows, char* dst, float* scratch);

}  // namespace upweave::cpu
