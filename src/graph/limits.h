#pragma once
// What a pipeline may ask for. Planning takes a fraction of a second within these limits, and no product of
// extents, channels and element sizes leaves 64 bits; nothing that a machine could run comes near them.
#include <cstddef>
#include <cstdint>

namespace upweave {

constexpr size_t kMaxText = size_t{1} << 20;        // bytes of a text
constexpr size_t kMaxName = 200;                    // of a tensor's or value's name
constexpr int kMaxNodes = 600;                      // stages and parameters
constexpr int kMaxInputs = 64;                      // a kernel's arguments hold a pointer to each
constexpr size_t kMaxOperands = 256;                // of one cat
constexpr int64_t kMaxChannels = int64_t{1} << 24;  // engines have tables with an entry a channel
constexpr int64_t kMaxElements = int64_t{1} << 40;  // of any value, and of any extent beyond its padding
// Of all convolutions of a pipeline together: phases (the product of a transposed convolution's strides) and
// kernel extents, which tables are made of; and of each one the taps that meet in one output.
constexpr int64_t kMaxPhases = int64_t{1} << 14;
constexpr int64_t kMaxKernelExtents = int64_t{1} << 18;
constexpr int64_t kMaxTaps = int64_t{1} << 17;

}  // namespace upweave
