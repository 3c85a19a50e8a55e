#pragma once
// The convolution of one tile, as one object an algorithm: direct sums, bfloat16 dot products, or
// Toom-Cook transforms. A kernel knows nothing of samples, layouts of whole tensors or what follows it.
//
// Everything has three spatial axes; a convolution of lower rank has extents of 1 in front. Per axis, output
// o collects input i and tap k with o*step + padding = i*stride + k*dilation, where step or stride is 1: a
// transposed convolution has a stride; an ordinary one of stride t and padding p, with its taps in reverse,
// is step = t and padding = dilation*(kernel - 1) - p. Outputs of one residue o mod stride
// (a *phase* when taken over all axes) read the same taps, so that each phase is a small dense correlation.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "upweave/upweave.hpp"

namespace upweave::cpu {

using Extents = std::array<int64_t, 3>;  // depth, height, width

// The least common multiple, or kBeyond where that is beyond every extent: nothing is cut there.
constexpr int64_t kBeyond = int64_t{1} << 42;
inline int64_t common_multiple(int64_t a, int64_t b) {
  int64_t multiple;
  const bool overflows = __builtin_mul_overflow(a / std::gcd(a, b), b, &multiple);
  return overflows ? kBeyond : std::min(multiple, kBeyond);
}

struct ConvShape {
  int64_t c_in = 1, c_out = 1, groups = 1;
  Extents kernel = {1, 1, 1}, stride = {1, 1, 1}, dilation = {1, 1, 1};
  Extents padding = {0, 0, 0};  // may be negative
  Extents in = {1, 1, 1};       // of the whole tensor: taps that reach outside of it are left out
  Extents out = {1, 1, 1};      // of the whole tensor: no box reaches outside of it
  // For the choice of an algorithm only: what every box keeps together (a pool), and of how many blocks of
  // output channels this is one.
  Extents window = {1, 1, 1};
  int64_t blocks = 1;
  Extents step = {1, 1, 1};  // of an ordinary convolution: more than 1 only where the stride is 1
};

// The positions lo + step*i, 0 <= i < extent, of each axis.
struct Box {
  Extents lo = {0, 0, 0}, extent = {1, 1, 1}, step = {1, 1, 1};
  int64_t count() const { return extent[0] * extent[1] * extent[2]; }
};

// Input positions, channels last: element (position, channel) is data[position*ld + channel], positions
// numbered along width first; or `pitch` says how many elements lie between neighbours on each axis. `box`
// may reach outside of the tensor, where the caller puts zeros; its steps are 1. `data` holds float or
// bfloat16, as ConvKernel::input_type() says.
struct ConvInput {
  const void* data = nullptr;
  Box box;
  int64_t ld = 0;             // at least channels_in(), and even for bfloat16
  Extents pitch = {0, 0, 0};  // all zero: as `box` and `ld` say
};

// Output positions, channels last and float32. Each step is 1, or the stride of its axis: then only one
// residue is computed there (no pooling follows, and a smaller tile stays nearer to the core).
struct ConvOutput {
  float* data = nullptr;
  Box box;
  int64_t ld = 0;             // at least channels_out()
  Extents pitch = {0, 0, 0};  // as of ConvInput
};

// Immutable: one algorithm for one shape; any number of threads may share it.
// An output's bits depend on its inputs and weights alone, not on the box that it is computed in.
class ConvKernel {
 public:
  virtual ~ConvKernel() = default;

  virtual Dtype input_type() const { return Dtype::kF32; }  // kF32 or kBF16
  // Channels of a position that compute() may read and write. Inputs from c_in to channels_in() must be zero;
  // outputs from c_out to channels_out() become zero. channels_out() is a multiple of 16.
  virtual int64_t channels_in() const = 0;
  virtual int64_t channels_out() const = 0;

  // Output boxes that begin at multiples of the tile quantum, and end at them or at the tensor's end, waste
  // nothing.
  virtual Extents tile_quantum() const = 0;
  // The input positions that compute() reads for a box of outputs. Never empty.
  virtual Box input_box(const Box& output) const = 0;

  virtual size_t packed_bytes() const = 0;
  // `kernel` is (c_in, c_out/groups, kernel...) in float64; `packed` is aligned to 64.
  virtual void pack(const double* kernel, void* packed, int threads = 1) const = 0;

  virtual size_t scratch_bytes() const = 0;  // one thread's, alignment 64; it need not be cleared
  // `input.box` contains input_box(output.box). Data pointers and ld*4 bytes are best aligned to 64.
  virtual void compute(const void* packed, const ConvInput& input, const ConvOutput& output,
                       void* scratch) const = 0;

  virtual double products_per_output() const = 0;  // multiplications of one channel pair, all phases' mean
  virtual std::string describe() const = 0;        // one line for `explain`
};

// The best kernel that the machine has for values of `type`: float32; float16, which the caller converts when
// it packs the tile; or bfloat16, where input_type() of the result says which tile it wants. `cost`
// receives what all outputs of a sample should take, in multiply-adds of 16 floats.
std::unique_ptr<ConvKernel> make_conv_kernel(const ConvShape& shape, Dtype type, Algorithm algorithm,
                                             Precision precision = Precision::kStrict,
                                             double* cost = nullptr);

// Extents of the output boxes that suit a kernel: whole tile quanta and windows, grown along width, then
// height, then depth, as long as a box's outputs take no more than `bytes`.
Extents box_extent(const ConvKernel& kernel, const ConvShape& shape, int64_t bytes);

// The algorithms themselves, for tests and benchmarks. Those that do not serve a shape or a machine throw
// Error(kUnsupported).
std::unique_ptr<ConvKernel> make_direct_conv(const ConvShape& shape);
std::unique_ptr<ConvKernel> make_bf16_conv(const ConvShape& shape);
// `tile` are the outputs m of each axis' F(m, r), counted in one phase. Phases marked in `direct_phases` (by
// residues, width fastest), and those that have no transform, are computed directly; in strict, so are
// outputs that a transform would give their neighbours' rounding.
std::unique_ptr<ConvKernel> make_toom_conv(const ConvShape& shape, const Extents& tile,
                                           const std::vector<bool>& direct_phases = {},
                                           Precision precision = Precision::kStrict);

}  // namespace upweave::cpu
