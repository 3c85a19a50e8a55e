// The CUDA engine's index arithmetic, on the CPU: every product of every tile must meet the input that the
// definition of a transposed convolution names, or a zero. Boxes, whole lines and weight-stationary tiles.
#include "cuda_tiles.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/cuda/schedule/boxes.h"
#include "engine/cuda/schedule/weight_stationary.h"

namespace upweave::cuda {
namespace {

using testing::add_axis, testing::content, testing::G, testing::Pick, testing::pick_channels, testing::place;

// Which row segments each step reads, of the schedules that load tiles so.
struct Segments {
  const RowSegments* segments = nullptr;
  std::vector<int> part, first, count;  // part by step, the others by part

  explicit Segments(const Schedule& t) : part(t.conv.steps.size(), 0) {
    if (const auto* stationary = dynamic_cast<const WeightStationary*>(&t)) {
      segments = &stationary->segments;
      part = part_of_steps(t.conv, parts_of(stationary->parts));
      first = each_part(stationary->parts, &WeightStationary::TilePart::first_segment);
      count = each_part(stationary->parts, &WeightStationary::TilePart::segments);
      return;
    }
    const auto* lines = dynamic_cast<const WholeLines*>(&t);
    segments = lines ? &lines->segments : &dynamic_cast<const Boxes&>(t).segments;
    first = {0};
    count = {static_cast<int>(segments->list.size())};
  }
};

void check(const ConvGeometry& geometry, const EpilogueNeeds& needs) {
  std::string why;
  const std::unique_ptr<Schedule> schedule = choose_schedule(geometry, needs, why);
  if (!schedule) return;
  const Schedule& t = *schedule;
  const Convolution& conv = t.conv;
  const Segments at(t);
  // Inputs that the copy leaves out are needed by nobody.
  for (size_t a = 0; a < geometry.spatial; ++a) {
    const Axis& x = conv.axis[3 - geometry.spatial + a];
    ASSERT_LE(std::min<int64_t>(geometry.in[a], (x.windows + x.hi) * x.f), x.in);
  }
  G::set(t);
  ASSERT_LE(t.shared_bytes(), needs.shared_limit);
  std::set<std::array<int64_t, 4>> covered;
  for (int tile = 0; tile < t.tiles; ++tile) {
    const int64_t first = index::tile_row<G>(tile);
    ASSERT_EQ(first % 8, 0);  // the swizzle of a row is the same in both memories
    for (int q = 0; q < t.m / 64; ++q) {
      for (int i = 0; i < 64; ++i) {
        const index::Row row = index::row_of<G>(tile, q, i);
        if (!row.ok) continue;
        covered.insert({row.n, row.jd, row.jh, row.jw});
        const int in_tile = index::subtile_row<G>(q) + (G::kBoxes ? i / 8 * conv.axis[2].pitch + i % 8 : i);
        for (size_t s = 0; s < conv.steps.size(); ++s) {
          const Step& step = conv.steps[s];
          for (int v = 0; v < conv.positions; ++v) {
            const int shared = at.segments->offset[s][v] + in_tile, segment = shared / at.segments->rows;
            ASSERT_GE(segment, 0);
            ASSERT_LT(segment, at.count[at.part[s]]);
            const RowSegment& c = at.segments->list[at.first[at.part[s]] + segment];
            ASSERT_EQ(c.block, step.block);
            const int64_t copied = first + c.first_row + shared % at.segments->rows;
            ASSERT_GE(copied, -t.copy.guard);
            ASSERT_LT(copied, t.copy.rows + t.copy.guard);
            const int want[3] = {conv.axis[0].f * row.jd + step.delta[v][0],
                                 conv.axis[1].f * row.jh + step.delta[v][1],
                                 conv.axis[2].f * row.jw + step.delta[v][2]};
            ASSERT_EQ(content(t, c.component, copied), place(t, row.n, want))
                << "tile " << tile << " row " << q * 64 + i << " tap " << step.tap[0] << step.tap[1]
                << step.tap[2];
          }
        }
      }
    }
  }
  ASSERT_EQ(static_cast<int64_t>(covered.size()),
            int64_t{conv.batch} * conv.axis[0].windows * conv.axis[1].windows * conv.axis[2].windows);
  // Each class uses the taps that its phase can, and delta is what the definition says: o = i s - p + k d.
  for (size_t c = 0; c < conv.phases.size(); ++c) {
    int count = 0;
    for (int s = conv.group_begin[conv.phase_begin[c]]; s < conv.group_begin[conv.phase_begin[c + 1]];
         ++s, ++count) {
      for (int a = 0; a < 3; ++a) {
        const Axis& x = conv.axis[a];
        ASSERT_EQ(conv.phases[c][a],
                  conv.steps[s].delta[0][a] * x.stride - x.padding + conv.steps[s].tap[a] * x.dilation);
      }
    }
    int expected = conv.blocks;
    for (int a = 0; a < 3; ++a) {
      int taps = 0;
      for (int k = 0; k < conv.axis[a].kernel; ++k)
        taps +=
            (conv.phases[c][a] + conv.axis[a].padding - k * conv.axis[a].dilation) % conv.axis[a].stride == 0;
      expected *= taps;
    }
    ASSERT_EQ(count, expected);
  }
}

TEST(CudaTiles, EveryProductMeetsItsInput) {
  Pick pick{std::mt19937(3)};
  int tiled = 0;
  for (int round = 0; round < 150; ++round) {
    ConvGeometry g = pick_channels(pick, 80, 140);
    EpilogueNeeds needs;
    needs.input_lo = pick(0, 1);
    needs.weights_lo = needs.input_lo;
    needs.whole_columns = pick(0, 1);
    needs.one_sample = pick(0, 3) == 0;
    needs.all_outputs = pick(0, 1);
    needs.wgmma = pick(0, 1);
    const bool pooled = pick(0, 1);
    needs.pooled = pooled;
    for (size_t a = 0; a < g.spatial; ++a) {
      const int limit = g.spatial == 3 ? 9 : g.spatial == 2 ? 20 : 200;
      add_axis(g, {pick(1, limit), pick(1, 5), pick(1, 3), pick(1, 2), pick(0, 2)});
      needs.pool[3 - g.spatial + a] = pooled ? static_cast<int>(g.stride[a]) * pick(1, 2) : 1;
      if (pooled && g.out[a] < needs.pool[3 - g.spatial + a]) needs.pool[3 - g.spatial + a] = 1;
    }
    SCOPED_TRACE(round);
    std::string why;
    tiled += choose_schedule(g, needs, why) != nullptr;
    check(g, needs);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(tiled, 75);
}

// Tiles of whole lines have every window of rows that a second pool makes one of, at the places where
// window_of_rows looks for it.
TEST(CudaTiles, WholeLinesHoldWholeWindows) {
  Pick pick{std::mt19937(11)};
  int tiled = 0, split = 0;
  for (int round = 0; round < 250; ++round) {
    ConvGeometry g = pick_channels(pick, 80, 140);
    EpilogueNeeds needs;
    needs.input_lo = needs.weights_lo = pick(0, 1);
    needs.whole_columns = false;
    needs.pooled = true;
    needs.multiprocessors = pick(1, 3);
    for (size_t a = 0; a < g.spatial; ++a) {
      add_axis(g, {pick(6, g.spatial == 3 ? 13 : 40), pick(1, 5), pick(1, 3), 1, pick(0, 2), -pick(0, 7)});
      needs.pool[3 - g.spatial + a] = static_cast<int>(g.stride[a]);
      needs.rest[3 - g.spatial + a] = pick(1, 3);
    }
    SCOPED_TRACE(round);
    check(g, needs);
    if (HasFatalFailure()) return;
    std::string why;
    const auto schedule = choose_schedule(g, needs, why);
    const auto* lines = dynamic_cast<const WholeLines*>(schedule.get());
    if (!lines) continue;
    const WholeLines& t = *lines;
    ++tiled;
    G::set(t);
    ASSERT_EQ(t.window, needs.rest);
    ASSERT_EQ(t.lines % t.window[1], 0);
    ASSERT_LE(t.combined_bytes(), t.tile_shared() + t.weight_shared());
    ASSERT_EQ(t.whole % (needs.rest[0] == 1 ? 1 : needs.multiprocessors * t.resident), 0);
    split += t.split_units() > 0 && t.whole > 0;
    // Each tile once, by the block of its unit or by one of its own.
    std::set<std::array<int, 4>> met;
    for (int block = 0; block < t.whole + t.split_units() * t.window[0]; ++block) {
      const index::Unit unit = index::unit_of<G>(block);
      ASSERT_EQ(unit.whole, block < t.whole);
      ASSERT_LE(unit.end - unit.first, unit.whole ? t.window[0] : 1);
      const index::Row unit_first = index::row_of<G>(index::unit_tile<G>(unit.number), 0, 0);
      ASSERT_EQ(unit_first.jd % t.window[0], 0);
      for (int plane = unit.first; plane < unit.end; ++plane) {
        const int tile = index::unit_tile<G>(unit.number) + plane * t.tiles_per_plane;
        const index::Row first = index::row_of<G>(tile, 0, 0);
        ASSERT_EQ(first.jh % t.window[1], 0);
        ASSERT_EQ(first.jd, unit_first.jd + plane);
        ASSERT_EQ(first.n, unit_first.n);
        for (int line = 0; line < t.lines; ++line) {
          for (int w = 0; w < t.conv.axis[2].windows / t.window[2] * t.window[2]; ++w) {
            const int at = line * t.conv.axis[2].pitch + w;
            const index::Row row = index::row_of<G>(tile, at / 64, at % 64);
            ASSERT_EQ(row.jw, w);
            ASSERT_EQ(row.jh, first.jh + line);
            ASSERT_EQ(row.jd, first.jd);
            ASSERT_EQ(row.n, first.n);
            if (!row.ok) continue;
            ASSERT_TRUE(met.insert({row.n, row.jd, row.jh, row.jw}).second);
          }
        }
      }
    }
    ASSERT_EQ(static_cast<int>(met.size()), t.conv.batch * t.conv.axis[0].windows * t.conv.axis[1].windows *
                                                (t.conv.axis[2].windows / t.window[2] * t.window[2]));
  }
  EXPECT_GT(tiled, 50);
  EXPECT_GT(split, 10);
}

// Whatever the exponents: what is said to fit does, with a float32's precision in each row, and only what
// cannot fit fails.
TEST(CudaTiles, ScalesFit) {
  for (const int lo : {0, 11}) {
    for (const int guess : {0, 8}) {
      for (int high = -126; high <= 127; ++high) {
        for (int small = std::max(-127, high - 60); small <= high; ++small) {
          for (const bool guessed : {false, true}) {
            const index::Fitting f = index::fit(high, small, guess, guessed, lo);
            EXPECT_TRUE(f.again || (guessed && f.shift == guess && f.lo == lo && !f.fails));
            if (f.fails) {
              EXPECT_TRUE(high - small > 27 || std::abs(14 - high) > 100) << high << " " << small;
              continue;
            }
            EXPECT_LE(high + f.shift, 14);                // |x| < 2^15: fp16 holds 65504
            EXPECT_GE(small + f.shift - 23, -25 - f.lo);  // lo's error is within 2^-23 of the row's largest
            EXPECT_TRUE(f.lo == lo || high - small > 16 ||
                        14 - high > 100);  // the needs is granted where it can be
          }
        }
      }
    }
  }
}

TEST(CudaTiles, DocumentsUseAllRows) {
  ConvGeometry g{3,         2,         32,        64,        1,        {16, 32, 32}, {32, 64, 64},
                 {4, 4, 4}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  std::string why;
  EpilogueNeeds needs;
  needs.store_phases = 2;
  const auto schedule = choose_schedule(g, needs, why);
  ASSERT_TRUE(schedule) << why;
  EXPECT_EQ(schedule->efficiency(), 1);
  EXPECT_TRUE(schedule->constants().boxes);
  check(g, needs);
}

TEST(CudaTiles, RefusesWhatItCannotTile) {
  ConvGeometry g{2, 1, 8, 8, 2, {8, 8}, {16, 16}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}};
  std::string why;
  EXPECT_FALSE(choose_schedule(g, {}, why));
  EXPECT_NE(why.find("groups"), std::string::npos);
  g.groups = 1;
  g.c_out = 200;
  EXPECT_FALSE(choose_schedule(g, {}, why));
  EXPECT_NE(why.find("200"), std::string::npos);
}

}  // namespace
}  // namespace upweave::cuda
