#include "engine/cpu/conv/direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace upweave::cpu {

namespace {

// Weights of a panel beyond this leave the second-level cache before they are used again.
constexpr int64_t kNearBytes = 512 << 10;
// Tap by tap, each takes up sums from where the last one left them: worth it from so many products on.
constexpr int64_t kLeastDepth = 64;
// Up to so many positions, borders leave many blocks with rows to spare.
constexpr int64_t kFewPositions = 256;

}  // namespace

DirectConv::DirectConv(const ConvShape& shape, const BlockOps& ops, int64_t pair, Lanes lanes)
    : shape_(shape),
      geometry_(shape),
      ops_(ops),
      pair_(pair),
      lanes_(lanes),
      groups_(lanes == Lanes::kBoth ? 1 : shape.groups),
      channels_(lanes == Lanes::kBoth ? 1 : shape.c_in / shape.groups),
      depth_(lanes == Lanes::kInputs ? round_up(channels_, 16) : (channels_ + pair - 1) / pair),
      columns_(shape.c_out / groups_) {
  const int64_t panel = ops_.lanes * ops_.panel_vectors;
  const int64_t padded = columns_ / panel * panel + round_up(columns_ % panel, ops_.lanes);
  const int64_t tap_floats = groups_ * depth_ * padded;
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    phase_offset_.push_back(packed_floats_);
    packed_floats_ += taps(i) * tap_floats;
    max_taps_ = std::max(max_taps_, taps(i));
  }
}

int64_t DirectConv::taps(int64_t phase) const {
  const auto e = geometry_.phase(phase);
  int64_t n = 1;
  for (int axis = 0; axis < 3; ++axis) {
    n *= static_cast<int64_t>(geometry_.residues[axis][e[axis]].taps.size());
  }
  return n;
}

template <class F>
void DirectConv::for_panels(F&& body) const {
  int64_t panel = ops_.lanes * ops_.panel_vectors;
  if (lanes_ == Lanes::kInputs) {  // 5 are 3 and 2
    const int64_t panels = (columns_ + panel - 1) / panel;
    panel = (columns_ + panels - 1) / panels;
  }
  for (int64_t group = 0; group < groups_; ++group) {
    for (int64_t first = 0; first < columns_; first += panel) {
      body(group, first, std::min(panel, columns_ - first));
    }
  }
}

// One element's weights: input channels from k*pair of a group, output channel c; zero where there are none.
float DirectConv::element(const double* tap, int64_t group, int64_t k, int64_t c, int64_t volume) const {
  auto weight = [&](int64_t channel) {
    if (c >= columns_ || channel >= channels_) return 0.0;
    return tap[((group * channels_ + channel) * columns_ + c) * volume];
  };
  if (pair_ == 1) return static_cast<float>(weight(k));
  const uint32_t even = double_to_bf16(weight(2 * k)), odd = double_to_bf16(weight(2 * k + 1));
  return std::bit_cast<float>(even | odd << 16);
}

namespace {

// The least magnitude of inputs, as bfloat16, for which dot products with these weights flush nothing. x w is
// a multiple of 2^(ex + ew - 14), where 2^ex and 2^ew are the powers of two in them; if all those are
// multiples of 2^-126, so is every rounded sum. Subnormal weights serve no input.
uint16_t least_input(const uint16_t* weights, int64_t n) {
  uint16_t smallest = 0x7f80;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t w = weights[i] & 0x7fff;
    if (w != 0) smallest = std::min(smallest, w);
  }
  const int biased = smallest >> 7;
  if (biased == 0) return 0x8000;
  return static_cast<uint16_t>(std::max(1, 127 - 112 - (biased - 127)) << 7);
}

}  // namespace

// A tap's weights of one panel: [depth][columns], or [columns][depth] where lanes are input channels.
float* DirectConv::pack_tap(const double* tap, int64_t group, int64_t first, int64_t columns,
                            float* to) const {
  const int64_t volume = shape_.kernel[0] * shape_.kernel[1] * shape_.kernel[2];
  if (lanes_ == Lanes::kInputs) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t k = 0; k < depth_; ++k) *to++ = element(tap, group, k, first + c, volume);
    }
    return to;
  }
  for (int64_t k = 0; k < depth_; ++k) {
    for (int64_t c = 0; c < round_up(columns, ops_.lanes); ++c)
      *to++ = element(tap, group, k, first + c, volume);
  }
  return to;
}

void DirectConv::pack(const double* kernel, void* packed, int threads) const {
  const Extents& size = shape_.kernel;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    const auto e = geometry_.phase(i);
    float* to = static_cast<float*>(packed) + phase_offset_[i];
    for_panels([&](int64_t group, int64_t first, int64_t columns) {
      for (const Tap& d : geometry_.residues[0][e[0]].taps) {
        for (const Tap& h : geometry_.residues[1][e[1]].taps) {
          for (const Tap& w : geometry_.residues[2][e[2]].taps) {
            const double* tap = kernel + (d.k * size[1] + h.k) * size[2] + w.k;
            to = pack_tap(tap, group, first, columns, to);
          }
        }
      }
    });
  }
  if (pair_ == 1) return;
  const uint16_t least = least_input(static_cast<const uint16_t*>(packed), 2 * packed_floats_);
  std::memcpy(static_cast<float*>(packed) + packed_floats_, &least, sizeof least);
}

const BlockOps& DirectConv::ops_for(const void* packed, const ConvInput& input, const Box& output) const {
  if (pair_ == 1) return ops_;
  uint16_t least;
  std::memcpy(&least, static_cast<const float*>(packed) + packed_floats_, sizeof least);
  const Box box = input_box(output);
  const Extents &lo = input.box.lo, &extent = input.box.extent;
  for (int64_t d = box.lo[0] - lo[0]; d < box.lo[0] - lo[0] + box.extent[0]; ++d) {
    for (int64_t h = box.lo[1] - lo[1]; h < box.lo[1] - lo[1] + box.extent[1]; ++h) {
      const int64_t first = ((d * extent[1] + h) * extent[2] + box.lo[2] - lo[2]) * input.ld;
      if (bf16_any_below(static_cast<const uint16_t*>(input.data) + first, box.extent[2] * input.ld, least))
        return *bf16_block_ops(Pairs::kMultiplyAdds);
    }
  }
  return ops_;
}

void DirectConv::clear_padding(const ConvOutput& output) const {
  if (channels_out() == shape_.c_out) return;
  const Extents pitch = pitch_of(output);
  for (int64_t d = 0; d < output.box.extent[0]; ++d) {
    for (int64_t h = 0; h < output.box.extent[1]; ++h) {
      for (int64_t w = 0; w < output.box.extent[2]; ++w) {
        float* position = output.data + d * pitch[0] + h * pitch[1] + w * pitch[2];
        std::fill(position + shape_.c_out, position + channels_out(), 0.0f);
      }
    }
  }
}

void DirectConv::compute(const void* packed, const ConvInput& input, const ConvOutput& output,
                         void* scratch) const {
  clear_padding(output);
  const BlockOps& ops = ops_for(packed, input, output.box);
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    AxisRun run[3];
    if (phase_runs(geometry_, output.box, i, run)) {
      compute_phase(ops, packed, i, input, run, output.data, pitch_of(output), scratch);
    }
  }
}

void DirectConv::compute_phase(const BlockOps& ops, const void* packed, int64_t phase, const ConvInput& input,
                               const AxisRun (&run)[3], float* output, const Extents& output_step,
                               void* scratch) const {
  if (by_taps(phase, run)) return compute_by_taps(ops, packed, phase, input, run, output, output_step);
  const auto e = geometry_.phase(phase);
  AxisRun part[3];
  Taps taps[3];
  // Along each axis, the outputs that have the same taps inside of the tensor.
  auto split = [&](auto& self, int axis) -> void {
    if (axis == 3) return compute_part(ops, packed, phase, input, part, taps, output, output_step, scratch);
    AxisRun rest = run[axis];
    while (rest.count > 0) {
      const AxisPart next =
          next_part(geometry_.residues[axis][e[axis]], rest, shape_.step[axis], shape_.in[axis]);
      part[axis] = rest;
      part[axis].count = next.count;
      taps[axis] = {next.tap, next.tap_end};
      self(self, axis + 1);
      rest = {rest.first + next.count * rest.every, rest.every, rest.count - next.count, rest.j + next.count};
    }
  };
  split(split, 0);
}

Extents DirectConv::element_pitch(const ConvInput& input) const {
  Extents pitch = pitch_of(input);
  for (int64_t& p : pitch) p /= pair_;
  return pitch;
}

// The first group's first channel of a run's positions.
DirectConv::Rows DirectConv::rows_of(const ConvInput& input, const Extents& pitch, const AxisRun (&run)[3],
                                     float* output, const Extents& output_step) const {
  Rows rows = {static_cast<const float*>(input.data), output, {}, {}, {}};
  for (int axis = 0; axis < 3; ++axis) {
    rows.count[axis] = run[axis].count;
    rows.in_step[axis] = shape_.step[axis] * pitch[axis];
    rows.out_step[axis] = run[axis].every * output_step[axis];
    rows.in += run[axis].j * rows.in_step[axis] - input.box.lo[axis] * pitch[axis];
    rows.out += run[axis].first * output_step[axis];
  }
  return rows;
}

void DirectConv::multiply_rows(const BlockOps& ops, BlockProduct& p, const Rows& rows) {
  const int64_t positions = rows.count[0] * rows.count[1] * rows.count[2], most = ops.most_rows(p.columns);
  const float* in = rows.in;
  float* out = rows.out;
  int64_t d = 0, h = 0, w = 0;
  for (int64_t done = 0; done < positions;) {
    const int64_t n = std::min(most, positions - done);
    for (int64_t r = 0; r < n; ++r) {
      p.rows[r] = in;
      p.out[r] = out;
      in += rows.in_step[2];
      out += rows.out_step[2];
      if (++w < rows.count[2]) continue;
      w = 0;
      if (++h == rows.count[1]) h = 0, ++d;
      in = rows.in + d * rows.in_step[0] + h * rows.in_step[1];
      out = rows.out + d * rows.out_step[0] + h * rows.out_step[1];
    }
    ops.product[n - 1](p);
    done += n;
  }
}

bool DirectConv::by_taps(int64_t phase, const AxisRun (&run)[3]) const {
  if (lanes_ != Lanes::kOutputs || depth_ < kLeastDepth || taps(phase) < 2) return false;
  const int64_t positions = run[0].count * run[1].count * run[2].count;
  if (positions < 2 * kBlockRows) return false;
  const int64_t panel = std::min<int64_t>(columns_, int64_t{ops_.lanes} * ops_.panel_vectors);
  if (taps(phase) * depth_ * panel * int64_t{sizeof(float)} > kNearBytes) return true;
  if (positions > kFewPositions) return false;
  const auto e = geometry_.phase(phase);
  for (int axis = 0; axis < 3; ++axis) {  // is there a border?
    const AxisPart part =
        next_part(geometry_.residues[axis][e[axis]], run[axis], shape_.step[axis], shape_.in[axis]);
    if (part.count < run[axis].count) return true;
  }
  return false;
}

void DirectConv::compute_by_taps(const BlockOps& ops, const void* packed, int64_t phase,
                                 const ConvInput& input, const AxisRun (&run)[3], float* output,
                                 const Extents& output_step) const {
  const auto e = geometry_.phase(phase);
  const Extents pitch = element_pitch(input);
  const Rows all = rows_of(input, pitch, run, output, output_step);
  for (int64_t d = 0; d < all.count[0]; ++d) {
    for (int64_t h = 0; h < all.count[1]; ++h) {
      for (int64_t w = 0; w < all.count[2]; ++w) {
        std::fill_n(all.out + d * all.out_step[0] + h * all.out_step[1] + w * all.out_step[2], shape_.c_out,
                    0.0f);
      }
    }
  }
  const int64_t zero = 0;
  BlockProduct p;
  p.offsets = p.skips = &zero;
  p.segments = 1;
  p.depth = depth_;
  p.weights = static_cast<const float*>(packed) + phase_offset_[phase];
  p.resume = true;
  for_panels([&](int64_t group, int64_t first, int64_t columns) {
    p.columns = static_cast<int>(columns);
    auto reach = [&](auto& self, int axis, const Rows& rows) -> void {
      if (axis == 3) {
        multiply_rows(ops, p, rows);
        p.weights += depth_ * round_up(columns, ops_.lanes);
        return;
      }
      for (const Tap& tap : geometry_.residues[axis][e[axis]].taps) {
        // Outputs i of the run with 0 <= (j + i)*step + shift < in.
        const int64_t step = shape_.step[axis], at = run[axis].j * step + tap.shift;
        const int64_t begin = at < 0 ? (-at + step - 1) / step : 0,
                      end = at < shape_.in[axis] ? (shape_.in[axis] - at + step - 1) / step : 0;
        Rows part = rows;
        part.count[axis] = std::max<int64_t>(0, std::min(end, run[axis].count) - begin);
        part.in += begin * rows.in_step[axis] + tap.shift * pitch[axis];
        part.out += begin * rows.out_step[axis];
        self(self, axis + 1, part);
      }
    };
    Rows rows = all;
    rows.in += group * depth_;
    rows.out += group * columns_ + first;
    reach(reach, 0, rows);
  });
}

void DirectConv::compute_part(const BlockOps& ops, const void* packed, int64_t phase, const ConvInput& input,
                              const AxisRun (&run)[3], const Taps (&taps)[3], float* output,
                              const Extents& output_step, void* scratch) const {
  const auto e = geometry_.phase(phase);
  const Extents pitch = element_pitch(input);
  const std::vector<Tap>*all[3], &wide = geometry_.residues[2][e[2]].taps;
  for (int axis = 0; axis < 3; ++axis) all[axis] = &geometry_.residues[axis][e[axis]].taps;
  int64_t *offsets = static_cast<int64_t*>(scratch), *order = offsets + max_taps_, segments = 0;
  for (size_t d = taps[0].first; d < taps[0].end; ++d) {
    for (size_t h = taps[1].first; h < taps[1].end; ++h) {
      for (size_t w = taps[2].first; w < taps[2].end; ++w) {
        order[segments] = static_cast<int64_t>((d * all[1]->size() + h) * wide.size() + w);
        offsets[segments++] =
            (*all[0])[d].shift * pitch[0] + (*all[1])[h].shift * pitch[1] + wide[w].shift * pitch[2];
      }
    }
  }
  BlockProduct p;
  p.offsets = offsets;
  p.segments = segments;
  p.depth = depth_;
  p.weights = static_cast<const float*>(packed) + phase_offset_[phase];
  int64_t* skips = order + max_taps_;
  p.skips = skips;
  const Rows positions = rows_of(input, pitch, run, output, output_step);
  for_panels([&](int64_t group, int64_t first, int64_t columns) {
    p.columns = static_cast<int>(columns);
    const int64_t tap_floats = depth_ * round_up(columns, ops_.lanes);
    for (int64_t s = 0; s < segments; ++s)
      skips[s] = (order[s] - (s > 0 ? order[s - 1] + 1 : 0)) * tap_floats;
    Rows rows = positions;
    rows.in += lanes_ == Lanes::kBoth ? first : group * depth_;
    rows.out += group * columns_ + first;
    multiply_rows(ops, p, rows);
    p.weights += this->taps(phase) * tap_floats;
  });
}

double DirectConv::products_per_output() const {
  double all = 0;
  for (int64_t i = 0; i < geometry_.phases(); ++i) all += static_cast<double>(taps(i));
  return all / static_cast<double>(geometry_.phases());
}

std::string DirectConv::describe() const {
  const int64_t columns = std::min<int64_t>(round_up(columns_, ops_.lanes), ops_.panel_vectors * ops_.lanes);
  const char* vectors = lanes_ == Lanes::kInputs ? ", vectors of input channels"
                        : lanes_ == Lanes::kBoth ? ", each channel by itself"
                                                 : "";
  return fmt::format(
      "direct {} sums{}, {} positions x {} channels in registers, {}, {:.4g} products an output",
      pair_ == 1 ? "float32" : "bfloat16 dot product", vectors, ops_.most_rows(columns), columns, ops_.name,
      products_per_output());
}

Lanes direct_lanes(const ConvShape& shape) {
  if (shape.groups > 1 && shape.groups == shape.c_in && shape.groups == shape.c_out) return Lanes::kBoth;
  // Which fills its vectors better: with few output channels the other way adds lanes in the end.
  const double inputs = static_cast<double>(shape.c_in) / static_cast<double>(round_up(shape.c_in, 16)),
               outputs = static_cast<double>(shape.c_out) / 16;
  return shape.groups == 1 && 0.8 * inputs > outputs ? Lanes::kInputs : Lanes::kOutputs;
}

std::unique_ptr<ConvKernel> make_direct_conv(const ConvShape& shape) {
  const Lanes lanes = direct_lanes(shape);
  return std::make_unique<DirectConv>(shape,
                                      lanes == Lanes::kInputs ? dot_block_ops()
                                      : lanes == Lanes::kBoth ? depthwise_block_ops()
                                                              : block_ops(),
                                      1, lanes);
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
