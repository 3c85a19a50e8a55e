// The weights of a Toom-Cook kernel: G along each axis in float64, rounded once.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "engine/cpu/conv/toom_kernel.h"

namespace upweave::cpu {
namespace {

// Whether each output channel's largest weight is fit for transforms.
bool fit_weights(const double* kernel, int64_t c_in, int64_t c_out, int64_t volume) {
  for (int64_t co = 0; co < c_out; ++co) {
    double most = 0;
    for (int64_t ci = 0; ci < c_in; ++ci) {
      const double* w = kernel + (ci * c_out + co) * volume;
      for (int64_t k = 0; k < volume; ++k) {
        if (std::isnan(w[k])) return false;
        most = std::max(most, std::abs(w[k]));
      }
    }
    if (!fits(most)) return false;
  }
  return true;
}

// G of one axis, row by row.
std::vector<double> g_matrix(const ToomAxis& f) {
  std::vector<double> g;
  for (int p = 0; p < f.points(); ++p) {
    for (int j = 0; j < f.r; ++j) g.push_back(f.g(p, j));
  }
  return g;
}

}  // namespace

void ToomConv::pack(const double* kernel, void* packed, int threads) const {
  float* base = static_cast<float*>(packed);
  const int64_t volume = shape_.kernel[0] * shape_.kernel[1] * shape_.kernel[2];
  direct_.pack(kernel, base + direct_at_, threads);
  const bool fit = fit_weights(kernel, shape_.c_in, shape_.c_out, volume) && pack_limits(kernel, base);
  base[0] = fit ? 1.0f : 0.0f;
  if (!fit) return;

  const int64_t out = channels_out(), wide = max_blocks_ * kMaxPoints,
                most = max_points_[0] * max_points_[1] * wide * out;
  std::array<std::vector<std::vector<double>>, 3> g;
  for (int axis = 0; axis < 3; ++axis) {
    for (const ToomResidue& r : residues_[axis]) g[axis].push_back(g_matrix(r.axis));
  }
  // What one thread works with: a channel's taps, and room for all points twice.
  const int64_t room = volume * out + 2 * most;
  std::vector<double> rooms(static_cast<size_t>(room * threads));
#pragma omp parallel num_threads(threads)
  {
    double* taps = rooms.data() + omp_get_thread_num() * room;
    double *a = taps + volume * out, *b = a + most;
#pragma omp for schedule(static)
    for (int64_t ci = 0; ci < shape_.c_in; ++ci) {
      for (int64_t co = 0; co < shape_.c_out; ++co) {
        for (int64_t k = 0; k < volume; ++k) {
          taps[k * out + co] = kernel[(ci * shape_.c_out + co) * volume + k];
        }
      }
      for (int64_t phase = 0; phase < geometry_.phases(); ++phase) {
        if (direct_phase_[phase]) continue;
        const auto e = geometry_.phase(phase);
        pack_phase(taps, {g[0][e[0]].data(), g[1][e[1]].data(), g[2][e[2]].data()}, phase, ci, a, b,
                   base + phase_at_[phase]);
      }
    }
  }
}

// Every phase's limits, and the one of a tile whose positions are all of the tensor and of like size: then
// the least sum over t is taps*least, and the most squares taps*most.
bool ToomConv::pack_limits(const double* kernel, float* base) const {
  double even = 0;
  std::vector<int64_t> tap_at;
  for (int64_t phase = 0; phase < geometry_.phases(); ++phase) {
    if (direct_phase_[phase]) continue;
    const auto e = geometry_.phase(phase);
    const ToomAxis f[3] = {residue(0, e[0]).axis, residue(1, e[1]).axis, residue(2, e[2]).axis};
    tap_at.clear();
    auto k = [&](int axis, int t) { return geometry_.residues[axis][e[axis]].taps[f[axis].taps - 1 - t].k; };
    for (int d = 0; d < f[0].taps; ++d) {
      for (int h = 0; h < f[1].taps; ++h) {
        for (int w = 0; w < f[2].taps; ++w)
          tap_at.push_back((k(0, d) * shape_.kernel[1] + k(1, h)) * shape_.kernel[2] + k(2, w));
      }
    }
    const int64_t volume = shape_.kernel[0] * shape_.kernel[1] * shape_.kernel[2];
    const PhaseWeights weights = {kernel,        shape_.c_in,           shape_.c_out,
                                  tap_at.data(), shape_.c_out * volume, volume};
    ToomLimits limits;
    if (strict_ && !toom_limits(f, weights, &limits)) return false;
    float* at = base + kLimitsAt + kLimitFloats * phase;
    std::copy(limits.cut.begin(), limits.cut.end(), at);
    at[8] = limits.spread;
    even = std::max({even, double{limits.cut[0]} * limits.cut[0],
                     double{limits.spread} / static_cast<double>(tap_at.size())});
  }
  base[1] = static_cast<float>(even);
  return true;
}

// One phase of one input channel; `taps` are [k][co], a and b room for all points.
void ToomConv::pack_phase(const double* taps, const std::array<const double*, 3>& g, int64_t phase,
                          int64_t ci, double* a, double* b, float* weights) const {
  const auto e = geometry_.phase(phase);
  const ToomAxis f[3] = {residue(0, e[0]).axis, residue(1, e[1]).axis, residue(2, e[2]).axis};
  const int64_t out = channels_out(), nd = f[0].points(), nh = f[1].points(), nw = f[2].points();

  // a[td][th][tw][co], the last tap first: shifts fall as taps rise, and a correlation reads forward.
  auto k = [&](int axis, int t) { return geometry_.residues[axis][e[axis]].taps[f[axis].taps - 1 - t].k; };
  const int blocks = f[2].blocks(), wide = blocks * f[2].r;
  double* to = a;
  for (int td = 0; td < f[0].r; ++td) {
    for (int th = 0; th < f[1].r; ++th) {
      for (int tw = 0; tw < wide; ++tw, to += out) {
        if (tw >= f[2].taps) {
          std::fill_n(to, out, 0.0);
          continue;
        }
        const double* from =
            taps + ((k(0, td) * shape_.kernel[1] + k(1, th)) * shape_.kernel[2] + k(2, tw)) * out;
        std::copy(from, from + out, to);
      }
    }
  }
  const int64_t line = wide * out, depth = blocks * shape_.c_in;
  for (int64_t pd = 0; pd < nd; ++pd) {  // b[pd][th][tw][co]
    ops_.weights(a, f[1].r * line, g[0] + pd * f[0].r, f[0].r, b + pd * f[1].r * line, f[1].r * line);
  }
  for (int64_t pd = 0; pd < nd; ++pd) {  // a[pd][ph][tw][co]
    for (int64_t ph = 0; ph < nh; ++ph) {
      ops_.weights(b + pd * f[1].r * line, line, g[1] + ph * f[1].r, f[1].r, a + (pd * nh + ph) * line, line);
    }
  }
  const int64_t panel = block_.lanes * block_.panel_vectors, points = nw * nd;
  for (int64_t ph = 0; ph < nh; ++ph) {
    for (int64_t first = 0; first < out; first += panel) {
      const int64_t width = std::min(panel, out - first);
      float* panel_at = weights + (ph * points * out + first * points) * depth + ci * width;
      for (int64_t pw = 0; pw < nw; ++pw) {
        for (int64_t pd = 0; pd < nd; ++pd) {
          for (int64_t q = 0; q < blocks; ++q) {
            ops_.round_weights(a + (pd * nh + ph) * line + q * f[2].r * out + first, out, g[2] + pw * f[2].r,
                               f[2].r, panel_at + ((pw * nd + pd) * depth + q * shape_.c_in) * width, width);
          }
        }
      }
    }
  }
}

}  // namespace upweave::cpu
