#pragma once
// What the engine knows of slices (plan/parts.h): how large they may be, and a slice's share of parameters.
#include "graph/graph.h"

namespace upweave::cpu {

// What stays in a last-level cache between two passes, next to what passes through: slices are no larger.
// (What the system says of the cache is often the whole socket's.)
int64_t last_level_bytes();
void set_last_level_bytes_for_test(int64_t bytes);  // 0: as it was

// Block b of a parameter or of what is made of it: `part` differs from `whole` in one extent at most.
void copy_block(const void* from, const Shape& whole, const Shape& part, int64_t b, int64_t element_bytes,
                void* to);

}  // namespace upweave::cpu
