#pragma once
// The cost model: what the parts of a kernel take, as measured on an H200. Schedules are chosen and blocks
// shared by it, and explain predicts by it.
#include <algorithm>

#include "engine/cuda/convolution.h"

namespace upweave::cuda {

// --- Cycles of a multiprocessor

// Of the tensor cores: 32 for 64 rows, 64 columns and 16 terms. `row_steps` are rows times steps.
inline double product_cycles(const Convolution& conv, double row_steps) {
  return row_steps * conv.n * conv.ck / 2048 * conv.products();
}

// Of a value in an epilogue: what does not run beside products; the whole of it, with the way to memory; and
// what remains of it in a kernel where epilogues and products of many tiles overlap.
struct EpilogueCycles {
  double beside, whole, overlapped;
};
inline constexpr EpilogueCycles kStored{0.16, 0.29, 0.19}, kReduced{0.075, 0.16, 0.07};
inline constexpr const EpilogueCycles& epilogue_cycles(bool stores) { return stores ? kStored : kReduced; }

// 64 rows of one group of phases with so many steps.
inline double subtile_cycles(const Convolution& conv, int steps, bool stores) {
  const double values = 64. * conv.n * conv.store_phases;
  const EpilogueCycles& value = epilogue_cycles(stores);
  return std::max(product_cycles(conv, 64. * steps) + value.beside * values, value.whole * values);
}

// --- Seconds of what goes value by value, fitted to the times of KernelBench's chains and of single
// convolutions at full size (docs/cuda.md, "explain"), which they reproduce within about a quarter

// A value of a kernel of its own (coordinates by division, one load), each value that a pool of its own
// reads, and each that a block reads to reduce it.
inline constexpr double kElement = 2.8e-12, kWindow = 8e-12, kReducedValue = 1.5e-12;
// A block of up to 64 threads combines one number: barriers and shuffles.
inline constexpr double kCombine = 0.84e-9;
// A channel of few voxels: nothing hides the load's latency.
inline constexpr double kChannel = 60e-9;
// A byte of a box sum: taps read the same input again from the cache.
inline constexpr double kBoxByte = 0.65e-12;
// An operation of the convolution without tensor cores.
inline constexpr double kPlainFlop = 0.25e-12;
// An operand's value that an epilogue reads where its sums lie.
inline constexpr double kOperand = 16e-12;
// An output that leaves by itself, one phase at a time; of several phases in rows that cannot be stored
// together; and of two phases in one store, behind products.
inline constexpr double kSingleStore = 12e-12, kOddStore = 9e-12, kPairStore = 2.7e-12;
// A voxel of a depth-streaming kernel, of few channels too: waits and stores.
inline constexpr double kStreamedVoxel = 83e-12;

// --- Choices: what a schedule is worth in useful rows, beside boxes

inline constexpr double kWholeLinesRows = 0.95, kStationaryRows = 0.9;
// A smaller tile must have so many times the useful rows, for it reads more of the input around it.
inline constexpr double kSmallerTile = 1.05;
// Blocks go side by side if the last of them does not take more than this.
inline constexpr double kUneven = 1.04;

// --- Shares of the rates

// One warpgroup a multiprocessor has nobody to multiply while it waits for operands or is in its epilogue: it
// was seen to reach a third (kernelbench-61 and 77).
inline constexpr double kOneWarpgroup = 1 / 3.0;
// Of what runs beside something longer, one part of so many was seen to remain.
inline constexpr double kHidden = 6;

}  // namespace upweave::cuda
