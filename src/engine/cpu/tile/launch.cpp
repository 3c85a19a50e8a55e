#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/checked.h"
#include "base/watch.h"
#include "engine/cpu/tile/finish.h"
#include "engine/cpu/tile/grid.h"
#include "engine/cpu/tile/pack.h"
#include "engine/cpu/tile/steps.h"
#include "engine/cpu/tile/work.h"

namespace upweave::cpu {
namespace {

constexpr int64_t kPackedInputBytes = int64_t{8} << 20;  // of packed input a thread, at most
constexpr int64_t kMaxShares = int64_t{1} << 22;         // of tiles in all of a launch's reductions, a sample

class TileLaunch final : public Launch {
 public:
  TileLaunch(TileProgram program, int64_t cache)
      : p_(std::move(program)),
        grid_(p_, cache),
        steps_(p_, grid_),
        cache_(cache),
        packed_input_limit_(std::min(kPackedInputBytes, 8 * cache)) {
    if (steps_.shares() > kMaxShares / std::max<int64_t>(1, static_cast<int64_t>(p_.reductions.size()))) {
      throw fail(Status::kUnsupported,
                 "a reduction over {} positions has {} tiles a sample, which are too many to combine",
                 p_.dims.voxels(), steps_.shares());
    }
    for (const Reduction& reduction : p_.reductions) {
      counts_.emplace_back();
      for (int64_t i = 0; i < steps_.shares(); ++i) {
        counts_.back().push_back(last() ? grid_.box_at(grid_.tile(i), reduction.level).count()
                                        : p_.dims.voxels());
      }
    }
  }

  int64_t scratch_bytes(int threads) const override {
    const int64_t own = checked_mul(threads, steps_.thread_bytes(), "the workspace");
    return checked_add(checked_add(steps_.partial_bytes(), packed_input_bytes(threads), "the workspace"), own,
                       "the workspace");
  }

  std::string describe() const override {
    std::string s = p_.text;
    if (last()) {
      s += fmt::format("; tiles of {}x{}x{} positions, {} KiB a thread", grid_.extent[0], grid_.extent[1],
                       grid_.extent[2], steps_.thread_bytes() >> 10);
    } else {
      s += fmt::format("; tiles of {} channels x {} positions, {} KiB a thread", grid_.channels,
                       grid_.columns, steps_.thread_bytes() >> 10);
    }
    if (p_.conv) s += "; " + p_.conv->kernel->describe();
    return s;
  }

  Work work() const override { return tile_work(p_, grid_, cache_); }
  Extents tile() const override { return grid_.extent; }
  bool over_batch() const override {
    return std::ranges::any_of(p_.reductions, [](const Reduction& r) { return of_batch(r); });
  }

  void run(const Bases& bases, char* scratch, int threads, bool again) const override {
    double* partials = reinterpret_cast<double*>(scratch);
    char* packed_input = scratch + steps_.partial_bytes();
    char* own = packed_input + packed_input_bytes(threads);
    Watch* watch = Watch::here();
#pragma omp parallel num_threads(threads)
    {
      char* mine = own + omp_get_thread_num() * steps_.thread_bytes();
      const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
      if (p_.conv) {
        sweep_conv(bases, partials, packed_input, mine, threads, me, team, again, watch);
      } else {
        const int64_t tiles = p_.dims.n * grid_.per_sample;
        const int64_t end = tiles * (me + 1) / team;
        for (int64_t t = tiles * me / team; t < end && !interrupted(watch); ++t)
          steps_.run(bases, grid_.tile(t), partials, mine);
      }
      flush_stream();
#pragma omp barrier
      for (size_t r = 0; r < p_.reductions.size(); ++r) {
        if (counts(bases, p_.reductions[r])) finish(bases, r, partials, me, team);
      }
    }
  }

 private:
  bool last() const { return p_.layout == Layout::kChannelsLast; }

  // --- convolution

  Box whole_output() const {
    Box box;
    box.extent = p_.levels[0].extent;
    return box;
  }
  size_t outer_axis() const { return grid_.count[0] > 1 ? 0 : grid_.count[1] > 1 ? 1 : 2; }

  // Samples, and rows of tiles along the outermost axis, whose input is packed at once.
  struct Wave {
    int64_t samples, rows;
    Box input;  // for `rows` from the start; it moves along with them
  };
  int64_t packed_input_size(const Box& input) const {
    const int64_t element = p_.conv->kernel->input_type() == Dtype::kBF16 ? 2 : 4;
    const int64_t positions =
        checked_mul(input.count(), p_.conv->kernel->channels_in(), "the input of a convolution's tiles");
    return round_up(checked_mul(positions, element, "the input of a convolution's tiles"), 64) + 256;
  }
  Box rows_input(int64_t first, int64_t rows) const {
    Box out = whole_output();
    const size_t a = outer_axis();
    out.lo[a] = first * grid_.extent[a];
    out.extent[a] = std::min(rows * grid_.extent[a], p_.levels[0].extent[a] - out.lo[a]);
    return p_.conv->kernel->input_box(out);
  }
  Wave wave(int threads) const {
    const int64_t limit = packed_input_limit_ * threads;
    Wave w{1, grid_.count[outer_axis()], rows_input(0, grid_.count[outer_axis()])};
    while (w.rows > 1 && packed_input_size(w.input) > limit) {
      w.rows = (w.rows + 1) / 2;
      w.input = rows_input(0, w.rows);
    }
    if (w.rows == grid_.count[outer_axis()])
      w.samples = std::clamp<int64_t>(limit / packed_input_size(w.input), 1, p_.dims.n);
    return w;
  }
  int64_t packed_input_bytes(int threads) const {
    if (!p_.conv) return 0;
    const Wave w = wave(threads);
    // Where a box begins matters modulo the tile quantum; the last one may be smaller, never larger.
    const int64_t starts = std::max<int64_t>(1, p_.conv->kernel->tile_quantum()[outer_axis()]);
    int64_t largest = 0;
    for (int64_t r = 0, i = 0; r < grid_.count[outer_axis()] && i < starts; r += w.rows, ++i)
      largest = std::max(largest, packed_input_size(rows_input(r, w.rows)));
    return round_up(checked_mul(w.samples, largest, "the input of a convolution's tiles"), 4096);
  }

  void sweep_conv(const Bases& bases, double* partials, char* packed_input, char* mine, int threads,
                  int64_t me, int64_t team, bool again, Watch* watch) const {
    const Wave w = wave(threads);
    const int64_t rows_all = grid_.count[outer_axis()], tiles_a_row = grid_.per_sample / rows_all;
    const int64_t element = p_.conv->kernel->input_type() == Dtype::kBF16 ? 2 : 4;
    Packer packer(*p_.conv, bases, steps_.stage(mine));
    for (int64_t n = 0; n < p_.dims.n; n += w.samples) {
      const int64_t samples = std::min(w.samples, p_.dims.n - n);
      for (int64_t r = 0; r < rows_all; r += w.rows) {
        const int64_t rows = std::min(w.rows, rows_all - r);
        const Box input = rows_input(r, rows);
        const int64_t row_bytes = input.extent[2] * p_.conv->kernel->channels_in() * element;
        const int64_t lines = input.extent[0] * input.extent[1];
        const bool packed_before = again && w.samples == p_.dims.n && w.rows == rows_all;
        const bool packs = !packed_before && !interrupted(watch);  // all threads still meet at the barriers
        const int64_t last_line = samples * lines * (me + 1) / team;
        for (int64_t i = samples * lines * me / team, some = 0; packs && i < last_line; i += some) {
          const int64_t h = i % input.extent[1];
          some = std::min({kPackRows, last_line - i, input.extent[1] - h});
          packer.pack_rows(input, n + i / lines, i % lines / input.extent[1], h, some,
                           packed_input + i / lines * packed_input_size(input) + i % lines * row_bytes);
        }
#pragma omp barrier
        const int64_t a_sample = rows * tiles_a_row, tiles = samples * a_sample;
        const int64_t end = tiles * (me + 1) / team;
        for (int64_t i = tiles * me / team; i < end && !interrupted(watch); ++i) {
          const Tile t = grid_.tile((n + i / a_sample) * grid_.per_sample + r * tiles_a_row + i % a_sample);
          const ConvInput in{packed_input + i / a_sample * packed_input_size(input), input,
                             p_.conv->kernel->channels_in()};
          const ConvOutput out{steps_.value(bases, t, mine, p_.conv->out), t.box, p_.ld_channels};
          p_.conv->kernel->compute(bases.packed + p_.conv->packed_offset, in, out, steps_.conv_scratch(mine));
          steps_.run(bases, t, partials, mine);
        }
#pragma omp barrier
      }
    }
  }

  // --- reductions

  void finish(const Bases& bases, size_t r, double* partials, int64_t me, int64_t team) const {
    const Reduction& reduction = p_.reductions[r];
    const int64_t sets = finish_sets(reduction, p_.dims);
    for (int64_t s = sets * me / team; s < sets * (me + 1) / team; ++s) {
      finish_set(reduction, p_.dims, s, steps_.share(partials, r, 0, 0), counts_[r], bases);
    }
  }

  TileProgram p_;
  TileGrid grid_;
  TileSteps steps_;
  int64_t cache_, packed_input_limit_;
  std::vector<std::vector<int64_t>> counts_;  // of each reduction: positions of a sample's tiles
};

}  // namespace

std::unique_ptr<Launch> make_tile_launch(TileProgram program, int64_t cache_bytes) {
  return std::make_unique<TileLaunch>(std::move(program), cache_bytes);
}

namespace {
std::atomic<int64_t> cache_for_test{0};
}  // namespace

void set_cache_bytes_for_test(int64_t bytes) { cache_for_test = bytes; }

int64_t cache_bytes_per_core() {
  if (const int64_t bytes = cache_for_test) return bytes;
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return std::clamp<int64_t>(bytes, int64_t{256} << 10, int64_t{2} << 20);
}

}  // namespace upweave::cpu
