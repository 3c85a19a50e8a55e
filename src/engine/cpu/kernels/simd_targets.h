#pragma once
// Include before Highway. Register blocks are arrays of vectors, and vectors whose length the compiler does
// not know cannot be elements of arrays: machines that have them run the fixed-length sets that they also
// have.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
