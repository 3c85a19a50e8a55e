#pragma once
// How long a program of the CPU engine should take: what its launches must do, at rates that this machine was
// measured to have.
#include <cstdint>

namespace upweave::cpu {

// What one launch must do. Vectors have 16 floats, whatever the machine's have.
struct Work {
  double products = 0;  // multiply-adds of vectors in convolutions, with what transforms add to them
  double steps = 0;     // operations on vectors in everything else
  double scalars = 0;   // values that go one by one, in float64
  double bytes = 0;     // from and to memory
  double weights = 0;   // bytes of packed weights that tiles read from beyond a core's own cache
  int64_t tiles = 1;    // that threads share
};

// Of one thread, measured once a process in about a millisecond.
double vectors_per_second();

double predicted_seconds(const Work& work, int threads);

}  // namespace upweave::cpu
