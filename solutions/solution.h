#pragma once
// A shared object for checkers that load one file and call `solution`. It has no way to return an error, so a
// call that fails says why on stderr and leaves the output alone.
#include <cstdio>

#include "upweave/upweave.h"

inline void report(upweave_status status) {
  if (status != UPWEAVE_OK) std::fprintf(stderr, "upweave: %s\n", upweave_last_error());
}
