#include "engine/cpu/conv/toom_kernel.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace upweave::cpu {

void ToomConv::compute(const void* packed, const ConvInput& input, const ConvOutput& output,
                       void* scratch) const {
  const float* base = static_cast<const float*>(packed);
  if (base[0] == 0) {
    direct_.compute(base + direct_at_, input, output, scratch);
    return;
  }
  int64_t first[3], end[3];  // tiles that the box touches
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t last = output.box.lo[axis] + (output.box.extent[axis] - 1) * output.box.step[axis];
    first[axis] = output.box.lo[axis] / shape_.stride[axis] / tile_[axis];
    end[axis] = last / shape_.stride[axis] / tile_[axis] + 1;
  }
  size_t bytes;
  const Call call = {base, input, output, carve(static_cast<float*>(scratch), &bytes)};
  direct_.clear_padding(output);
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    AxisRun run[3];
    if (!direct_phase_[i] || !phase_runs(geometry_, output.box, i, run)) continue;
    direct_.compute_phase(base + direct_at_, i, input, run, output.data, pitch_of(output),
                          call.buffer.direct);
  }
  Group g;
  const int64_t max_wide = std::min(max_group_, end[2] - first[2]), max_high = max_group_ / max_wide;
  for (g.d = first[0]; g.d < end[0]; ++g.d) {
    for (g.h0 = first[1]; g.h0 < end[1]; g.h0 += max_high) {
      for (g.w0 = first[2]; g.w0 < end[2]; g.w0 += max_wide) {
        g.high = std::min(max_high, end[1] - g.h0);
        g.wide = std::min(max_wide, end[2] - g.w0);
        g.rows = g.high * tile_[1] + geometry_.last_shift[1] - geometry_.first_shift[1];
        g.columns = g.wide * tile_[2] + geometry_.last_shift[2] - geometry_.first_shift[2];
        look_at(call, g);
        compute_group(call, g);
      }
    }
  }
}

void ToomConv::compute_group(const Call& call, const Group& group) const {
  Extents measured = {0, 0, 0};
  for (int64_t ed = 0; ed < shape_.stride[0]; ++ed) {
    std::optional<View> deep;
    for (int64_t eh = 0; eh < shape_.stride[1]; ++eh) {
      std::optional<View> view;
      for (int64_t ew = 0; ew < shape_.stride[2]; ++ew) {
        const int64_t phase = (ed * shape_.stride[1] + eh) * shape_.stride[2] + ew;
        AxisRun run[3];
        if (direct_phase_[phase] || !phase_runs(geometry_, call.output.box, phase, run)) continue;
        Patch all[kMaxGroup], direct[kMaxGroup];
        bool transforms = false;
        unfit_outputs(call, group, phase, measured, direct);
        for (int64_t t = 0; t < group.tiles(); ++t) {
          const bool zero = group.survey[t].state == State::kZero;
          if (!zero && direct[t].empty()) {
            transforms = true;
            continue;
          }
          all[t] = wanted(run, group.tile(t));
          direct[t] = common(all[t], direct[t]);
          transforms = transforms || (!zero && direct[t] != all[t]);
        }
        if (transforms) {
          const ToomResidue r[3] = {residue(0, ed), residue(1, eh), residue(2, ew)};
          if (!deep) deep = transform_depth(call, group, r[0]);
          if (!view) view = transform_height(call, group, r[0], r[1], *deep);
          multiply(call, group, r, *view, phase);
          store(call, group, r, run);
        }
        for (int64_t t = 0; t < group.tiles(); ++t) {
          if (!transforms && group.survey[t].state == State::kZero) clear(call, run, group.tile(t), all[t]);
          if (!direct[t].empty()) sum_directly(call, run, group.tile(t), direct[t], phase);
        }
      }
    }
  }
}

// The group's inputs, all rows and columns that any phase needs; `h` is between rows here, tile_row is not
// set.
ToomConv::View ToomConv::transform_depth(const Call& call, const Group& group,
                                         const ToomResidue& depth) const {
  const Box& box = call.input.box;
  const auto [plane, row, column] = pitch_of(call.input);
  const int64_t d = group.d * tile_[0] + geometry_.first_shift[0] + depth.window - box.lo[0];
  const int64_t h = group.h0 * tile_[1] + geometry_.first_shift[1] - box.lo[1];
  const int64_t w = group.w0 * tile_[2] + geometry_.first_shift[2] - box.lo[2];
  const float* from = static_cast<const float*>(call.input.data) + d * plane + h * row + w * column;
  if (depth.axis.plain()) return {from, plane, row, 0, column};

  const int64_t in = channels_in(), line = group.columns * in;
  for (int64_t y = 0; y < group.rows; ++y) {
    AxisPass pass = {from + y * row, call.buffer.t1 + y * line, plane, group.rows * line, in};
    if (column == in) {
      pass.count = line;
    } else {
      pass.repeat = group.columns, pass.from_next = column, pass.to_next = in;
    }
    ops_.input[depth.axis.points()](pass);
  }
  return {call.buffer.t1, group.rows * line, line, 0, in};
}

ToomConv::View ToomConv::transform_height(const Call& call, const Group& group, const ToomResidue& depth,
                                          const ToomResidue& height, const View& from) const {
  View view = from;
  view.data += height.window * from.h;
  view.tile_row = tile_[1] * from.h;
  if (height.axis.plain()) return view;

  const int64_t in = channels_in(), line = group.columns * in, depth_points = depth.axis.points();
  for (int64_t pd = 0; pd < depth_points; ++pd) {
    for (int64_t y = 0; y < group.high; ++y) {
      AxisPass pass = {view.data + pd * from.d + y * view.tile_row,
                       call.buffer.t2 + (pd * group.high + y) * line, from.h,
                       depth_points * group.high * line, in};
      if (from.column == in) {
        pass.count = line;
      } else {
        pass.repeat = group.columns, pass.from_next = from.column, pass.to_next = in;
      }
      ops_.input[height.axis.points()](pass);
    }
  }
  return {call.buffer.t2, group.high * line, depth_points * group.high * line, line, in};
}

// For each point ph and each block of tiles: transform along width, multiply, and invert along depth and
// width into M2. A block has as many tiles as a register block has rows, so that all of its values between T2
// and M2 stay in the first-level cache; the weights of a ph come from the second level for every block but
// the first.
void ToomConv::multiply(const Call& call, const Group& group, const ToomResidue (&r)[3], const View& view,
                        int64_t phase) const {
  const int64_t tiles = group.tiles(), in = channels_in(), out = channels_out(), ms = m2_step(tiles);
  const int64_t blocks = (tiles + kBlockRows - 1) / kBlockRows;
  const ToomAxis fd = r[0].axis, fh = r[1].axis, fw = r[2].axis;
  const int nd = fd.points(), nw = fw.points();
  const int64_t taken = fw.blocks(), point_floats = taken * shape_.c_in * out;
  const auto plane = fd.r == 1 || fw.r == 1 ? nullptr : ops_.output_plane[fd.m][nd][fw.m][nw];
  for (int ph = 0; ph < fh.points(); ++ph) {
    const float* weights = call.packed + phase_at_[phase] + ph * nw * nd * point_floats;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = tiles * block / blocks, rows = tiles * (block + 1) / blocks - first;
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t y = (first + i) / group.wide, x = (first + i) % group.wide;
        const float* from =
            view.data + ph * view.h + y * view.tile_row + (x * tile_[2] + r[2].window) * view.column;
        for (int64_t q = 0; q < taken; ++q) {
          const AxisPass pass = {from + q * fw.r * view.column,
                                 call.buffer.u + (i * taken + q) * in,
                                 view.column,
                                 nd * u_step(),
                                 in,
                                 nd,
                                 view.d,
                                 u_step()};
          if (fw.plain()) {
            ops_.copy(pass, nw);
          } else {
            ops_.input[nw](pass);
          }
        }
      }
      // An inverse that is the identity hands its destination to the step before it.
      float* m2 = call.buffer.m2 + ph * tile_[2] * tile_[0] * ms + first * out;
      float* m1 = fw.r == 1 ? m2 : call.buffer.m1;
      float* m0 = fd.r == 1 ? m1 : call.buffer.m0;
      const int64_t step1 = fw.r == 1 ? ms : m1_step(), step0 = fd.r == 1 ? step1 : m1_step();
      multiply_block(call.buffer.u, rows, taken, weights, nw * nd, m0, step0);
      if (plane) {
        plane({m0, m2, step0, nd * step0, ms, fd.m * ms, rows * out});
        continue;
      }
      if (fd.r != 1) ops_.output[fd.m][nd]({m0, m1, step0, step1, rows * out, nw, nd * step0, fd.m * step1});
      if (fw.r != 1) ops_.output[fw.m][nw]({m1, m2, fd.m * step1, fd.m * ms, rows * out, fd.m, step1, ms});
    }
  }
}

// A block's matrix products, rows x (blocks of taps x c_in) by as many x channels_out at each point.
void ToomConv::multiply_block(const float* u, int64_t rows, int64_t blocks, const float* weights,
                              int64_t points, float* m, int64_t m_step) const {
  const int64_t panel = block_.lanes * block_.panel_vectors;
  BlockProduct p;
  p.offsets = block_at_.data();
  p.skips = no_skips_.data();
  p.segments = blocks;
  p.depth = shape_.c_in;
  p.products = points;
  p.ahead = kWeightsAhead;
  p.rows_next = u_step();
  p.out_next = m_step;
  for (int64_t i = 0; i < rows; ++i) p.rows[i] = u + i * blocks * channels_in();
  for (int64_t first = 0; first < channels_out(); first += panel) {
    p.columns = static_cast<int>(std::min(panel, channels_out() - first));
    p.weights = weights;
    for (int64_t i = 0; i < rows; ++i) p.out[i] = m + i * channels_out() + first;
    block_.product[rows - 1](p);
    weights += points * blocks * shape_.c_in * p.columns;
  }
}

// Inverts along height, straight into the output where a tile is wholly wanted.
void ToomConv::store(const Call& call, const Group& group, const ToomResidue (&r)[3],
                     const AxisRun (&run)[3]) const {
  const int64_t out = channels_out(), ms = m2_step(group.tiles());
  const ToomAxis fh = r[1].axis;
  const Extents step = pitch_of(call.output);
  auto invert = [&](const float* from, float* to, int64_t to_h, int64_t to_w) {
    const AxisPass pass = {from, to, tile_[2] * tile_[0] * ms, to_h, out, tile_[2], tile_[0] * ms, to_w};
    if (fh.r == 1) {
      ops_.copy(pass, fh.m);
    } else {
      ops_.output[fh.m][fh.points()](pass);
    }
  };
  for (int64_t t = 0; t < group.tiles(); ++t) {
    const Extents tile = group.tile(t);
    const Patch part = wanted(run, tile);
    const bool whole =
        part.first[1] == 0 && part.end[1] == tile_[1] && part.first[2] == 0 && part.end[2] == tile_[2];
    for (int64_t id = part.first[0]; id < part.end[0]; ++id) {
      const float* from = call.buffer.m2 + id * ms + t * out;
      if (whole) {
        invert(from, place(call, run, tile, {id, 0, 0}), run[1].every * step[1], run[2].every * step[2]);
        continue;
      }
      invert(from, call.buffer.edge, tile_[2] * out, out);
      for (int64_t ih = part.first[1]; ih < part.end[1]; ++ih) {
        for (int64_t iw = part.first[2]; iw < part.end[2]; ++iw) {
          std::memcpy(place(call, run, tile, {id, ih, iw}), call.buffer.edge + (ih * tile_[2] + iw) * out,
                      out * sizeof(float));
        }
      }
    }
  }
}

// Where output i of a tile lies, of the phase that `run` describes.
float* ToomConv::place(const Call& call, const AxisRun (&run)[3], const Extents& tile,
                       const Extents& i) const {
  const Extents step = pitch_of(call.output);
  float* p = call.output.data;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t j = tile[axis] * tile_[axis] + i[axis];
    p += (run[axis].first + (j - run[axis].j) * run[axis].every) * step[axis];
  }
  return p;
}

}  // namespace upweave::cpu
