// Toom-Cook convolution of a box of outputs: F(m, r) nested over the axes, each phase with its own tap counts
// r and all phases on one grid of tiles, which is anchored at output 0 so that an output's bits do not depend
// on the box.
//
// Outputs stride*j + residue of one residue are tiled by j. A group of tiles (one tile deep, several high and
// wide) goes through transforms along depth, height and width, then one small matrix product a point (tiles x
// c_in x c_out), then the inverse transforms along depth, width and height. Depth's input transform serves
// all phases of a depth residue, and height's serves all width residues. Within a point of height everything
// stays in the near caches:
//   T1[pd][row][column][ci]    T2[ph][pd][tile row][column][ci]           input, transformed along D, then H
//   U[pw][pd][tile][ci]        M0[pw][pd][tile][co]                       one ph: along W, then the products
//   M1[pw][id][tile][co]       M2[ph][iw][id][tile][co]                   inverse along D, then W; along H to
//   the output
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "engine/cpu/conv_block.h"
#include "engine/cpu/conv_direct.h"
#include "engine/cpu/conv_toom.h"

namespace upweave::cpu {
namespace {

// Rounding errors of a transform are relative to the largest value in it. Tiles whose largest input lies
// outside of these bounds (or is not a number) and weights of a channel that do are left to direct sums:
// inside them no intermediate value overflows, and none that matters is subnormal.
constexpr float kSmallest = 0x1p-60f, kLargest = 0x1p40f;
bool fits(double magnitude) { return magnitude == 0 || (magnitude >= kSmallest && magnitude <= kLargest); }

// A group's buffers should leave room for weights and outputs in a second-level cache of 1 MiB.
constexpr int64_t kGroupBytes = 448 << 10;
constexpr int64_t kMaxGroup = 32;

// Rows of neighbouring points are this many floats further apart than they need be, or their addresses would
// agree in the low 12 bits and compete for one cache set.
constexpr int64_t kSkew = 48;

struct ToomResidue {
  ToomAxis axis;
  int64_t window;  // first input of tile 0, counted from the geometry's first_shift
};

class ToomConv final : public ConvKernel {
 public:
  ToomConv(const ConvShape& shape, const Extents& tile);

  int64_t channels_in() const override { return round_up(shape_.c_in, 16); }
  int64_t channels_out() const override { return round_up(shape_.c_out, 16); }
  Extents granule() const override {
    return {shape_.stride[0] * tile_[0], shape_.stride[1] * tile_[1], shape_.stride[2] * tile_[2]};
  }
  Box input_box(const Box& output) const override { return cpu::input_box(geometry_, output, tile_); }
  size_t packed_bytes() const override { return static_cast<size_t>(packed_floats_) * sizeof(float); }
  void pack(const double* kernel, void* packed) const override;
  size_t scratch_bytes() const override;
  void compute(const void* packed, const ConvInput& input, const ConvOutput& output,
               void* scratch) const override;
  double products_per_output() const override;
  std::string describe() const override;

 private:
  struct Buffers {
    float *t1, *t2, *u, *m0, *m1, *m2, *edge;
    void* direct;
  };
  // A group of tiles, and where its inputs are.
  struct Group {
    int64_t d, h0, w0;      // tile indices
    int64_t high, wide;     // tiles
    int64_t rows, columns;  // inputs along height and width that any phase needs
    int64_t tiles() const { return high * wide; }
  };
  // Transformed input, wherever it lies: floats between depth points, height points, tile rows and columns.
  struct View {
    const float* data;
    int64_t d, h, tile_row, column;
  };
  struct Call {
    const float* packed;
    const ConvInput& input;
    const ConvOutput& output;
    Buffers buffer;
  };

  const ToomResidue& residue(int axis, int64_t e) const { return residues_[axis][e]; }
  int64_t points(int axis) const { return max_points_[axis]; }
  int64_t u_step(int64_t tiles) const { return tiles * channels_in() + kSkew; }
  int64_t m_step(int64_t tiles) const { return tiles * channels_out() + kSkew; }
  Buffers carve(float* scratch, size_t* bytes) const;

  void compute_group(const Call& call, const Group& group) const;
  View transform_depth(const Call& call, const Group& group, const ToomResidue& depth) const;
  View transform_height(const Call& call, const Group& group, const ToomResidue& depth,
                        const ToomResidue& height, const View& from) const;
  void multiply(const Call& call, const Group& group, const ToomResidue (&r)[3], const View& view,
                int64_t phase) const;
  void store(const Call& call, const Group& group, const ToomResidue (&r)[3], const AxisRun (&run)[3]) const;
  void repair(const Call& call, const Group& group, const ToomResidue (&r)[3], const AxisRun (&run)[3],
              int64_t phase) const;

  ConvShape shape_;
  Extents tile_;
  ConvGeometry geometry_;
  DirectConv direct_;
  const BlockOps& block_;
  const ToomOps& ops_;
  std::array<std::vector<ToomResidue>, 3> residues_;
  Extents max_points_ = {1, 1, 1};
  int64_t max_group_ = 1;
  // Packed: a flag (are the weights fit for transforms?), the direct kernel's form, then for each phase and
  // its points ph, pw, pd and each panel of output channels, c_in x width.
  int64_t direct_at_ = 16, packed_floats_ = 0;
  std::vector<int64_t> phase_at_;
};

ToomConv::ToomConv(const ConvShape& shape, const Extents& tile)
    : shape_(shape),
      tile_(tile),
      geometry_(shape),
      direct_(shape, cpu::block_ops(), 1),
      block_(cpu::block_ops()),
      ops_(toom_ops()) {
  if (shape.groups != 1) throw fail(Status::kUnsupported, "no transform for {} groups", shape.groups);
  for (int axis = 0; axis < 3; ++axis) {
    for (const Residue& residue : geometry_.residues[axis]) {
      const ToomAxis f = {static_cast<int>(tile[axis]), static_cast<int>(residue.taps.size())};
      for (size_t i = 1; i < residue.taps.size(); ++i) {
        if (residue.taps[i - 1].shift - residue.taps[i].shift != 1) {
          throw fail(Status::kUnsupported, "no transform for taps {} inputs apart",
                     residue.taps[i - 1].shift - residue.taps[i].shift);
        }
      }
      const bool served = f.r > 0 && f.points() <= kMaxPoints && (f.r == 1 || ops_.output[f.m][f.points()]);
      if (!served) throw fail(Status::kUnsupported, "no transform F({}, {})", f.m, f.r);
      residues_[axis].push_back({f, residue.taps.back().shift - geometry_.first_shift[axis]});
      max_points_[axis] = std::max<int64_t>(max_points_[axis], f.points());
    }
  }
  packed_floats_ = direct_at_ + round_up(static_cast<int64_t>(direct_.packed_bytes() / sizeof(float)), 16);
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    const auto e = geometry_.phase(i);
    phase_at_.push_back(packed_floats_);
    int64_t n = 1;
    for (int axis = 0; axis < 3; ++axis) n *= residue(axis, e[axis]).axis.points();
    packed_floats_ += n * shape.c_in * channels_out();
  }
  for (max_group_ = kMaxGroup; max_group_ > 6; --max_group_) {
    size_t bytes;
    carve(nullptr, &bytes);
    if (bytes <= kGroupBytes) break;
  }
}

// Lays the buffers of the largest group one after the other; `bytes` receives their sum.
ToomConv::Buffers ToomConv::carve(float* scratch, size_t* bytes) const {
  // A group may be as wide as it has tiles, or as high.
  int64_t positions = 0, line = 0;
  for (int64_t high = 1; high <= max_group_; ++high) {
    const int64_t wide = max_group_ / high;
    const int64_t columns = wide * tile_[2] + geometry_.last_shift[2] - geometry_.first_shift[2];
    const int64_t rows = high * tile_[1] + geometry_.last_shift[1] - geometry_.first_shift[1];
    positions = std::max(positions, rows * columns);
    line = std::max(line, high * columns);
  }
  const int64_t in = channels_in();
  int64_t at = 0;
  auto take = [&](int64_t floats) {
    float* p = scratch ? scratch + at : nullptr;
    at += round_up(floats, 16);
    return p;
  };
  Buffers b;
  b.t1 = take(points(0) * positions * in);
  b.t2 = take(points(1) * points(0) * line * in);
  b.u = take(points(2) * points(0) * u_step(max_group_));
  b.m0 = take(points(2) * points(0) * m_step(max_group_));
  b.m1 = take(points(2) * tile_[0] * m_step(max_group_));
  b.m2 = take(points(1) * tile_[2] * tile_[0] * m_step(max_group_));
  b.edge = take(tile_[1] * tile_[2] * channels_out());
  b.direct = take(static_cast<int64_t>(direct_.scratch_bytes() / sizeof(float)));
  *bytes = static_cast<size_t>(at) * sizeof(float);
  return b;
}

size_t ToomConv::scratch_bytes() const {
  size_t bytes;
  carve(nullptr, &bytes);
  return bytes;
}

void ToomConv::pack(const double* kernel, void* packed) const {
  float* base = static_cast<float*>(packed);
  std::fill(base, base + packed_floats_, 0.0f);
  direct_.pack(kernel, base + direct_at_);
  const Extents& size = shape_.kernel;
  const int64_t volume = size[0] * size[1] * size[2], c_out = shape_.c_out;
  bool fit = true;
  for (int64_t co = 0; co < c_out && fit; ++co) {
    double most = 0;
    for (int64_t ci = 0; ci < shape_.c_in; ++ci) {
      for (int64_t k = 0; k < volume; ++k) {
        const double w = std::abs(kernel[(ci * c_out + co) * volume + k]);
        most = w > most || std::isnan(w) ? w : most;
      }
    }
    fit = fits(most);
  }
  base[0] = fit ? 1.0f : 0.0f;
  if (!fit) return;

  const int64_t panel = block_.lanes * block_.panel_vectors;
  std::vector<double> a(kMaxPoints * kMaxPoints * kMaxPoints * c_out), b(a.size());
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    const auto e = geometry_.phase(i);
    const ToomAxis f[3] = {residue(0, e[0]).axis, residue(1, e[1]).axis, residue(2, e[2]).axis};
    int64_t extent[3] = {f[0].r, f[1].r, f[2].r};
    for (int64_t ci = 0; ci < shape_.c_in; ++ci) {
      // a[taps][co], the last tap first: shifts fall as taps rise, and a correlation reads forward.
      for (int64_t t = 0; t < extent[0] * extent[1] * extent[2]; ++t) {
        const int64_t at[3] = {t / (f[1].r * f[2].r), t / f[2].r % f[1].r, t % f[2].r};
        int64_t k = 0;
        for (int axis = 0; axis < 3; ++axis) {
          k = k * size[axis] + geometry_.residues[axis][e[axis]].taps[f[axis].r - 1 - at[axis]].k;
        }
        for (int64_t co = 0; co < c_out; ++co) a[t * c_out + co] = kernel[(ci * c_out + co) * volume + k];
      }
      int64_t n[3] = {f[0].r, f[1].r, f[2].r};
      for (int axis = 0; axis < 3; ++axis) {  // G along each axis
        const int64_t before = axis == 0 ? 1 : n[0] * (axis == 1 ? 1 : n[1]);
        const int64_t after = (axis == 2 ? 1 : n[2] * (axis == 1 ? 1 : n[1])) * c_out;
        const int to = f[axis].points(), from = f[axis].r;
        for (int64_t o = 0; o < before; ++o) {
          for (int p = 0; p < to; ++p) {
            double* y = b.data() + (o * to + p) * after;
            std::fill(y, y + after, 0.0);
            for (int j = 0; j < from; ++j) {
              const double g = f[axis].g(p, j);
              const double* x = a.data() + (o * from + j) * after;
              for (int64_t c = 0; c < after; ++c) y[c] += g * x[c];
            }
          }
        }
        n[axis] = to;
        std::swap(a, b);
      }
      for (int64_t ph = 0; ph < n[1]; ++ph) {
        for (int64_t pw = 0; pw < n[2]; ++pw) {
          for (int64_t pd = 0; pd < n[0]; ++pd) {
            float* point =
                base + phase_at_[i] + ((ph * n[2] + pw) * n[0] + pd) * shape_.c_in * channels_out();
            const double* from = a.data() + ((pd * n[1] + ph) * n[2] + pw) * c_out;
            for (int64_t co = 0; co < c_out; ++co) {
              const int64_t first = co / panel * panel, width = std::min(panel, channels_out() - first);
              point[first * shape_.c_in + ci * width + co - first] = static_cast<float>(from[co]);
            }
          }
        }
      }
    }
  }
}

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
  Group g;
  const int64_t max_wide = std::min(max_group_, end[2] - first[2]), max_high = max_group_ / max_wide;
  for (g.d = first[0]; g.d < end[0]; ++g.d) {
    for (g.h0 = first[1]; g.h0 < end[1]; g.h0 += max_high) {
      for (g.w0 = first[2]; g.w0 < end[2]; g.w0 += max_wide) {
        g.high = std::min(max_high, end[1] - g.h0);
        g.wide = std::min(max_wide, end[2] - g.w0);
        g.rows = g.high * tile_[1] + geometry_.last_shift[1] - geometry_.first_shift[1];
        g.columns = g.wide * tile_[2] + geometry_.last_shift[2] - geometry_.first_shift[2];
        compute_group(call, g);
      }
    }
  }
}

void ToomConv::compute_group(const Call& call, const Group& group) const {
  AxisRun run[3];
  auto runs = [&](int axis, int64_t e) {
    run[axis] = axis_run(call.output.box, axis, shape_.stride[axis], e);
    return run[axis].count > 0;
  };
  for (int64_t ed = 0; ed < shape_.stride[0]; ++ed) {
    if (!runs(0, ed)) continue;
    const View deep = transform_depth(call, group, residue(0, ed));
    for (int64_t eh = 0; eh < shape_.stride[1]; ++eh) {
      if (!runs(1, eh)) continue;
      const View view = transform_height(call, group, residue(0, ed), residue(1, eh), deep);
      for (int64_t ew = 0; ew < shape_.stride[2]; ++ew) {
        if (!runs(2, ew)) continue;
        const ToomResidue r[3] = {residue(0, ed), residue(1, eh), residue(2, ew)};
        const int64_t phase = (ed * shape_.stride[1] + eh) * shape_.stride[2] + ew;
        multiply(call, group, r, view, phase);
        store(call, group, r, run);
        repair(call, group, r, run, phase);
      }
    }
  }
}

// The group's inputs, all rows and columns that any phase needs; `h` is between rows here, tile_row is not
// set.
ToomConv::View ToomConv::transform_depth(const Call& call, const Group& group,
                                         const ToomResidue& depth) const {
  const Box& box = call.input.box;
  const int64_t ld = call.input.ld, row = box.extent[2] * ld, plane = box.extent[1] * row;
  const int64_t d = group.d * tile_[0] + geometry_.first_shift[0] + depth.window - box.lo[0];
  const int64_t h = group.h0 * tile_[1] + geometry_.first_shift[1] - box.lo[1];
  const int64_t w = group.w0 * tile_[2] + geometry_.first_shift[2] - box.lo[2];
  const float* from = static_cast<const float*>(call.input.data) + d * plane + h * row + w * ld;
  if (depth.axis.plain()) return {from, plane, row, 0, ld};

  const int64_t in = channels_in(), line = group.columns * in;
  for (int64_t y = 0; y < group.rows; ++y) {
    AxisPass pass = {from + y * row, call.buffer.t1 + y * line, plane, group.rows * line, in};
    if (ld == in) {
      pass.count = line;
    } else {
      pass.repeat = group.columns, pass.from_next = ld, pass.to_next = in;
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

// For each point ph: transform along width, multiply, and invert along depth and width into M2.
void ToomConv::multiply(const Call& call, const Group& group, const ToomResidue (&r)[3], const View& view,
                        int64_t phase) const {
  const int64_t tiles = group.tiles(), in = channels_in(), out = channels_out();
  const int64_t us = u_step(tiles), ms = m_step(tiles);
  const ToomAxis fd = r[0].axis, fh = r[1].axis, fw = r[2].axis;
  const int nd = fd.points(), nw = fw.points();
  const int64_t panel = block_.lanes * block_.panel_vectors;
  const int64_t zero = 0;
  const float* weights = call.packed + phase_at_[phase];
  for (int ph = 0; ph < fh.points(); ++ph) {
    for (int pd = 0; pd < nd; ++pd) {
      for (int64_t y = 0; y < group.high; ++y) {
        const AxisPass pass = {
            view.data + ph * view.h + pd * view.d + y * view.tile_row + r[2].window * view.column,
            call.buffer.u + pd * us + y * group.wide * in,
            view.column,
            nd * us,
            in,
            group.wide,
            tile_[2] * view.column,
            in};
        if (fw.plain()) {
          ops_.copy(pass, nw);
        } else {
          ops_.input[nw](pass);
        }
      }
    }

    // Each inverse that is the identity passes its destination on to the step before it.
    float* m2 = call.buffer.m2 + ph * tile_[2] * tile_[0] * ms;
    float* m1 = fw.r == 1 ? m2 : call.buffer.m1;
    float* m0 = fd.r == 1 ? m1 : call.buffer.m0;
    BlockProduct p;
    p.offsets = &zero;
    p.segments = 1;
    p.depth = shape_.c_in;
    p.accumulate = false;
    for (int point = 0; point < nw * nd; ++point) {
      for (int64_t first = 0; first < out; first += panel) {
        p.columns = static_cast<int>(std::min(panel, out - first));
        p.weights = weights;
        for (int64_t t = 0; t < tiles; t += kBlockRows) {
          const int64_t rows = std::min<int64_t>(kBlockRows, tiles - t);
          for (int64_t i = 0; i < rows; ++i) {
            p.rows[i] = call.buffer.u + point * us + (t + i) * in;
            p.out[i] = m0 + point * ms + (t + i) * out + first;
          }
          block_.product[rows - 1](p);
        }
        weights += shape_.c_in * p.columns;
      }
    }
    if (fd.r != 1) {
      ops_.output[fd.m][nd]({m0, m1, ms, ms, tiles * out, nw, nd * ms, fd.m * ms});
    }
    if (fw.r != 1) {
      ops_.output[fw.m][nw]({m1, m2, fd.m * ms, fd.m * ms, tiles * out, fd.m, ms, ms});
    }
  }
}

// The part of a tile's m outputs that the box asks for: [first, end).
struct Part {
  int64_t first, end;
  Part(const AxisRun& run, int64_t tile, int64_t m)
      : first(std::max<int64_t>(0, run.j - tile * m)), end(std::min(m, run.j + run.count - tile * m)) {}
  bool whole(int64_t m) const { return first == 0 && end == m; }
};

// Inverts along height, straight into the output where a tile is wholly wanted.
void ToomConv::store(const Call& call, const Group& group, const ToomResidue (&r)[3],
                     const AxisRun (&run)[3]) const {
  const int64_t out = channels_out(), ms = m_step(group.tiles());
  const ToomAxis fh = r[1].axis;
  const Extents step = output_steps(call.output);
  auto invert = [&](const float* from, float* to, int64_t to_h, int64_t to_w) {
    const AxisPass pass = {from, to, tile_[2] * tile_[0] * ms, to_h, out, tile_[2], tile_[0] * ms, to_w};
    if (fh.r == 1) {
      ops_.copy(pass, fh.m);
    } else {
      ops_.output[fh.m][fh.points()](pass);
    }
  };
  const Part deep(run[0], group.d, tile_[0]);
  for (int64_t y = 0; y < group.high; ++y) {
    const Part high(run[1], group.h0 + y, tile_[1]);
    for (int64_t x = 0; x < group.wide; ++x) {
      const Part wide(run[2], group.w0 + x, tile_[2]);
      for (int64_t id = deep.first; id < deep.end; ++id) {
        const float* from = call.buffer.m2 + id * ms + (y * group.wide + x) * out;
        auto position = [&](int64_t ih, int64_t iw) {
          const int64_t i[3] = {group.d * tile_[0] + id, (group.h0 + y) * tile_[1] + ih,
                                (group.w0 + x) * tile_[2] + iw};
          float* p = call.output.data;
          for (int axis = 0; axis < 3; ++axis) {
            p += (run[axis].first + (i[axis] - run[axis].j) * run[axis].every) * step[axis];
          }
          return p;
        };
        if (high.whole(tile_[1]) && wide.whole(tile_[2])) {
          invert(from, position(0, 0), run[1].every * step[1], run[2].every * step[2]);
          continue;
        }
        invert(from, call.buffer.edge, tile_[2] * out, out);
        for (int64_t ih = high.first; ih < high.end; ++ih) {
          for (int64_t iw = wide.first; iw < wide.end; ++iw) {
            std::memcpy(position(ih, iw), call.buffer.edge + (ih * tile_[2] + iw) * out, out * sizeof(float));
          }
        }
      }
    }
  }
}

// Tiles that no transform may touch: computes their outputs again, directly. Nothing of them reached their
// neighbours, since a tile shares no sum with another.
void ToomConv::repair(const Call& call, const Group& group, const ToomResidue (&r)[3],
                      const AxisRun (&run)[3], int64_t phase) const {
  const Box& box = call.input.box;
  const int64_t ld = call.input.ld;
  const int64_t step[3] = {box.extent[1] * box.extent[2] * ld, box.extent[2] * ld, ld};
  const int n[3] = {r[0].axis.points(), r[1].axis.points(), r[2].axis.points()};
  for (int64_t t = 0; t < group.tiles(); ++t) {
    const int64_t tile[3] = {group.d, group.h0 + t / group.wide, group.w0 + t % group.wide};
    const float* window = static_cast<const float*>(call.input.data);
    for (int axis = 0; axis < 3; ++axis) {
      window += (tile[axis] * tile_[axis] + geometry_.first_shift[axis] + r[axis].window - box.lo[axis]) *
                step[axis];
    }
    if (fits(ops_.magnitude(window, n, step, channels_in()))) continue;
    AxisRun part[3];
    bool any = true;
    for (int axis = 0; axis < 3; ++axis) {
      const Part wanted(run[axis], tile[axis], tile_[axis]);
      const int64_t skip = tile[axis] * tile_[axis] + wanted.first - run[axis].j;
      part[axis] = {run[axis].first + skip * run[axis].every, run[axis].every, wanted.end - wanted.first,
                    run[axis].j + skip};
      any = any && part[axis].count > 0;
    }
    if (!any) continue;
    direct_.compute_phase(call.packed + direct_at_, phase, call.input, part, call.output.data,
                          output_steps(call.output), call.buffer.direct);
  }
}

double ToomConv::products_per_output() const {
  double all = 1;
  for (int axis = 0; axis < 3; ++axis) {
    double points_of_all = 0;
    for (const ToomResidue& r : residues_[axis]) points_of_all += r.axis.points();
    all *= points_of_all / static_cast<double>(shape_.stride[axis] * tile_[axis]);
  }
  return all;
}

std::string ToomConv::describe() const {
  std::string axes;
  for (int axis = 0; axis < 3; ++axis) {
    if (shape_.kernel[axis] == 1 && tile_[axis] == 1) continue;
    std::string of_axis;
    for (const ToomResidue& r : residues_[axis]) {
      const std::string f = fmt::format("F({},{})", r.axis.m, r.axis.r);
      if (of_axis.find(f) == std::string::npos) of_axis += (of_axis.empty() ? "" : "|") + f;
    }
    axes += (axes.empty() ? "" : " x ") + of_axis;
  }
  std::string finite;
  for (int64_t n = 3; n <= kMaxPoints; ++n) {
    bool used = false;
    for (const auto& axis : residues_) {
      for (const ToomResidue& r : axis) used = used || (!r.axis.plain() && r.axis.points() == n);
    }
    if (!used) continue;
    finite += finite.empty() ? "points " : "; ";
    for (int p = 0; p < n - 1; ++p) {
      const double x = toom_point(static_cast<int>(n), p);
      if (x >= 0) finite += fmt::format("{}{}, ", x > 0 ? "+-" : "", x);
    }
    finite += "inf";
  }
  return fmt::format("Toom-Cook {}, {}, {}, {:.4g} products an output ({:.3g} direct)", axes, finite,
                     block_.name, products_per_output(), direct_.products_per_output());
}

}  // namespace

std::unique_ptr<ConvKernel> make_toom_conv(const ConvShape& shape, const Extents& tile) {
  return std::make_unique<ToomConv>(shape, tile);
}

}  // namespace upweave::cpu
