#pragma once
// Rows of one source of a convolution on their way into its packed input, through the source's head.
#include "engine/cpu/tile/tile.h"

namespace upweave::cpu {

// Rows of the packed input, dst[r*row_bytes + w*ld + channel], and what of them is inside of the tensor: rows
// [first, end), columns [from, to). (d, h, w) is where row 0, column 0 lies in it.
struct PackedRows {
  char* dst = nullptr;
  Dtype type = Dtype::kF32;  // or bfloat16
  int64_t ld = 0, row_bytes = 0;
  int64_t n = 0, d = 0, h = 0, w = 0;
  int64_t first = 0, end = 0, from = 0, to = 0;
};
constexpr int64_t kPackRows = 4;  // at most, at once

// What steps meet that does not vary along space, of one sample: `head_vectors` of padded(channels) floats.
int64_t head_vectors(const ConvSource& source);
void load_head_vectors(const ConvSource& source, const Bases& bases, int64_t n, float* vectors);

// `scratch` holds head_scratch_floats().
int64_t head_scratch_floats(const ConvSource& source);
void pack_source(const ConvSource& source, const Bases& bases, const PackedRows& rows, const float* vectors,
                 float* scratch);

// The two ways: row-major sources are transposed, channel by channel through the steps; those that are
// channels last or in halves, or meet a value an element, position by position.
bool turns(const ConvSource& source);
int64_t turn_scratch_floats(const ConvSource& source);
void turn_rows(const ConvSource& source, const Bases& bases, const PackedRows& rows, const float* vectors,
               float* scratch);

}  // namespace upweave::cpu
