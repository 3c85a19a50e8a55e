#pragma once
// Index arithmetic that host and device share: compiled here for the tests, and as text for the kernels. G
// holds a tiling's constants (see geometry_text in conv_text.cpp); here it is any class with members of those
// names.
#define UPWEAVE_HOST_AND_DEVICE(name, ...) \
  __VA_ARGS__                              \
  inline const char name[] = #__VA_ARGS__;
#define DEVICE inline

namespace upweave::cuda::index {

// clang-format off
UPWEAVE_HOST_AND_DEVICE(kText,
struct Row {
  int n, jd, jh, jw;
  bool ok;
};

// The first row of tile `tile` in the copy, and the tile's sample and window.
template <class G> DEVICE int tile_row(int tile) {
  if (!G::kBoxes && !G::kLines) return tile * G::kM;
  const int plane = tile / G::kTilesPerPlane, block = tile % G::kTilesPerPlane;
  const int n = plane / G::kJd, jd = plane % G::kJd;
  return (n * G::kPitchD + jd) * G::kPlane + block / G::kTilesAcross * G::kLines * G::kPitchW + block % G::kTilesAcross * G::kWidth;
}
// Rows from the tile's first to piece q's first.
template <class G> DEVICE int piece_row(int q) {
  if (!G::kBoxes) return 64 * q;
  return (q / (G::kWidth / 8)) * 8 * G::kPitchW + (q % (G::kWidth / 8)) * 8;
}
// Row i < 64 of piece q of a tile, as a window of the output.
template <class G> DEVICE Row row_of(int tile, int q, int i) {
  Row r;
  if (G::kSwept) {
    const int plane = tile / G::kTilesPerPlane, block = tile % G::kTilesPerPlane;
    r.n = plane / G::kJd;
    r.jd = plane % G::kJd;
    r.jh = block / G::kTilesAcross * G::kLines + q / (G::kWidth / 16) * 4 + i / 16;
    r.jw = block % G::kTilesAcross * G::kWidth + q % (G::kWidth / 16) * 16 + i % 8 * 2 + i / 8 % 2;
  } else if (G::kBoxes) {
    const int plane = tile / G::kTilesPerPlane, block = tile % G::kTilesPerPlane;
    r.n = plane / G::kJd;
    r.jd = plane % G::kJd;
    r.jh = block / G::kTilesAcross * G::kLines + (q / (G::kWidth / 8)) * 8 + i / 8;
    r.jw = block % G::kTilesAcross * G::kWidth + (q % (G::kWidth / 8)) * 8 + i % 8;
  } else if (G::kByLine) {
    const int rest = tile % G::kTilesPerPlane * G::kM + 64 * q + i;
    r.n = 0;
    r.jd = tile / G::kTilesPerPlane;
    r.jh = rest / G::kPitchW;
    r.jw = rest % G::kPitchW;
  } else if (G::kLines) {
    const int plane = tile / G::kTilesPerPlane, rest = tile % G::kTilesPerPlane * G::kM + 64 * q + i;
    r.n = plane / G::kJd;
    r.jd = plane % G::kJd;
    r.jh = rest / G::kPitchW;
    r.jw = rest % G::kPitchW;
  } else {
    const int row = tile * G::kM + 64 * q + i, plane = row / G::kPlane, rest = row % G::kPlane;
    r.n = plane / G::kPitchD;
    r.jd = plane % G::kPitchD;
    r.jh = rest / G::kPitchW;
    r.jw = rest % G::kPitchW;
  }
  r.ok = r.n < G::kBatch && r.jd < G::kJd && r.jh < G::kJh && r.jw < G::kJw;
  return r;
}

// Whole lines: a unit is kJoinD tiles that lie behind one another, all that a window of the second pool needs of the depth.
// The first kWhole units have a block each; of the others each tile has one, and leaves its part of the windows in memory.
struct Unit {
  int number, first, end;  // its tiles from the block's first
  bool whole;
};
template <class G> DEVICE Unit whole_unit(int number) {
  const int depths = (G::kJd + G::kJoinD - 1) / G::kJoinD, left = G::kJd - number / G::kTilesPerPlane % depths * G::kJoinD;
  return {number, 0, left < G::kJoinD ? left : G::kJoinD, true};
}
template <class G> DEVICE Unit unit_of(int block) {
  if (block < G::kWhole) return whole_unit<G>(block);
  const int rest = block - G::kWhole;
  Unit u = whole_unit<G>(G::kWhole + rest / G::kJoinD);
  u.first = rest % G::kJoinD;
  u.end = u.first < u.end ? u.first + 1 : u.first;
  u.whole = false;
  return u;
}
// A unit's first tile; from one to the next it is kTilesPerPlane.
template <class G> DEVICE int unit_tile(int number) {
  const int depths = (G::kJd + G::kJoinD - 1) / G::kJoinD, plane = number / G::kTilesPerPlane;
  return (plane / depths * G::kJd + plane % depths * G::kJoinD) * G::kTilesPerPlane + number % G::kTilesPerPlane;
}

// Sweeps: a block's jobs are tiles, first all depths of one column, then of the next.
template <class G> DEVICE int job_tile(int job) {
  const int column = job / G::kJd, jd = job % G::kJd;
  return (column / G::kTilesPerPlane * G::kJd + jd) * G::kTilesPerPlane + column % G::kTilesPerPlane;
}
// A block's jobs: runs of kRun depths of one column at most, with `skip` jobs of others between them. A tile reads
// `planes` planes; those of the block have numbers in the order of their use, each run its own.
template <class G> struct Walk {
  int first, count, skip, planes;

  DEVICE int runs(int k) const { return (unsigned)(first % G::kRun + k) / G::kRun; }  // before the one that job k is in
  DEVICE int job(int k) const { return first + k + runs(k) * skip; }
  DEVICE int plane(int k) const { return k + runs(k) * (planes - 1); }  // the lowest that job k reads
  DEVICE int rest_of_run(int k) const {  // jobs from k on
    const int rest = G::kRun - (first + k) % G::kRun;
    return rest < count - k ? rest : count - k;
  }
};
// Block b of `blocks`: each has a part of the jobs to itself, or all go through them side by side, run by run.
template <class G> DEVICE Walk<G> walk_of(int block, int blocks, int job0, int jobs, int planes) {
  if (G::kAbreast) return {job0 + block * G::kRun, (jobs / G::kRun - block + blocks - 1) / blocks * G::kRun, (blocks - 1) * G::kRun, planes};
  const int first = (int)(1ll * block * jobs / blocks), end = (int)((block + 1ll) * jobs / blocks);
  return {job0 + first, end - first, 0, planes};
}
// Block b of `blocks` has jobs b jobs/blocks and on. Which one has that job:
DEVICE int block_of_job(int job, int jobs, int blocks) {
  return (int)(((job + 1ll) * blocks + jobs - 1) / jobs) - 1;
}
// Rows from a plane's first to piece q's first, in a view of `pairs` pairs a line.
template <class G> DEVICE int pair_row(int q, int pairs) {
  return q / (G::kWidth / 16) * 8 * pairs + q % (G::kWidth / 16) * 8;
}
// Where the views of the copy have the first line and pair that a column's tiles read.
struct PairAt {
  int line, pair;
};
template <class G> DEVICE PairAt column_at(int column, int depth, int line) {
  const int block = column % G::kTilesPerPlane;
  PairAt p;
  p.line = (column / G::kTilesPerPlane * G::kPitchD + depth) * G::kPitchH + block / G::kTilesAcross * G::kLines + line + G::kLinesBefore;
  p.pair = block % G::kTilesAcross * (G::kWidth / 2);
  return p;
}

// By line, where pooled float32 values are divided (see divide_lines): where those of 16 channels of a sample and line begin,
// [window][channel], as bytes into the output's memory or into the workspace.
template <class G> DEVICE bool own_line(int line) { return line < G::kOwnLines; }
template <class G> DEVICE long long own_at(int n, int block, int line) {
  return ((long long)(n * (G::kCOut / 16) + block) * G::kPooledLines + 2 * line) * (G::kPooledWidth * 32);
}
template <class G> DEVICE long long rest_at(int n, int block, int line) {
  const long long row = (long long)(line - G::kOwnLines) * G::kRestSamples + n % G::kRestSamples;
  return G::kRest + n / G::kRestSamples * G::kPlaneBytes + (row * (G::kCOut / 16) + block) * (G::kPooledWidth * 64);
}

// How values become fp16: hi = x 2^shift, and lo = (x 2^shift - hi) 2^lo where they are split.
struct Fitting {
  int shift, lo;
  bool again, fails;  // not as was guessed; not at all
};
// For values whose largest has the exponent `high`, and `small` the least that is the largest of a row. fp16 holds |x| < 2^16;
// hi alone has full precision down to 2^-14. lo errs by 2^-25 over its own scale: with hi's scale that is 2^-23 of 2^-2, with
// 2^11 of it 2^-23 of 2^-13. `lo` is what the products would like best, 0 or 11.
DEVICE Fitting fit(int high, int small, int guess, bool guessed, int lo) {
  const int least = lo == 0 ? -2 : -13;
  Fitting f = {guess, lo, false, false};
  if (guessed && high + guess <= 14 && high + guess >= -2 && small + guess >= least) return f;
  f.shift = 14 - high < -100 ? -100 : 14 - high > 100 ? 100 : 14 - high;
  f.again = true;
  if (small + f.shift < least) f.lo = 11;
  f.fails = small + f.shift < -13 || high + f.shift > 14;
  return f;
}

DEVICE int swizzle(int row, int chunk, int ck) {
  return chunk ^ (ck == 64 ? row & 7 : ck == 32 ? (row >> 1) & 3 : (row >> 2) & 1);
}
)
// clang-format on

}  // namespace upweave::cuda::index

#undef DEVICE
#undef UPWEAVE_HOST_AND_DEVICE
