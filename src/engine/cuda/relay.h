#pragma once
// Two convolutions of the same operands, the second of which reads only what the first reduced: in one
// kernel, launched several times.
#include <array>
#include <memory>
#include <vector>

#include "engine/cuda/fuse.h"

namespace upweave::cuda {

// What a launch has to do of the first and of the second, and which blocks do it, by owner: the kernel's
// parameter of that name (sweep_sm90.cuh).
struct Leg {
  std::array<int, 2> job{}, jobs{};
  std::array<std::vector<int>, 2> blocks;
};

struct Relay {
  std::vector<Leg> legs;
  Fusion fusion;  // of the first, as all that follows
  ConvTiles tiles;
  EpilogueText text;
  Prepared prepared;
};

// The relay of `pass`, which has these tiles, with the next one; or null. Gives parts of reductions a slot
// for each block that can meet a sample.
std::shared_ptr<Relay> make_relay(Lowering& l, Pass& pass, const Fusion& fusion, ConvTiles& tiles);
// What the second's blocks share, launch by launch.
std::vector<Share> second_shares(const Relay& relay);
// Writes the kernel for l.relay and the second sweep, and replaces their own launches by its.
void write_relay(Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                 const Prepared& p, int index);

}  // namespace upweave::cuda
