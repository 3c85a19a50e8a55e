// What a Toom-Cook kernel does about inputs that a transform would not do justice to: it looks at each
// position before, and leaves to direct sums the outputs that need them. What becomes of an output depends on
// the inputs of its tile and on the weights alone.
#include <cmath>

#include "engine/cpu/conv/toom_kernel.h"

namespace upweave::cpu {

ToomLimits ToomConv::limits(const Call& call, int64_t phase) const {
  const float* at = call.packed + kLimitsAt + kLimitFloats * phase;
  ToomLimits limits;
  std::copy_n(at, limits.cut.size(), limits.cut.begin());
  limits.spread = at[8];
  return limits;
}

// Measures every position of the group once, then takes each tile's extremes over its window: all positions
// that any phase reads. Those outside of the tensor are zero by right and count only as taps that are not
// there.
void ToomConv::look_at(const Call& call, Group& group) const {
  const Box& box = call.input.box;
  const auto [plane, row, column] = pitch_of(call.input);
  const Extents first = {group.d, group.h0, group.w0};
  Extents lo, window;  // of the group's first tile
  for (int axis = 0; axis < 3; ++axis) {
    lo[axis] = first[axis] * tile_[axis] + geometry_.first_shift[axis];
    window[axis] = tile_[axis] + geometry_.last_shift[axis] - geometry_.first_shift[axis];
  }
  const float* from = static_cast<const float*>(call.input.data) + (lo[0] - box.lo[0]) * plane +
                      (lo[1] - box.lo[1]) * row + (lo[2] - box.lo[2]) * column;
  float *sums = call.buffer.sums, *squares = call.buffer.squares;
  for (int64_t d = 0; d < window[0]; ++d) {
    for (int64_t y = 0; y < group.rows; ++y) {
      const int64_t at = (d * group.rows + y) * group.columns;
      ops_.measure(from + d * plane + y * row, channels_in(), column, group.columns, sums + at, squares + at);
    }
  }
  // The part of a window that lies in the tensor, counted from the group's first position.
  struct Part {
    int64_t first, end;
    bool whole;
  };
  auto real = [&](int axis, int64_t begin) {
    const Part part = {std::max(begin, -lo[axis]), std::min(begin + window[axis], shape_.in[axis] - lo[axis]),
                       true};
    return Part{part.first, part.end, part.end - part.first == window[axis]};
  };
  const Part deep = real(0, 0);
  for (int64_t y = 0; y < group.high; ++y) {
    const Part high = real(1, y * tile_[1]);
    const int64_t at = (deep.first * group.rows + high.first) * group.columns;
    const bool none = deep.first >= deep.end || high.first >= high.end;
    if (!none) {
      const Grid grid = {deep.end - deep.first, high.end - high.first, group.columns,
                         group.rows * group.columns, group.columns};
      ops_.extremes(sums + at, squares + at, grid, call.buffer.least, call.buffer.most);
    }
    for (int64_t x = 0; x < group.wide; ++x) {
      const Part wide = real(2, x * tile_[2]);
      Survey& survey = group.survey[y * group.wide + x];
      survey = {State::kZero, 0, 0};
      if (none || wide.first >= wide.end) continue;
      float least = HUGE_VALF;
      double most = 0;
      bool number = true;
      for (int64_t c = wide.first; c < wide.end; ++c) {
        least = std::min(least, call.buffer.least[c]);
        most = std::max<double>(most, call.buffer.most[c]);
        number = number && call.buffer.most[c] <= kLargest * kLargest;
      }
      survey.least = least;
      survey.root = static_cast<float>(std::sqrt(most));
      if (most == 0 && number) {  // or what is there has no square
        for (int64_t d = deep.first; d < deep.end; ++d) {
          for (int64_t h = high.first; h < high.end; ++h) {
            const float* line = sums + (d * group.rows + h) * group.columns;
            for (int64_t c = wide.first; c < wide.end; ++c) number = number && line[c] == 0;
          }
        }
        if (!number) survey.state = State::kUnfit;
      } else if (!number || most < kSmallest * kSmallest) {
        survey.state = State::kUnfit;
      } else if (!strict_ ||
                 (deep.whole && high.whole && wide.whole && double{least} * least >= call.packed[1] * most)) {
        survey.state = State::kFit;
      } else {
        survey.state = State::kDoubtful;
      }
    }
  }
}

// The outputs of a tile that the tensor has, of residue e.
int64_t ToomConv::outputs(int axis, int64_t e, int64_t tile) const {
  const int64_t all = (shape_.out[axis] - e + shape_.stride[axis] - 1) / shape_.stride[axis];
  return std::clamp<int64_t>(all - tile * tile_[axis], 0, tile_[axis]);
}

// How many taps of an output j read the tensor, along an axis: they are neighbours.
int64_t ToomConv::real_taps(int axis, int64_t e, int64_t j) const {
  const ToomResidue& r = residue(axis, e);
  const int64_t first = j + geometry_.first_shift[axis] + r.window;
  return std::max<int64_t>(0, std::min(first + r.axis.taps, shape_.in[axis]) - std::max<int64_t>(first, 0));
}

// Whether the least sum of a position and the most squares tell that all outputs are as exact as direct sums.
// From one border to the other real taps grow, stay and fall, so that the first or the last output of an axis
// has the fewest.
bool ToomConv::even_enough(const Group& group, int64_t t, int64_t phase, const ToomLimits& limit) const {
  const Survey& survey = group.survey[t];
  const Extents tile = group.tile(t);
  const auto e = geometry_.phase(phase);
  float taps = 1;
  size_t cut = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t n = outputs(axis, e[axis], tile[axis]), first = tile[axis] * tile_[axis];
    if (n == 0) return true;
    const int64_t fewest = std::min(real_taps(axis, e[axis], first), real_taps(axis, e[axis], first + n - 1));
    taps *= static_cast<float>(fewest);
    if (fewest < residue(axis, e[axis]).axis.taps) cut |= size_t{1} << axis;
  }
  return taps > 0 && survey.least >= limit.cut[cut] * survey.root &&
         taps * survey.least * survey.least >= limit.spread * survey.root * survey.root;
}

// The sums of positions; those outside of the tensor are no part of a field, nor of its least.
void ToomConv::ignore_outside(const Group& group, const float* sums, float* to) const {
  const Extents first = {group.d, group.h0, group.w0};
  const Extents n = {tile_[0] + geometry_.last_shift[0] - geometry_.first_shift[0], group.rows,
                     group.columns};
  int64_t begin[3], end[3];  // what lies in the tensor
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t lo = first[axis] * tile_[axis] + geometry_.first_shift[axis];
    begin[axis] = std::clamp<int64_t>(-lo, 0, n[axis]);
    end[axis] = std::clamp<int64_t>(shape_.in[axis] - lo, begin[axis], n[axis]);
  }
  std::fill_n(to, n[0] * n[1] * n[2], HUGE_VALF);
  for (int64_t d = begin[0]; d < end[0]; ++d) {
    for (int64_t h = begin[1]; h < end[1]; ++h) {
      const int64_t line = (d * n[1] + h) * n[2];
      std::copy(sums + line + begin[2], sums + line + end[2], to + line + begin[2]);
    }
  }
}

// At each position, over the box of positions that begins there and that an output of the phase reads;
// `measured` is the extent of the boxes that are there already.
void ToomConv::measure_fields(const Call& call, const Group& group, int64_t phase, Extents& measured) const {
  const auto e = geometry_.phase(phase);
  const Extents field = {residue(0, e[0]).axis.taps, residue(1, e[1]).axis.taps, residue(2, e[2]).axis.taps};
  if (field == measured) return;
  measured = field;
  const Buffers& b = call.buffer;
  const int64_t planes = tile_[0] + geometry_.last_shift[0] - geometry_.first_shift[0];
  const int64_t step[3] = {group.rows * group.columns, group.columns, 1};
  int64_t n = planes * step[0];
  ignore_outside(group, b.sums, b.field_least);
  for (int axis = 2; axis >= 0; --axis) {
    const int64_t r = field[axis];
    n -= (r - 1) * step[axis];
    if (r == 1 && axis != 2) continue;
    ops_.add_boxes(axis == 2 ? b.sums : b.field_sums, b.field_sums, n, step[axis], r);
    ops_.add_boxes(axis == 2 ? b.squares : b.field_squares, b.field_squares, n, step[axis], r);
    ops_.least_boxes(b.field_least, b.field_least, n, step[axis], r);
  }
}

// A box of a tile's outputs outside of which all are as exact as direct sums.
ToomConv::Patch ToomConv::uneven_outputs(const Call& call, const Group& group, int64_t t, int64_t phase,
                                         const ToomLimits& limit) const {
  const Extents tile = group.tile(t), first = {group.d, group.h0, group.w0};
  const auto e = geometry_.phase(phase);
  Extents at, n;  // the first position that the first output reads; outputs
  for (int axis = 0; axis < 3; ++axis) {
    at[axis] = (tile[axis] - first[axis]) * tile_[axis] + residue(axis, e[axis]).window;
    n[axis] = outputs(axis, e[axis], tile[axis]);
  }
  const float lowest = group.survey[t].least, root = group.survey[t].root;
  float taps[3][kMaxPoints],
      fewest[3];  // that read the tensor, of each output; and whether not all of them do
  size_t cut[3][kMaxPoints];
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t all = residue(axis, e[axis]).axis.taps;
    fewest[axis] = static_cast<float>(all);
    for (int64_t i = 0; i < n[axis]; ++i) {
      const int64_t real = real_taps(axis, e[axis], tile[axis] * tile_[axis] + i);
      taps[axis][i] = static_cast<float>(real);
      fewest[axis] = std::min(fewest[axis], taps[axis][i]);
      cut[axis][i] = real == all ? 0 : size_t{1} << axis;
    }
  }
  float share[8];  // of what is needed, by the least of a field
  bool sure[8];    // if that is the least of the tile
  for (size_t a = 0; a < 8; ++a) {
    float real = 1;
    for (int axis = 0; axis < 3; ++axis)
      real *= a >> axis & 1 ? fewest[axis] : static_cast<float>(residue(axis, e[axis]).axis.taps);
    share[a] = 1 / limit.cut[a];
    sure[a] = real > 0 && lowest * share[a] >= root && real * lowest * lowest >= limit.spread * root * root;
  }
  Patch patch = {{tile_[0], tile_[1], tile_[2]}, {0, 0, 0}};
  for (int64_t d = 0; d < n[0]; ++d) {
    for (int64_t h = 0; h < n[1]; ++h) {
      if (sure[cut[0][d] | cut[1][h] | cut[2][0] | cut[2][n[2] - 1]])
        continue;  // then of a row's others, too
      const int64_t line = ((at[0] + d) * group.rows + at[1] + h) * group.columns + at[2];
      for (int64_t w = 0; w < n[2]; ++w) {
        const size_t outside = cut[0][d] | cut[1][h] | cut[2][w];
        if (sure[outside]) continue;
        const float sum = call.buffer.field_sums[line + w], least = call.buffer.field_least[line + w];
        const float rest = sum - taps[0][d] * taps[1][h] * taps[2][w] * least;
        if (sum > 0 && least * share[outside] + rest * share[7] >= root &&
            sum * sum >= limit.spread * call.buffer.field_squares[line + w])
          continue;
        const int64_t i[3] = {d, h, w};
        for (int axis = 0; axis < 3; ++axis) {
          patch.first[axis] = std::min(patch.first[axis], i[axis]);
          patch.end[axis] = std::max(patch.end[axis], i[axis] + 1);
        }
      }
    }
  }
  return patch.empty() ? Patch{} : patch;
}

// What is left to direct sums in each of the group's tiles.
void ToomConv::unfit_outputs(const Call& call, const Group& group, int64_t phase, Extents& measured,
                             Patch* patches) const {
  const ToomLimits limit = limits(call, phase);
  for (int64_t t = 0; t < group.tiles(); ++t) {
    const State state = group.survey[t].state;
    if (state == State::kUnfit) {
      patches[t] = {{0, 0, 0}, {tile_[0], tile_[1], tile_[2]}};
    } else if (state == State::kDoubtful && limit.cut[0] > 0 && !even_enough(group, t, phase, limit)) {
      measure_fields(call, group, phase, measured);
      patches[t] = uneven_outputs(call, group, t, phase, limit);
    } else {
      patches[t] = {};
    }
  }
}

void ToomConv::clear(const Call& call, const AxisRun (&run)[3], const Extents& tile,
                     const Patch& patch) const {
  for (int64_t d = patch.first[0]; d < patch.end[0]; ++d) {
    for (int64_t h = patch.first[1]; h < patch.end[1]; ++h) {
      for (int64_t w = patch.first[2]; w < patch.end[2]; ++w)
        std::fill_n(place(call, run, tile, {d, h, w}), channels_out(), 0.0f);
    }
  }
}

// Nothing of a tile reaches its neighbours, which share no sum with it, so that its outputs may be written
// again.
void ToomConv::sum_directly(const Call& call, const AxisRun (&run)[3], const Extents& tile,
                            const Patch& patch, int64_t phase) const {
  AxisRun part[3];
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t skip = tile[axis] * tile_[axis] + patch.first[axis] - run[axis].j;
    part[axis] = {run[axis].first + skip * run[axis].every, run[axis].every,
                  patch.end[axis] - patch.first[axis], run[axis].j + skip};
  }
  direct_.compute_phase(call.packed + direct_at_, phase, call.input, part, call.output.data,
                        pitch_of(call.output), call.buffer.direct);
}

}  // namespace upweave::cpu
