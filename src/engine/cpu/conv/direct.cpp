#include "engine/cpu/conv/direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace upweave::cpu {

DirectConv::DirectConv(const ConvShape& shape, const BlockOps& ops, int64_t pair)
    : shape_(shape),
      geometry_(shape),
      ops_(ops),
      pair_(pair),
      channels_(shape.c_in / shape.groups),
      depth_((channels_ + pair - 1) / pair),
      columns_(shape.c_out / shape.groups) {
  const int64_t panel = ops_.lanes * ops_.panel_vectors;
  const int64_t padded = columns_ / panel * panel + round_up(columns_ % panel, ops_.lanes);
  const int64_t tap_floats = shape.groups * depth_ * padded;
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
  const int64_t panel = ops_.lanes * ops_.panel_vectors;
  for (int64_t group = 0; group < shape_.groups; ++group) {
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

void DirectConv::pack(const double* kernel, void* packed, int threads) const {
  const Extents& size = shape_.kernel;
  const int64_t volume = size[0] * size[1] * size[2];
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    const auto e = geometry_.phase(i);
    float* to = static_cast<float*>(packed) + phase_offset_[i];
    for_panels([&](int64_t group, int64_t first, int64_t columns) {
      for (const Tap& d : geometry_.residues[0][e[0]].taps) {
        for (const Tap& h : geometry_.residues[1][e[1]].taps) {
          for (const Tap& w : geometry_.residues[2][e[2]].taps) {
            const double* tap = kernel + (d.k * size[1] + h.k) * size[2] + w.k;
            for (int64_t k = 0; k < depth_; ++k) {
              for (int64_t c = 0; c < round_up(columns, ops_.lanes); ++c) {
                *to++ = element(tap, group, k, first + c, volume);
              }
            }
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

void DirectConv::compute_part(const BlockOps& ops, const void* packed, int64_t phase, const ConvInput& input,
                              const AxisRun (&run)[3], const Taps (&taps)[3], float* output,
                              const Extents& output_step, void* scratch) const {
  const auto e = geometry_.phase(phase);
  Extents pitch = pitch_of(input);  // of elements
  for (int64_t& p : pitch) p /= pair_;
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
  const float* in0 = static_cast<const float*>(input.data);
  Extents in_step, out_step;
  for (int axis = 0; axis < 3; ++axis) {
    in_step[axis] = shape_.step[axis] * pitch[axis];
    in0 += run[axis].j * in_step[axis] - input.box.lo[axis] * pitch[axis];
    output += run[axis].first * output_step[axis];
    out_step[axis] = run[axis].every * output_step[axis];
  }
  const int64_t positions = run[0].count * run[1].count * run[2].count;

  BlockProduct p;
  p.offsets = offsets;
  p.segments = segments;
  p.depth = depth_;
  p.weights = static_cast<const float*>(packed) + phase_offset_[phase];
  int64_t* skips = order + max_taps_;
  p.skips = skips;
  for_panels([&](int64_t group, int64_t first, int64_t columns) {
    p.columns = static_cast<int>(columns);
    const int64_t tap_floats = depth_ * round_up(columns, ops_.lanes);
    for (int64_t s = 0; s < segments; ++s)
      skips[s] = (order[s] - (s > 0 ? order[s - 1] + 1 : 0)) * tap_floats;
    int64_t d = 0, h = 0, w = 0;
    const float* in = in0 + group * depth_;
    float* out = output + group * columns_ + first;
    for (int64_t done = 0; done < positions;) {
      const int64_t rows = std::min<int64_t>(kBlockRows, positions - done);
      for (int64_t r = 0; r < rows; ++r) {
        p.rows[r] = in;
        p.out[r] = out;
        in += in_step[2];
        out += out_step[2];
        if (++w < run[2].count) continue;
        w = 0;
        if (++h == run[1].count) h = 0, ++d;
        in = in0 + d * in_step[0] + h * in_step[1] + group * depth_;
        out = output + d * out_step[0] + h * out_step[1] + group * columns_ + first;
      }
      ops.product[rows - 1](p);
      done += rows;
    }
    p.weights += this->taps(phase) * tap_floats;
  });
}

double DirectConv::products_per_output() const {
  double all = 0;
  for (int64_t i = 0; i < geometry_.phases(); ++i) all += static_cast<double>(taps(i));
  return all / static_cast<double>(geometry_.phases());
}

std::string DirectConv::describe() const {
  return fmt::format("direct {} sums, {} positions x {} channels in registers, {}, {:.4g} products an output",
                     pair_ == 1 ? "float32" : "bfloat16 dot product", kBlockRows,
                     ops_.panel_vectors * ops_.lanes, ops_.name, products_per_output());
}

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
