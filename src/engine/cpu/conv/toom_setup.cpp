// What a Toom-Cook kernel decides once: which phases it transforms, how large its groups are, its packed
// weights.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/cpu/conv/dilated.h"
#include "engine/cpu/conv/toom_kernel.h"

namespace upweave::cpu {

bool toom_serves(const ToomAxis& f) {
  return f.r > 0 && f.m > 0 && f.points() <= kMaxPoints && (f.r == 1 || toom_ops().output[f.m][f.points()]);
}

ToomAxis toom_axis(int64_t m, int64_t taps, bool blocks) {
  ToomAxis best = {static_cast<int>(m), static_cast<int>(taps)};
  if (!blocks || m == 1 || taps < 2 || taps > kMaxTaps || toom_serves(best)) return best;
  for (int r = 2; m + r - 1 <= kMostOfBlocks; ++r) {
    const ToomAxis f = {static_cast<int>(m), r, static_cast<int>(taps)};
    if (!toom_serves(f)) continue;
    if (best.blocks() == 1 || f.points() * f.blocks() < best.points() * best.blocks()) best = f;
  }
  return best;
}

ToomConv::ToomConv(const ConvShape& shape, const Extents& tile, const std::vector<bool>& direct_phases,
                   Precision precision)
    : shape_(shape),
      tile_(tile),
      geometry_(shape),
      direct_(shape, cpu::block_ops(), 1),
      block_(cpu::block_ops()),
      ops_(toom_ops()),
      strict_(precision == Precision::kStrict) {
  if (shape.groups != 1) throw fail(Status::kUnsupported, "no transform for {} groups", shape.groups);
  for (const int64_t step : shape.step) {
    if (step != 1) throw fail(Status::kUnsupported, "no transform for a step of {}", step);
  }
  std::array<std::vector<bool>, 3> served;
  for (int axis = 0; axis < 3; ++axis) {
    for (const Residue& residue : geometry_.residues[axis]) {
      const std::vector<Tap>& taps = residue.taps;  // equally far apart: neighbouring inputs only
      const ToomAxis f = toom_axis(tile[axis], static_cast<int64_t>(taps.size()), axis == 2);
      const bool ok = toom_serves(f) && (taps.size() < 2 || taps[0].shift - taps[1].shift == 1);
      served[axis].push_back(ok);
      residues_[axis].push_back({f, ok ? residue.taps.back().shift - geometry_.first_shift[axis] : 0});
      if (!ok) continue;
      max_points_[axis] = std::max<int64_t>(max_points_[axis], f.points());
      max_blocks_ = std::max<int64_t>(max_blocks_, f.blocks());
      // What fills up a block of taps is read, too.
      geometry_.last_shift[axis] =
          std::max(geometry_.last_shift[axis], taps.back().shift + f.blocks() * f.r - 1);
    }
  }
  for (int64_t q = 0; q < max_blocks_; ++q) block_at_.push_back(q * channels_in());
  no_skips_.assign(block_at_.size(), 0);
  direct_at_ = round_up(kLimitsAt + kLimitFloats * geometry_.phases(), 16);
  packed_floats_ = direct_at_ + round_up(static_cast<int64_t>(direct_.packed_bytes() / sizeof(float)), 16);
  bool any = false;
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    const auto e = geometry_.phase(i);
    const bool direct = !(served[0][e[0]] && served[1][e[1]] && served[2][e[2]]) ||
                        (i < static_cast<int64_t>(direct_phases.size()) && direct_phases[i]);
    direct_phase_.push_back(direct);
    phase_at_.push_back(packed_floats_);
    if (!direct) packed_floats_ += products(i) * shape.c_in * channels_out();
    any = any || !direct;
  }
  if (!any) {
    throw fail(Status::kUnsupported, "no phase has a transform by tiles of {}x{}x{}", tile[0], tile[1],
               tile[2]);
  }
  for (max_group_ = kMaxGroup; max_group_ > 6; --max_group_) {
    size_t bytes;
    carve(nullptr, &bytes);
    if (bytes <= kGroupBytes) break;
  }
}

int64_t ToomConv::products(int64_t phase) const {
  const auto e = geometry_.phase(phase);
  const ToomAxis& wide = residue(2, e[2]).axis;
  return int64_t{residue(0, e[0]).axis.points()} * residue(1, e[1]).axis.points() * wide.points() *
         wide.blocks();
}

// Lays the buffers of the largest group one after the other; `bytes` receives their sum.
ToomConv::Buffers ToomConv::carve(float* scratch, size_t* bytes) const {
  // A group may be as wide as it has tiles, or as high.
  int64_t positions = 0, line = 0, widest = 0;
  for (int64_t high = 1; high <= max_group_; ++high) {
    const int64_t wide = max_group_ / high;
    const int64_t columns = wide * tile_[2] + geometry_.last_shift[2] - geometry_.first_shift[2];
    const int64_t rows = high * tile_[1] + geometry_.last_shift[1] - geometry_.first_shift[1];
    positions = std::max(positions, rows * columns);
    line = std::max(line, high * columns);
    widest = std::max(widest, columns);
  }
  const int64_t in = channels_in();
  int64_t at = 0;
  auto take = [&](int64_t floats) {
    float* p = scratch ? scratch + at : nullptr;
    at += round_up(floats, 16);
    return p;
  };
  Buffers b;
  b.t1 = take(max_points_[0] * positions * in);
  b.t2 = take(max_points_[1] * max_points_[0] * line * in);
  b.u = take(max_points_[2] * max_points_[0] * u_step());
  b.m0 = take(max_points_[0] * max_points_[2] * m1_step());
  b.m1 = take(max_points_[2] * tile_[0] * m1_step());
  b.m2 = take(max_points_[1] * tile_[2] * tile_[0] * m2_step(max_group_));
  b.edge = take(tile_[1] * tile_[2] * channels_out());
  // Vectors are read and written whole.
  const int64_t planes = tile_[0] + geometry_.last_shift[0] - geometry_.first_shift[0];
  for (float** p : {&b.sums, &b.squares, &b.field_sums, &b.field_squares, &b.field_least})
    *p = take(planes * positions + 64);
  b.least = take(widest + 64);
  b.most = take(widest + 64);
  b.direct = take(static_cast<int64_t>(direct_.scratch_bytes() / sizeof(float)));
  *bytes = static_cast<size_t>(at) * sizeof(float);
  return b;
}

size_t ToomConv::scratch_bytes() const {
  size_t bytes;
  carve(nullptr, &bytes);
  return bytes;
}

double ToomConv::products_per_output() const {
  double all = 0;
  for (int64_t i = 0; i < geometry_.phases(); ++i) {
    const double tile = static_cast<double>(tile_[0] * tile_[1] * tile_[2]);
    all += direct_phase_[i] ? static_cast<double>(direct_.taps(i)) : static_cast<double>(products(i)) / tile;
  }
  return all / static_cast<double>(geometry_.phases());
}

std::string ToomConv::describe() const {
  std::string axes;
  for (int axis = 0; axis < 3; ++axis) {
    if (shape_.kernel[axis] == 1 && tile_[axis] == 1) continue;
    std::string of_axis;
    for (const ToomResidue& r : residues_[axis]) {
      const std::string blocks = r.axis.blocks() > 1 ? fmt::format("{} of ", r.axis.blocks()) : "",
                        f = fmt::format("{}F({},{})", blocks, r.axis.m, r.axis.r);
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
  const auto direct = std::count(direct_phase_.begin(), direct_phase_.end(), true);
  if (direct > 0) finite += fmt::format(", {} of {} phases direct", direct, direct_phase_.size());
  finite += strict_ ? ", uneven tiles direct" : "";
  return fmt::format("Toom-Cook {}, {}, {}, {:.4g} products an output ({:.4g} direct)", axes, finite,
                     block_.name, products_per_output(), direct_.products_per_output());
}

std::unique_ptr<ConvKernel> make_toom_conv(const ConvShape& shape, const Extents& tile,
                                           const std::vector<bool>& direct_phases, Precision precision) {
  const auto make = [&](const ConvShape& s) {
    return std::make_unique<ToomConv>(s, tile, direct_phases, precision);
  };
  const Extents period = residue_periods(shape);
  if (period == Extents{1, 1, 1}) return make(shape);
  if (!few_residues(period)) {
    throw fail(Status::kUnsupported, "no transform for dilations of {}x{}x{}", period[0], period[1],
               period[2]);
  }
  return std::make_unique<DilatedConv>(shape, make);
}

}  // namespace upweave::cpu
