#include "engine/cuda/convolution.h"

#include <algorithm>

#include "base/error.h"
#include "engine/cuda/axis.h"

namespace upweave::cuda {
namespace {

// Columns of one tile: wgmma takes multiples of 8, the loads of B pairs of 8.
bool make_columns(Convolution& c, const EpilogueNeeds& needs, std::string& why) {
  const int all = round_up(c.c_out, 16);
  if (all <= 64 || (all <= 128 && needs.whole_columns)) {
    c.n = all;
    c.column_blocks = 1;
    return true;
  }
  if (needs.whole_columns) {
    why = fmt::format("{} output channels in one tile are more than 128", c.c_out);
    return false;
  }
  c.n = 64;
  c.column_blocks = ceil_div(all, 64);
  return true;
}

void count_positions(Convolution& c) {
  const auto& [d, h, w] = c.axis;
  c.components = d.f * h.f * w.f;
  c.positions = d.once * h.once * w.once;
}

}  // namespace

int64_t Convolution::weight_columns() const {
  return int64_t{c_out} * axis[0].kernel * axis[1].kernel * axis[2].kernel;
}

std::array<int, 2> Convolution::steps_of(int phase_group) const {
  return {group_begin[phase_begin[phase_group * store_phases]],
          group_begin[phase_begin[(phase_group + 1) * store_phases]]};
}

int Convolution::most_groups() const {
  int most = 0;
  for (size_t c = 0; c + 1 < phase_begin.size(); ++c)
    most = std::max(most, phase_begin[c + 1] - phase_begin[c]);
  return most;
}

InputCopy Convolution::copy_by_sample() const {
  const auto& [d, h, w] = axis;
  InputCopy copy;
  copy.plane = round_up(h.pitch * w.pitch, 8);
  copy.rows = static_cast<int64_t>(batch) * d.pitch * copy.plane;
  return copy;
}

void list_steps(Convolution& t) {
  const auto& [d, h, w] = t.axis;
  t.steps.clear();
  t.phases.clear();
  t.phase_begin.assign(1, 0);
  t.group_begin.assign(1, 0);
  for (int ed = 0; ed < d.phases; ++ed) {
    for (int eh = 0; eh < h.phases; ++eh) {
      for (int ew = 0; ew < w.phases; ++ew) {
        t.phases.push_back({ed, eh, ew});
        const size_t first = t.steps.size();
        for (int kd = 0; kd < d.kernel; ++kd) {
          for (int kh = 0; kh < h.kernel; ++kh) {
            for (int kw = 0; kw < w.kernel; ++kw) {
              int dd = 0, dh = 0, dw = 0;
              if (!reaches(d, ed, kd, dd) || !reaches(h, eh, kh, dh) || !reaches(w, ew, kw, dw)) continue;
              for (int block = 0; block < t.blocks; ++block) {
                Step step;
                step.block = block;
                step.tap = {kd, kh, kw};
                for (int v = 0; v < t.positions; ++v) {
                  const int ud = v / (h.once * w.once), uh = v / w.once % h.once, uw = v % w.once;
                  step.delta.push_back({dd + ud, dh + uh, dw + uw});
                }
                t.steps.push_back(std::move(step));
              }
            }
          }
        }
        // Sums are promoted after at most 128 terms, so a group has no more; and no more than 32 KB if it
        // can.
        const int count = static_cast<int>(t.steps.size() - first);
        const int per_group = std::max(1, std::min(128 / t.ck, t.exact() ? 8 : (32 << 10) / t.step_bytes()));
        for (int at = 0; at < count; at += per_group) {
          t.group_begin.push_back(static_cast<int>(first) + std::min(count, at + per_group));
        }
        t.phase_begin.push_back(static_cast<int>(t.group_begin.size()) - 1);
      }
    }
  }
  t.group_max = 1;
  for (size_t g = 0; g + 1 < t.group_begin.size(); ++g) {
    t.group_max = std::max(t.group_max, t.group_begin[g + 1] - t.group_begin[g]);
  }
}

bool describe_conv(const ConvGeometry& g, const EpilogueNeeds& needs, Convolution& c, std::string& why) {
  if (g.groups != 1) return why = "the convolution has groups", false;
  if (!g.every_output()) return why = "the convolution leaves outputs out", false;
  // Tables in a kernel's text have a row a phase and a step for each tap of each block of channels; of so
  // many the bytes of a tile and of its weights are 32-bit numbers, whether it fits or not.
  constexpr int64_t kMaxTablePhases = 4096, kMaxSteps = 16384, kMaxBlocks = 4096, kMaxInt = int64_t{1} << 30;
  int64_t phases = 1, steps = 1;
  for (size_t a = 0; a < g.spatial; ++a) {
    phases *= std::min(g.stride[a], kMaxInt / phases);
    steps *= std::min(g.kernel[a], kMaxInt / steps);
  }
  if (phases > kMaxTablePhases || steps > kMaxSteps)
    return why = "the convolution has more phases or taps than tables in a kernel", false;
  if (std::max({g.batch, g.c_in, g.c_out}) > kMaxInt)
    return why = "samples or channels are more than 32-bit indices reach", false;
  const int64_t blocks = ceil_div(static_cast<int>(g.c_in), row_channels(static_cast<int>(g.c_in)));
  if (blocks > kMaxBlocks || steps * blocks > kMaxSteps)
    return why = "the convolution has more input channels than tables in a kernel", false;
  c = {};
  c.batch = static_cast<int>(g.batch);
  c.c_in = static_cast<int>(g.c_in);
  c.c_out = static_cast<int>(g.c_out);
  c.input_lo = needs.input_lo;
  c.weights_lo = needs.weights_lo;
  c.store_phases = needs.store_phases;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (!read_axis(g, a, c.axis[3 - g.spatial + a], why)) return false;
  }
  for (size_t a = 0; a < 3; ++a) {
    if (!make_axis(c.axis[a], needs.pool[a], needs.all_outputs, why)) return false;
  }
  if (c.axis[0].f * c.axis[1].f * c.axis[2].f > 4)
    return why = "the pool's window is more than four phases of each class", false;
  c.ck = row_channels(c.c_in);
  c.blocks = ceil_div(c.c_in, c.ck);
  if (!make_columns(c, needs, why)) return false;
  count_positions(c);
  const auto& [d, h, w] = c.axis;
  int64_t rows = 1;
  for (const int extent : {c.batch, d.pitch, h.pitch, w.pitch})
    rows *= std::clamp<int64_t>(extent, 1, kMaxRows * 2 / rows);
  const int64_t plane = int64_t{h.pitch} * w.pitch,
                around =
                    plane * std::max({0, -d.lo, d.hi}) + int64_t{64 + std::max(-h.lo, h.hi)} * 2 * w.pitch;
  if (std::max(rows, around) > kMaxRows)
    return why = "the input has more rows than 32-bit indices reach", false;
  list_steps(c);
  return true;
}

bool widen(Convolution& c) {
  if (c.column_blocks == 1 || c.column_blocks % 2 != 0) return false;
  c.n *= 2;
  c.column_blocks /= 2;
  return true;
}

bool serialize(Convolution& c) {
  Axis& x = c.axis[c.axis[0].f > 1 ? 0 : 1];
  if (x.f == 1 || c.positions < 2) return false;
  x.once = 1;
  x.phases = x.window;
  count_positions(c);
  return true;
}

}  // namespace upweave::cuda
