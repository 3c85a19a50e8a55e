// Direct sums: each phase is a matrix product whose rows are output positions, whose columns are output
// channels and whose inner dimension is taps x input channels. Nothing is gathered: a row is a pointer into
// the input tile, and a tap is an offset that all rows share.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/dtype.h"
#include "base/error.h"
#include "engine/cpu/conv_block.h"
#include "engine/cpu/conv_geometry.h"

namespace upweave::cpu {
namespace {

// Packed: for each phase, group and panel of output channels, the taps in order, each depth x width.
// An element is a float, or a pair of bfloat16 channels: `pair` is how many channels it holds.
class DirectConv final : public ConvKernel {
 public:
  DirectConv(const ConvShape& shape, const BlockOps& ops, int64_t pair)
      : shape_(shape),
        geometry_(shape),
        ops_(ops),
        pair_(pair),
        channels_(shape.c_in / shape.groups),
        depth_((channels_ + pair - 1) / pair),
        columns_(shape.c_out / shape.groups) {
    int64_t floats = 0;
    for (int64_t i = 0; i < geometry_.phases(); ++i) {
      phase_offset_.push_back(floats);
      floats += taps(geometry_.phase(i)) * shape.groups * depth_ * round_up(columns_, ops_.lanes);
      max_taps_ = std::max(max_taps_, taps(geometry_.phase(i)));
    }
    packed_floats_ = floats;
  }

  Dtype input_type() const override { return pair_ == 1 ? Dtype::kF32 : Dtype::kBF16; }
  int64_t channels_in() const override { return round_up(shape_.c_in, pair_); }
  int64_t channels_out() const override { return round_up(shape_.c_out, 16); }
  Extents granule() const override { return shape_.stride; }
  Box input_box(const Box& output) const override { return cpu::input_box(geometry_, output, {1, 1, 1}); }
  size_t packed_bytes() const override { return static_cast<size_t>(packed_floats_) * sizeof(float); }
  size_t scratch_bytes() const override { return static_cast<size_t>(max_taps_) * sizeof(int64_t); }

  void pack(const double* kernel, void* packed) const override {
    float* to = static_cast<float*>(packed);
    const Extents& size = shape_.kernel;
    const int64_t volume = size[0] * size[1] * size[2];
    for (int64_t i = 0; i < geometry_.phases(); ++i) {
      const auto e = geometry_.phase(i);
      for_panels([&](int64_t group, int64_t first, int64_t columns) {
        const int64_t width = round_up(columns, ops_.lanes);
        for (const Tap& d : geometry_.residues[0][e[0]].taps) {
          for (const Tap& h : geometry_.residues[1][e[1]].taps) {
            for (const Tap& w : geometry_.residues[2][e[2]].taps) {
              const double* tap = kernel + (d.k * size[1] + h.k) * size[2] + w.k;
              for (int64_t k = 0; k < depth_; ++k) {
                for (int64_t c = 0; c < width; ++c) {
                  *to++ = element(tap + first * volume, group, k, c < columns ? c : -1, volume);
                }
              }
            }
          }
        }
      });
    }
  }

  void compute(const void* packed, const ConvInput& input, const ConvOutput& output,
               void* scratch) const override {
    if (channels_out() > shape_.c_out) clear_padding(output);
    for (int64_t i = 0; i < geometry_.phases(); ++i) {
      compute_phase(static_cast<const float*>(packed) + phase_offset_[i], geometry_.phase(i), input, output,
                    static_cast<int64_t*>(scratch));
    }
  }

  double products_per_output() const override {
    double taps_of_all = 0;
    for (int64_t i = 0; i < geometry_.phases(); ++i)
      taps_of_all += static_cast<double>(taps(geometry_.phase(i)));
    return taps_of_all / static_cast<double>(geometry_.phases());
  }
  std::string describe() const override {
    return fmt::format(
        "direct {} sums, {} positions x {} channels in registers, {}, {:.4g} products an output",
        pair_ == 1 ? "float32" : "bfloat16 dot product", kBlockRows, ops_.panel_vectors * ops_.lanes,
        ops_.name, products_per_output());
  }

 private:
  int64_t taps(const std::array<int64_t, 3>& e) const {
    int64_t n = 1;
    for (int axis = 0; axis < 3; ++axis)
      n *= static_cast<int64_t>(geometry_.residues[axis][e[axis]].taps.size());
    return n;
  }

  // One element's weights: input channels from k*pair of a group, output channel c; zero where there are
  // none.
  float element(const double* tap, int64_t group, int64_t k, int64_t c, int64_t volume) const {
    auto weight = [&](int64_t channel) {
      return c < 0 || channel >= channels_ ? 0.0
                                           : tap[((group * channels_ + channel) * columns_ + c) * volume];
    };
    if (pair_ == 1) return static_cast<float>(weight(k));
    const uint32_t even = double_to_bf16(weight(2 * k)), odd = double_to_bf16(weight(2 * k + 1));
    return std::bit_cast<float>(even | odd << 16);
  }

  template <class F>
  void for_panels(F&& body) const {
    const int64_t panel = ops_.lanes * ops_.panel_vectors;
    for (int64_t group = 0; group < shape_.groups; ++group) {
      for (int64_t first = 0; first < columns_; first += panel) {
        body(group, first, std::min(panel, columns_ - first));
      }
    }
  }

  void clear_padding(const ConvOutput& output) const {
    for (int64_t i = 0; i < output.box.count(); ++i) {
      std::fill(output.data + i * output.ld + shape_.c_out, output.data + i * output.ld + channels_out(),
                0.0f);
    }
  }

  void compute_phase(const float* weights, const std::array<int64_t, 3>& e, const ConvInput& input,
                     const ConvOutput& output, int64_t* offsets) const {
    AxisRun run[3];
    for (int axis = 0; axis < 3; ++axis) {
      run[axis] = axis_run(output.box, axis, shape_.stride[axis], e[axis]);
      if (run[axis].count == 0) return;
    }
    const Extents& in = input.box.extent;
    const int64_t ld = input.ld / pair_;  // in elements, as all offsets from here on
    int64_t segments = 0;
    for (const Tap& d : geometry_.residues[0][e[0]].taps) {
      for (const Tap& h : geometry_.residues[1][e[1]].taps) {
        for (const Tap& w : geometry_.residues[2][e[2]].taps) {
          offsets[segments++] = ((d.shift * in[1] + h.shift) * in[2] + w.shift) * ld;
        }
      }
    }
    const float* in0 = static_cast<const float*>(input.data) +
                       (((run[0].j - input.box.lo[0]) * in[1] + run[1].j - input.box.lo[1]) * in[2] +
                        run[2].j - input.box.lo[2]) *
                           ld;
    const Extents& out = output.box.extent;
    float* out0 = output.data + ((run[0].first * out[1] + run[1].first) * out[2] + run[2].first) * output.ld;
    const int64_t positions = run[0].count * run[1].count * run[2].count;

    for_panels([&](int64_t group, int64_t first, int64_t columns) {
      BlockProduct p;
      p.offsets = offsets;
      p.segments = segments;
      p.depth = depth_;
      p.weights = weights;
      p.columns = static_cast<int>(columns);
      p.accumulate = false;
      int64_t d = 0, h = 0, w = 0;
      for (int64_t done = 0; done < positions;) {
        const int64_t rows = std::min<int64_t>(kBlockRows, positions - done);
        for (int64_t r = 0; r < rows; ++r) {
          p.rows[r] = in0 + ((d * in[1] + h) * in[2] + w) * ld + group * depth_;
          p.out[r] =
              out0 +
              ((d * run[0].every * out[1] + h * run[1].every) * out[2] + w * run[2].every) * output.ld +
              group * columns_ + first;
          if (++w == run[2].count) w = 0, ++h;
          if (h == run[1].count) h = 0, ++d;
        }
        ops_.product[rows - 1](p);
        done += rows;
      }
      weights += segments * depth_ * round_up(columns, ops_.lanes);
    });
  }

  ConvShape shape_;
  ConvGeometry geometry_;
  const BlockOps& ops_;
  int64_t pair_;  // channels of an element
  // Of one group: input channels, the elements that hold them, output channels.
  int64_t channels_, depth_, columns_;
  std::vector<int64_t> phase_offset_;
  int64_t packed_floats_ = 0, max_taps_ = 0;
};

}  // namespace

std::unique_ptr<ConvKernel> make_direct_conv(const ConvShape& shape) {
  return std::make_unique<DirectConv>(shape, block_ops(), 1);
}

std::unique_ptr<ConvKernel> make_bf16_conv(const ConvShape& shape) {
  const BlockOps* ops = bf16_block_ops();
  if (ops == nullptr) throw fail(Status::kUnsupported, "this machine has no bfloat16 dot products");
  if (shape.groups != 1 && shape.c_in / shape.groups % 2 != 0) {
    throw fail(Status::kUnsupported, "{} input channels of {} groups do not pair up", shape.c_in,
               shape.groups);
  }
  return std::make_unique<DirectConv>(shape, *ops, 2);
}

}  // namespace upweave::cpu
