#pragma once
// Where a transform may stand for direct sums. A transform's error is its tile's: an output that is far
// smaller than its neighbours gets their rounding. docs/math.md derives what is used here, "Tiles of a
// transform".
#include <array>
#include <cstdint>

#include "engine/cpu/conv/toom.h"

namespace upweave::cpu {

// Of one phase and its weights. With s and q a position's sums of magnitudes and of squares over channels, Q
// the tile's largest q, and the field of an output the positions of the tensor that it reads, the output is
// as exact as direct sums if
//   s0 / cut[a] + (sum of s - s0) / cut[7] >= sqrt(Q)   and   (sum of s)^2 >= spread * (sum of q),
// where s0 is the field's least s, and bit i of a tells that the tensor ends inside of the field on axis i.
struct ToomLimits {
  std::array<float, 8> cut = {};
  float spread = 0;
};

// The weights of one phase, as many taps an axis as its transforms have; false if some output channel sees
// too few of the input's channels for sums over all of them to say anything about it.
struct PhaseWeights {
  const double* w;
  int64_t c_in, c_out;
  const int64_t* tap_at;      // where tap t begins, in the order of the transforms, the last axis fastest
  int64_t in_step, out_step;  // between channels
};
bool toom_limits(const ToomAxis (&f)[3], const PhaseWeights& weights, ToomLimits* limits);

// Whether nearly all tiles of normal data pass, with normal weights.
bool serves_normal_data(const ToomAxis (&f)[3], int64_t c_in);

}  // namespace upweave::cpu
