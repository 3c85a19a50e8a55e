#pragma once
// For tests of the CUDA engine's index arithmetic on the CPU: what lies where in the copy of the input, and
// random convolutions.
#include <algorithm>
#include <random>

#include "engine/cuda/kernels/index.h"
#include "engine/cuda/schedule/depth_streaming.h"
#include "engine/cuda/schedule/line_by_line.h"
#include "engine/cuda/schedule/whole_lines.h"

namespace upweave::cuda::testing {

// The constants that kernels get, as variables.
struct G {
  static inline bool kBoxes, kByLine, kDepthStreaming;
  static inline int kM, kTilesPerPlane, kTilesAcross, kJd, kJh, kJw, kPitchD, kPitchH, kPitchW, kPlane,
      kLines, kWidth, kBatch, kRun, kSideBySide, kLinesBefore, kTiles, kCombineD, kWhole, kCOut, kPooledLines,
      kPooledWidth, kOwnLines, kRestSamples;
  static inline int64_t kPlaneBytes, kRest = 0;
  static void set(const Schedule& t) {
    const TileConstants c = t.constants();
    kBoxes = c.boxes;
    kByLine = c.by_line;
    kDepthStreaming = c.depth_streaming;
    kTiles = t.tiles;
    kM = t.m;
    kTilesPerPlane = t.tiles_per_plane;
    kTilesAcross = c.across;
    const auto& [d, h, w] = t.conv.axis;
    kJd = d.windows, kJh = h.windows, kJw = w.windows;
    kPitchD = d.pitch, kPitchH = h.pitch, kPitchW = w.pitch;
    kPlane = t.copy.plane;
    kLines = c.lines;
    kWidth = std::max(8, c.width);
    kBatch = t.conv.batch;
    kCOut = t.conv.c_out;
    kPlaneBytes = t.plane_bytes();
  }
  static void set(const WholeLines& t) {
    set(static_cast<const Schedule&>(t));
    kCombineD = t.window[0];
    kWhole = t.whole;
  }
  static void set(const LineByLine& t) {
    set(static_cast<const Schedule&>(t));
    const LineByLine::Divided divided = t.divided.value_or(LineByLine::Divided{});
    kPooledLines = divided.lines, kPooledWidth = divided.width;
    kOwnLines = divided.own_lines, kRestSamples = divided.samples;
  }
  static void set(const DepthStreaming& t) {
    set(static_cast<const Schedule&>(t));
    kRun = t.run;
    kSideBySide = t.side_by_side;
    kLinesBefore = t.lines_before;
  }
};

inline int64_t place(const Schedule& t, int n, const int (&i)[3]) {
  for (int a = 0; a < 3; ++a) {
    if (i[a] < 0 || i[a] >= t.conv.axis[a].in) return -1;
  }
  return ((static_cast<int64_t>(n) * t.conv.axis[0].in + i[0]) * t.conv.axis[1].in + i[1]) *
             t.conv.axis[2].in +
         i[2];
}

// What lies in row `row` of component `component` of the copy: an input voxel, or -1 for zeros.
inline int64_t content(const Schedule& t, int component, int64_t row) {
  const RowAt r = row_at(t, row);
  if (r.n < 0) return -1;
  const auto& [d, h, w] = t.conv.axis;
  const int b[3] = {component / (h.f * w.f), component / w.f % h.f, component % w.f};
  const int i[3] = {r.a[0] * d.f + b[0], r.a[1] * h.f + b[1], r.a[2] * w.f + b[2]};
  return place(t, r.n, i);
}

// Random extents, and an axis of a convolution with them.
struct Pick {
  std::mt19937 rng;
  int operator()(int lo, int hi) { return lo + static_cast<int>(rng() % static_cast<unsigned>(hi - lo + 1)); }
};
struct Extents {
  int in, kernel, stride, dilation, padding, more = 0;  // more outputs, or fewer
};
inline void add_axis(ConvGeometry& g, const Extents& x) {
  g.in.push_back(x.in);
  g.kernel.push_back(x.kernel);
  g.stride.push_back(x.stride);
  g.dilation.push_back(x.dilation);
  g.padding.push_back(x.padding);
  g.out.push_back(
      std::max(1, (x.in - 1) * x.stride - 2 * x.padding + x.dilation * (x.kernel - 1) + 1 + x.more));
}

inline ConvGeometry pick_channels(Pick& pick, int most_in, int most_out) {  // axes are added after
  ConvGeometry g;
  g.spatial = static_cast<size_t>(pick(1, 3));
  g.batch = pick(1, 3);
  g.c_in = pick(1, most_in);
  g.c_out = pick(1, most_out);
  return g;
}

}  // namespace upweave::cuda::testing
