// The same as cuda_tiles_test.cpp where operands are streamed through rings: line by line, and through the
// depth.
#include <gtest/gtest.h>

#include <set>

#include "cuda_tiles.h"

namespace upweave::cuda {
namespace {

using testing::add_axis, testing::content, testing::G, testing::Pick, testing::pick_channels, testing::place;

// A group of steps either meets its inputs in the line that is copied for
// it, or lies beyond the input and is left out.
void check_by_line(const ConvGeometry& geometry, const EpilogueNeeds& needs, int& tiled) {
  const std::optional<LineByLine> tiles = tile_line_by_line(geometry, needs);
  if (!tiles) return;
  const LineByLine& t = *tiles;
  ++tiled;
  G::set(t);
  ASSERT_LE(t.shared_bytes(), needs.shared_limit);
  const Axis& w = t.conv.axis[2];
  std::set<std::array<int64_t, 3>> covered;
  double steps = 0;
  for (int tile = 0; tile < t.tiles; ++tile) {
    const int line = tile / t.tiles_per_plane;
    const int64_t first = int64_t{line} * t.copy.plane + tile % t.tiles_per_plane * t.m;
    for (size_t g = 0; g + 1 < t.conv.group_begin.size(); ++g) {
      const int at = line + t.line_shift[g];
      const bool meets = at >= 0 && at < t.conv.axis[0].stored;
      if (meets) steps += t.m * t.conv.positions * (t.conv.group_begin[g + 1] - t.conv.group_begin[g]);
      for (int i = 0; i < t.m; ++i) {
        const index::Row row = index::row_of<G>(tile, i / 64, i % 64);
        if (!row.ok) continue;
        covered.insert({row.jd, row.jh, row.jw});
        for (int s = t.conv.group_begin[g]; s < t.conv.group_begin[g + 1]; ++s) {
          const Step& step = t.conv.steps[s];
          for (int v = 0; v < t.conv.positions; ++v) {
            const int want[3] = {t.conv.axis[0].f * row.jd + step.delta[v][0], row.jh,
                                 w.f * row.jw + step.delta[v][2]};
            if (!meets) {
              ASSERT_EQ(place(t, 0, want), -1);
              continue;
            }
            const int shared = t.segments.offset[s][v] + i, segment = shared / t.segments.rows;
            ASSERT_GE(shared, 0);
            ASSERT_LT(segment, w.f);
            ASSERT_EQ(t.segments.offset[s][v],
                      t.segments.offset[s - t.conv.group_begin[g]][v]);  // one list for all lines
            const RowSegment& c = t.segments.list[g * w.f + segment];
            ASSERT_EQ(c.block, step.block);
            const int64_t copied = first + c.first_row + shared % t.segments.rows;
            ASSERT_EQ((first + c.first_row) % 8, 0);
            ASSERT_GE(first + c.first_row, -t.copy.guard);
            ASSERT_LE(first + c.first_row + t.segments.rows, t.copy.rows + t.copy.guard);
            ASSERT_EQ(content(t, c.component, copied), place(t, 0, want)) << "tile " << tile << " row " << i;
          }
        }
      }
    }
  }
  EXPECT_EQ(steps, t.row_steps());
  EXPECT_EQ(static_cast<int64_t>(covered.size()),
            int64_t{t.conv.axis[0].windows} * t.conv.axis[1].windows * t.conv.axis[2].windows);
  EXPECT_EQ(std::set<int>(t.line_order.begin(), t.line_order.end()).size(),
            static_cast<size_t>(t.conv.axis[0].windows));
  // Every tile is some block's, once.
  std::set<int> shared;
  int count = 0;
  for (const LineByLine::LineLaunch& launch : t.parts) {
    for (int s = launch.first; s < launch.first + launch.plain_waves * t.launched; ++s, ++count)
      shared.insert(t.line_order[s / t.tiles_per_plane] * t.tiles_per_plane + s % t.tiles_per_plane);
    for (const auto& mine : launch.last_tiles) {
      for (const int tile : mine) shared.insert(tile), ++count;
    }
  }
  EXPECT_EQ(count, t.tiles);
  EXPECT_EQ(static_cast<int>(shared.size()), t.tiles);
  EXPECT_TRUE(shared.empty() || (*shared.begin() == 0 && *shared.rbegin() == t.tiles - 1));
}

// Pooled values in the output's memory and the copy's: no two at one place, each line's in the output where
// its own channels will be, and none where its own launch or a later one still reads the input.
void check_divided(LineByLine t, int lines, int width, int& divided) {
  const int64_t alone = int64_t{t.conv.axis[1].windows} * t.conv.c_out * lines * width * 4;
  const int64_t copy = t.copy_bytes();
  if (!t.divide(lines, width)) return;
  ++divided;
  G::set(t);
  EXPECT_LT(t.copy_bytes() - copy, alone);
  ASSERT_EQ(t.parts.back().end, t.tiles);
  // The first launch that has tiles of a line, and the first byte of a plane that each launch reads.
  std::vector<int> stores(t.conv.axis[0].windows, 2);
  int64_t read[] = {t.plane_bytes(), t.plane_bytes()};
  for (int leg = 0; leg < static_cast<int>(t.parts.size()); ++leg) {
    for (int s = t.parts[leg].first; s < t.parts[leg].end; ++s) {
      const int line = t.line_order[s / t.tiles_per_plane];
      stores[line] = std::min(stores[line], leg);
      for (size_t g = 0; g + 1 < t.conv.group_begin.size(); ++g) {
        if (line + t.line_shift[g] < 0 || line + t.line_shift[g] >= t.conv.axis[0].stored) continue;
        const int64_t row = t.copy.spare + t.copy.guard + int64_t{line} * t.copy.plane +
                            t.segments.list[g * t.conv.axis[2].f].first_row;
        ASSERT_GE(row, t.copy.spare);
        read[leg] = std::min(read[leg], row * t.conv.row_bytes());
      }
    }
  }
  read[0] = std::min(read[0], read[1]);
  std::set<int64_t> own, rest;
  const int64_t bytes = int64_t{width} * 64, place = int64_t{lines} * width * 32;
  for (int n = 0; n < t.conv.axis[1].windows; ++n) {
    for (int block = 0; block < t.conv.c_out / 16; ++block) {
      for (int line = 0; line < lines; ++line) {
        if (index::own_line<G>(line)) {
          const int64_t at = index::own_at<G>(n, block, line);
          ASSERT_EQ(at % 16, 0);
          ASSERT_EQ(at / place, n * (t.conv.c_out / 16) + block);
          ASSERT_LE(at % place + bytes, place);
          own.insert(at);
          continue;
        }
        const int64_t at = index::rest_at<G>(n, block, line);
        ASSERT_EQ(at % 16, 0);
        ASSERT_LT(at / t.plane_bytes(), t.conv.copy_planes());
        ASSERT_LE(at % t.plane_bytes() + bytes, read[stores[line]]);
        rest.insert(at);
      }
    }
  }
  ASSERT_EQ(static_cast<int64_t>(own.size() + rest.size()) * bytes, alone);
  for (const auto& places : {own, rest}) {
    for (auto it = places.begin(), next = it; it != places.end() && ++next != places.end(); it = next)
      ASSERT_LE(*it + bytes, *next);
  }
}

TEST(CudaStreams, LinesMeetTheirInputs) {
  Pick pick{std::mt19937(5)};
  int tiled = 0, divided = 0;
  for (int round = 0; round < 200; ++round) {
    ConvGeometry g;
    g.spatial = 2;
    g.batch = pick(1, 40);
    g.c_in = pick(1, 140);
    g.c_out = pick(1, 128);
    EpilogueNeeds needs;
    needs.multiprocessors = pick(1, 12);
    needs.pooled = needs.mixes_samples = needs.pool_leaves = true;
    needs.input_lo = needs.weights_lo = pick(0, 1);
    needs.all_outputs = pick(0, 1);
    needs.reduces = pick(0, 1);
    for (size_t a = 0; a < 2; ++a) {
      add_axis(g, {pick(1, 12), pick(1, 5), a == 0 ? pick(1, 2) : 1, pick(1, 2), pick(0, 2)});
      needs.pool[1 + a] = static_cast<int>(g.stride[a]) * pick(1, 2);
      if (g.out[a] < needs.pool[1 + a]) needs.pool[1 + a] = 1;
    }
    SCOPED_TRACE(round);
    check_by_line(g, needs, tiled);
    if (HasFatalFailure()) return;
    g.c_out = (g.c_out + 15) / 16 * 16;
    const std::optional<LineByLine> t = tile_line_by_line(g, needs);
    if (!t) continue;
    const auto& [line, sample, w] = t->conv.axis;
    check_divided(*t, line.out / line.window, w.out / w.window, divided);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(tiled, 75);
  EXPECT_GT(divided, 50);
}

// Depth streaming: the planes that a block's jobs read are those that its producer loads, in that order; and
// in them every product meets its input, even rows in one view of the width and odd ones in the other.
void check_depth_streaming(const DepthStreaming& t) {
  G::set(t);
  const auto& [d, h, w] = t.conv.axis;
  std::set<std::array<int64_t, 4>> covered;
  const std::vector<int> part_of = part_of_steps(t.conv, parts_of(t.parts));
  for (size_t o = 0; o < t.parts.size(); ++o) {
    const DepthStreaming::ColumnPart& owner = t.parts[o];
    ASSERT_GT(owner.blocks, 0);
    for (int block = 0; block < owner.blocks; ++block) {
      const index::Walk<G> walk = index::walk_of<G>(block, owner.blocks, 0, t.tiles, owner.planes);
      ASSERT_GT(walk.count, 0);
      std::vector<index::PairAt> brought;
      for (int k = 0; k < walk.count; k += walk.rest_of_run(k)) {
        const int job = walk.job(k);
        index::PairAt p = index::column_at<G>(job / d.windows, job % d.windows + owner.depth, owner.line);
        for (int i = 0; i < walk.rest_of_run(k) + owner.planes - 1; ++i, p.line += h.pitch)
          brought.push_back(p);
      }
      ASSERT_EQ(static_cast<int>(brought.size()), walk.plane(walk.count - 1) + owner.planes);
      for (int k = 0; k < walk.count; ++k) {
        const int job = walk.job(k), n = job * t.conv.batch / t.tiles;
        if (!t.side_by_side) {  // the sample's parts have a slot for every block that meets it
          ASSERT_EQ(index::block_of_job(job, t.tiles, owner.blocks), block);
          const int slot = block - index::block_of_job(n * (t.tiles / t.conv.batch), t.tiles, owner.blocks);
          ASSERT_GE(slot, 0);
          ASSERT_LT(slot, owner.slots);
        }
        const int tile = index::job_tile<G>(job), lowest = walk.plane(k);
        for (int q = 0; q < t.m / 64; ++q) {
          for (int i = 0; i < 64; ++i) {
            const index::Row row = index::row_of<G>(tile, q, i);
            if (!row.ok) continue;
            covered.insert({row.n, row.jd, row.jh, row.jw});
            for (size_t s = 0; s < t.conv.steps.size(); ++s) {
              if (part_of[s] != static_cast<int>(o)) continue;
              const auto& [sd, sh, sw] = t.conv.steps[s].delta[0];
              const DepthStreaming::PairView& v = t.views[sw & 1];
              // As the kernel's descriptors have it: eight-row groups are v.pairs rows apart.
              const int in_plane = index::pair_row<G>(q, v.pairs) + (sh - owner.line) * 2 * v.pairs +
                                   (sw - v.first) / 2 + i / 8 * v.pairs + i % 8;
              const int line = in_plane / (2 * v.pairs), parity = in_plane / v.pairs % 2,
                        pair = in_plane % v.pairs;
              ASSERT_LT(line, t.tile_lines);
              const index::PairAt& at = brought[lowest + sd - owner.depth];
              // As TMA's view has it.
              const int64_t copied = int64_t{at.line + line - t.lines_before} * w.pitch + v.first +
                                     2 * (at.pair + pair) + parity;
              ASSERT_GE(at.line, 0);
              ASSERT_GE(copied, -t.copy.guard);
              ASSERT_LT(copied, t.copy.rows + t.copy.guard);
              const int want[3] = {row.jd + sd, row.jh + sh, row.jw + sw};
              ASSERT_EQ(content(t, 0, copied), place(t, row.n, want))
                  << "tile " << tile << " row " << q * 64 + i << " shifts " << sd << " " << sh << " " << sw;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(covered.size()), int64_t{t.conv.batch} * d.windows * h.windows * w.windows);
  EXPECT_EQ(std::set<int>(t.order.begin(), t.order.end()).size(), t.conv.steps.size());
}

TEST(CudaStreams, DepthStreamingMeetsItsInputs) {
  Pick pick{std::mt19937(7)};
  int depth_streaming = 0, abreast = 0, runs = 0;
  for (int round = 0; round < 500; ++round) {
    ConvGeometry g = pick_channels(pick, 40, 64);
    EpilogueNeeds needs;
    needs.own_copy = true;
    needs.store_phases = 2;
    needs.input_lo = needs.weights_lo = pick(0, 1);
    needs.float_rows = pick(0, 1);
    needs.reduces = pick(0, 1);
    needs.multiprocessors = pick(1, 20);
    for (size_t a = 0; a < g.spatial; ++a) {
      const bool width = a + 1 == g.spatial;
      add_axis(g, {width ? pick(12, 40) : pick(1, 9), pick(1, 4), width ? 2 : pick(1, 2), 1, pick(0, 1),
                   pick(0, 1)});
    }
    SCOPED_TRACE(round);
    std::string why;
    const auto schedule = choose_schedule(g, needs, why);
    const auto* streaming = dynamic_cast<const DepthStreaming*>(schedule.get());
    if (!streaming) continue;
    const DepthStreaming& t = *streaming;
    ++depth_streaming;
    abreast += t.side_by_side;
    runs += t.side_by_side && t.run > 1;
    ASSERT_LE(t.shared_bytes(), needs.shared_limit);
    check_depth_streaming(t);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(depth_streaming, 20);
  EXPECT_GT(depth_streaming, abreast + 5);
  EXPECT_GT(abreast, runs);
  EXPECT_GT(runs, 0);
}

// Batch norm's convolution at the document's size: 158 of 170 lines of taps meet the input, 17 rows of 18
// count.
TEST(CudaStreams, BatchNormGoesByLine) {
  const ConvGeometry g{2, 512, 64, 128, 1, {32, 32}, {34, 34}, {5, 5}, {1, 1}, {1, 1}, {1, 1}, {1, 1}};
  for (const bool exact : {false, true}) {
    std::string why;
    EpilogueNeeds needs;
    needs.whole_columns = false;
    needs.pool = {1, 2, 2};
    needs.pooled = needs.mixes_samples = needs.pool_leaves = needs.reduces = true;
    needs.input_lo = needs.weights_lo = exact;
    needs.shared_limit = 223 << 10;
    const auto schedule = choose_schedule(g, needs, why);
    ASSERT_TRUE(schedule) << why;
    auto* by_line = dynamic_cast<LineByLine*>(schedule.get());
    ASSERT_TRUE(by_line);
    LineByLine& t = *by_line;
    EXPECT_EQ(t.conv.n, 128);
    EXPECT_EQ(t.row_steps(), 512. * 18 * 2 * 158 * 5);
    // 11376 lines of taps for 132 blocks: 86.2 each. No block has more than 88, or 85 in ten tiles.
    ASSERT_EQ(t.parts.size(), 1u);
    EXPECT_EQ(t.parts[0].plain_waves, 0);
    auto lines_of = [&](const std::vector<int>& tiles) {
      int lines = 0;
      for (const int tile : tiles)
        lines += t.lines_at(tile / t.tiles_per_plane, 0) + t.lines_at(tile / t.tiles_per_plane, 1);
      return lines;
    };
    for (const auto& tiles : t.parts[0].last_tiles) EXPECT_LE(lines_of(tiles), tiles.size() > 9 ? 85 : 88);
    // In two launches no more, if the second one's blocks begin where the first one's are done; and an eighth
    // more memory for half of the pooled values.
    const int64_t copy = t.copy_bytes();
    ASSERT_TRUE(t.divide(17, 17));
    ASSERT_EQ(t.parts.size(), 2u);
    std::vector<int> days;
    for (const auto& tiles : t.parts[0].last_tiles) days.push_back(lines_of(tiles));
    std::ranges::sort(days);
    EXPECT_GE(days.front(), days.back() - 5);  // so that nobody waits long
    for (size_t b = 0; b < days.size(); ++b) EXPECT_LE(days[b] + lines_of(t.parts[1].last_tiles[b]), 89);
    EXPECT_LE(t.copy_bytes(), copy + copy / 8);
  }
}

}  // namespace
}  // namespace upweave::cuda
