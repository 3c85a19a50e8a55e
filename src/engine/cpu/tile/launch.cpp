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
#include "engine/cpu/tile/move.h"
#include "engine/cpu/tile/pack.h"
#include "engine/cpu/tile/tile.h"
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
        cache_(cache),
        packed_input_limit_(std::min(kPackedInputBytes, 8 * cache)) {
    size_buffers();
    for (size_t i = 0; i < p_.steps.size();) {
      size_t j = i + 1;
      if (chunked(p_.steps[i])) {
        while (j < p_.steps.size() && chunked(p_.steps[j]) && level_of(p_.steps[j]) == level_of(p_.steps[i]))
          ++j;
      }
      segments_.push_back({i, j});
      i = j;
    }
    if (shares() > kMaxShares / std::max<int64_t>(1, static_cast<int64_t>(p_.reductions.size()))) {
      throw fail(Status::kUnsupported,
                 "a reduction over {} positions has {} tiles a sample, which are too many to combine",
                 p_.dims.voxels(), shares());
    }
    for (const Reduction& reduction : p_.reductions) {
      counts_.emplace_back();
      for (int64_t i = 0; i < shares(); ++i) {
        counts_.back().push_back(last() ? grid_.box_at(grid_.tile(i), reduction.level).count()
                                        : p_.dims.voxels());
      }
    }
  }

  int64_t scratch_bytes(int threads) const override {
    const int64_t own = checked_mul(threads, thread_bytes_, "the workspace");
    return checked_add(checked_add(partial_bytes(), packed_input_bytes(threads), "the workspace"), own,
                       "the workspace");
  }

  std::string describe() const override {
    std::string s = p_.text;
    if (last()) {
      s += fmt::format("; tiles of {}x{}x{} positions, {} KiB a thread", grid_.extent[0], grid_.extent[1],
                       grid_.extent[2], thread_bytes_ >> 10);
    } else {
      s += fmt::format("; tiles of {} channels x {} positions, {} KiB a thread", grid_.channels,
                       grid_.columns, thread_bytes_ >> 10);
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
    char* packed_input = scratch + partial_bytes();
    char* own = packed_input + packed_input_bytes(threads);
    Watch* watch = Watch::here();
#pragma omp parallel num_threads(threads)
    {
      char* mine = own + omp_get_thread_num() * thread_bytes_;
      const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
      if (p_.conv) {
        sweep_conv(bases, partials, packed_input, mine, threads, me, team, again, watch);
      } else {
        const int64_t tiles = p_.dims.n * grid_.per_sample;
        const int64_t end = tiles * (me + 1) / team;
        for (int64_t t = tiles * me / team; t < end && !interrupted(watch); ++t)
          run_tile(bases, grid_.tile(t), partials, mine);
      }
      flush_stream();
#pragma omp barrier
      for (size_t r = 0; r < p_.reductions.size(); ++r) {
        if (counts(bases, p_.reductions[r])) finish(bases, r, partials, me, team);
      }
    }
  }

 private:
  struct Segment {
    size_t begin, end;
  };

  static bool of_batch(const Reduction& r) {
    return r.what == Reduction::What::kMoments && r.sets == NormSets::Kind::kBatch;
  }
  static bool counts(const Bases& bases, const Reduction& r) { return bases.counts || !of_batch(r); }

  bool last() const { return p_.layout == Layout::kChannelsLast; }
  const Slot& slot(int s) const { return p_.slots[static_cast<size_t>(s)]; }
  bool chunked(const Step& step) const {
    return step.row_local(p_.layout) &&
           (slot(step.out).kind == Kind::kFull || slot(step.out).kind == Kind::kLine);
  }
  int level_of(const Step& step) const { return slot(step.out).level; }

  // --- buffers

  void size_buffers() {
    int64_t floats = 0;
    for (size_t b = 0; b < p_.buffer_kind.size(); ++b) {
      offset_.push_back(floats);
      // Buffers start a few lines apart modulo the page, so that a row of one and of another do not alias.
      floats += round_up(grid_.buffer_floats(b), kLane) + 5 * kLane;
    }
    stage_ = floats;
    floats += std::max(kStageFloats, p_.conv ? pack_scratch_floats(*p_.conv) : 0);
    columns_scratch_ = floats;
    floats += 8 * padded(p_.dims.c) + 4 * kLane;
    conv_scratch_ = round_up(floats * 4, 64);
    thread_bytes_ = round_up(
        conv_scratch_ + (p_.conv ? static_cast<int64_t>(p_.conv->kernel->scratch_bytes()) : 0), 4096);
  }

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
    float* stage = reinterpret_cast<float*>(mine) + stage_;
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
          pack_rows(*p_.conv, bases, input, n + i / lines, i % lines / input.extent[1], h, some,
                    packed_input + i / lines * packed_input_size(input) + i % lines * row_bytes, stage);
        }
#pragma omp barrier
        const int64_t a_sample = rows * tiles_a_row, tiles = samples * a_sample;
        const int64_t end = tiles * (me + 1) / team;
        for (int64_t i = tiles * me / team; i < end && !interrupted(watch); ++i) {
          const Tile t = grid_.tile((n + i / a_sample) * grid_.per_sample + r * tiles_a_row + i % a_sample);
          const ConvInput in{packed_input + i / a_sample * packed_input_size(input), input,
                             p_.conv->kernel->channels_in()};
          const ConvOutput out{value(bases, t, mine, p_.conv->out), t.box, p_.ld_channels};
          p_.conv->kernel->compute(bases.packed + p_.conv->packed_offset, in, out, mine + conv_scratch_);
          run_tile(bases, t, partials, mine);
        }
#pragma omp barrier
      }
    }
  }

  // --- steps

  float* buffer(char* mine, int s) const {
    return reinterpret_cast<float*>(mine) + offset_[static_cast<size_t>(slot(s).buffer)];
  }

  // A slot's values in this tile, channels last: in a buffer, or in their place among the tiles that are
  // kept.
  float* value(const Bases& bases, const Tile& t, char* mine, int s) const {
    const Memory& alias = slot(s).alias;
    return alias.exists() ? reinterpret_cast<float*>(alias.write(bases)) + kept_at(t) : buffer(mine, s);
  }

  void run_tile(const Bases& bases, const Tile& t, double* partials, char* mine) const {
    for (const Segment& segment : segments_) {
      const Step& first = p_.steps[segment.begin];
      if (chunked(first)) {
        last() ? run_rows(bases, segment, t, mine) : run_columns(bases, segment, t, mine);
      } else {
        run_step(bases, first, t, partials, mine);
      }
    }
  }

  // Channels last: a few rows at a time through all steps.
  void run_rows(const Bases& bases, const Segment& segment, const Tile& t, char* mine) const {
    const int64_t rows = grid_.box_at(t, level_of(p_.steps[segment.begin])).count(), ld = p_.ld_channels;
    const int64_t chunk = std::max<int64_t>(kLane, kChunkFloats / ld / kLane * kLane);
    for (int64_t r = 0; r < rows; r += chunk) {
      const int64_t n = std::min(chunk, rows - r);
      for (size_t i = segment.begin; i < segment.end; ++i) {
        const Step& s = p_.steps[i];
        const bool line = slot(s.out).kind == Kind::kLine;
        auto view = [&](int id) -> View {
          if (id < 0) return {&s.a, 0, 0};
          const float* p = value(bases, t, mine, id);
          switch (slot(id).kind) {
            case Kind::kFull:
              return {p + r * ld, ld, 1};
            case Kind::kLine:
              return line ? View{p + r, 0, 1} : View{p + r, 1, 0};
            case Kind::kVector:
              return {p, 0, 1};
            default:
              return {p, 0, 0};
          }
        };
        float* out = value(bases, t, mine, s.out) + (line ? r : r * ld);
        const float* x = view(s.x).p;
        switch (s.what) {
          case Step::What::kPointwise:
            pointwise(s.fn, s.a, s.b, view(s.x), view(s.y), out, ld, line ? 1 : n, line ? n : ld);
            break;
          case Step::What::kAffine:
            affine(view(s.x), view(s.y), view(s.z), view(s.w), out, ld, n, ld);
            break;
          case Step::What::kScale:
            scale(view(s.x), view(s.y), view(s.z), out, ld, n, ld);
            break;
          case Step::What::kFoldChannels:
            fold_rows(s.fold, x, ld, n, p_.dims.c, out);
            break;
          case Step::What::kSoftmaxRows:
            softmax_rows(x, ld, n, p_.dims.c, out);
            break;
          case Step::What::kRmsNorm:
            rms_norm_rows(x, ld, n, p_.dims.c, s.eps, out);
            break;
          case Step::What::kLayerNorm:
            layer_norm_rows(x, ld, n, p_.dims.c, s.eps, out);
            break;
          default:
            break;
        }
      }
    }
  }

  // Channels first: a piece of one row at a time.
  void run_columns(const Bases& bases, const Segment& segment, const Tile& t, char* mine) const {
    const int64_t ld = padded(t.positions);
    for (int64_t r = 0; r < t.channels; ++r) {
      for (int64_t c = 0; c < t.positions; c += kChunkFloats) {
        const int64_t n = std::min(kChunkFloats, t.positions - c);
        for (size_t i = segment.begin; i < segment.end; ++i) {
          const Step& s = p_.steps[i];
          if (slot(s.out).kind == Kind::kLine && r > 0) continue;
          auto view = [&](int id) -> View {
            if (id < 0) return {&s.a, 0, 0};
            if (const Memory& alias = slot(id).alias; alias.exists()) {
              return {reinterpret_cast<const float*>(alias.read(bases)) + alias_at(t, r) + c, 0, 1};
            }
            const float* p = buffer(mine, id);
            switch (slot(id).kind) {
              case Kind::kFull:
                return {p + r * ld + c, 0, 1};
              case Kind::kLine:
                return {p + c, 0, 1};
              case Kind::kVector:
                return {p + r, 0, 0};
              default:
                return {p, 0, 0};
            }
          };
          const Slot& to = slot(s.out);
          float* out = to.alias.exists()
                           ? reinterpret_cast<float*>(to.alias.write(bases)) + alias_at(t, r) + c
                           : buffer(mine, s.out) + (to.kind == Kind::kLine ? c : r * ld + c);
          if (s.what == Step::What::kPointwise) {
            pointwise(s.fn, s.a, s.b, view(s.x), view(s.y), out, 0, 1, n);
          } else if (s.what == Step::What::kScale) {
            scale(view(s.x), view(s.y), view(s.z), out, 0, 1, n);
          } else {
            affine(view(s.x), view(s.y), view(s.z), view(s.w), out, 0, 1, n);
          }
        }
      }
    }
  }

  void run_step(const Bases& bases, const Step& s, const Tile& t, double* partials, char* mine) const {
    using What = Step::What;
    float* stage = reinterpret_cast<float*>(mine) + stage_;
    float* out = s.out >= 0 ? value(bases, t, mine, s.out) : nullptr;
    const float* x = s.x >= 0 ? value(bases, t, mine, s.x) : nullptr;
    const int64_t ld = last() ? p_.ld_channels : padded(t.positions);
    switch (s.what) {
      case What::kLoad:
        return load(bases, s, t, mine, stage);
      case What::kStore:
        return store(bases, s, t, mine, stage);
      case What::kPointwise: {  // of vectors and scalars
        auto view = [&](int id) -> View {
          if (id < 0) return {&s.a, 0, 0};
          return {buffer(mine, id), 0, slot(id).kind == Kind::kVector ? 1 : 0};
        };
        const int64_t n = slot(s.out).kind == Kind::kVector ? t.channels : 1;
        pointwise(s.fn, s.a, s.b, view(s.x), view(s.y), out, 0, 1, n);
        return;
      }
      case What::kPool: {
        const Extents in = grid_.box_at(t, slot(s.x).level).extent,
                      extent = grid_.box_at(t, slot(s.out).level).extent;
        return pool_tile(s.pooling, x, in, ld, s.window, s.stride, s.y >= 0 ? buffer(mine, s.y) : nullptr,
                         out, extent);
      }
      case What::kNormPool:
        return norm_pool_tile(s.rms, x, grid_.box_at(t, slot(s.x).level).extent, ld, p_.dims.c, s.eps,
                              s.window, out, grid_.box_at(t, slot(s.out).level).extent);
      case What::kSoftmaxRows:
        return softmax_rows(x, ld, t.channels, t.positions, out);
      case What::kFoldSpace:
        return fold_rows(s.fold, x, ld, t.channels, t.positions, out);
      case What::kNormLast:
        return norm_last(s, t, x, out, mine);
      case What::kMoments: {
        double* mean = reinterpret_cast<double*>(out);
        return local_moments(s, x, ld, t.channels, t.positions, mean, mean + padded(p_.dims.c));
      }
      case What::kFactors: {
        const double* stats = s.x >= 0 ? reinterpret_cast<const double*>(x) : nullptr;
        return norm_factors(s, bases, stats, padded(p_.dims.c), t.n, t.c0, t.channels, p_.dims,
                            buffer(mine, s.y), buffer(mine, s.z), buffer(mine, s.w));
      }
      case What::kExpFactors:
        return softmax_factors(s, bases, t.n, t.c0, t.channels, p_.dims, buffer(mine, s.y),
                               buffer(mine, s.z));
      case What::kPartial:
        if (!counts(bases, p_.reductions[static_cast<size_t>(s.reduction)])) return;
        return partial(s, t, x, ld, partials, mine);
      default:
        return;
    }
  }

  void load(const Bases& bases, const Step& s, const Tile& t, char* mine, float* stage) const {
    const Slot& to = slot(s.out);
    float* out = buffer(mine, s.out);
    if (to.kind == Kind::kVector || to.kind == Kind::kScalar) {
      return load_vector(s.memory, bases, t.n, t.c0, to.kind == Kind::kVector ? t.channels : 1, out);
    }
    const int64_t channels = to.kind == Kind::kFull ? t.channels : 1;
    if (last()) {
      const Region region{t.n, 0, channels, grid_.box_at(t, to.level)};
      return load_positions(s.memory, bases, region, out, to.kind == Kind::kFull ? p_.ld_channels : 1, stage);
    }
    const Region region{t.n, to.kind == Kind::kFull ? t.c0 : 0, channels, {}};
    load_channels(s.memory, bases, region, p_.dims.space, t.first, t.positions, out, padded(t.positions));
  }

  void store(const Bases& bases, const Step& s, const Tile& t, char* mine, float* stage) const {
    const Slot& from = slot(s.x);
    const float* x = value(bases, t, mine, s.x);
    if (from.kind == Kind::kVector || from.kind == Kind::kScalar) {
      if (!t.leads || (from.kind == Kind::kScalar && t.c0 > 0)) return;
      const int64_t channels = from.kind == Kind::kVector ? t.channels : 1;
      const int64_t at = (s.memory.dims.n == 1 ? 0 : t.n) * s.memory.dims.c + t.c0;
      return store_elements(x, channels, s.memory, bases, at, false);
    }
    const int64_t channels = from.kind == Kind::kFull ? t.channels : 1;
    if (last()) {
      const Region region{t.n, 0, channels, grid_.box_at(t, from.level)};
      return store_positions(x, from.kind == Kind::kFull ? p_.ld_channels : 1, region, s.memory, bases,
                             s.stream, stage);
    }
    if (from.kind == Kind::kLine && t.c0 > 0) return;
    const Region region{t.n, t.c0, channels, {}};
    store_channels(x, padded(t.positions), region, t.first, t.positions, s.memory, bases, s.stream);
  }

  // Where a tile begins in a value that is kept tile after tile: behind the planes before it, the rows of
  // tiles before it in its planes, and the tiles before it in its row.
  int64_t kept_at(const Tile& t) const {
    const Extents &lo = t.box.lo, &extent = t.box.extent, &full = p_.levels[0].extent;
    return (lo[0] * full[1] * full[2] + extent[0] * (lo[1] * full[2] + extent[1] * lo[2])) * p_.ld_channels;
  }

  // Where row `r` of a tile, channels first, begins in memory.
  int64_t alias_at(const Tile& t, int64_t r) const {
    return (t.n * p_.dims.c + t.c0 + r) * p_.dims.voxels() + t.first;
  }

  // Over runs of `trailing` positions that follow each other.
  void norm_last(const Step& s, const Tile& t, const float* x, float* out, char* mine) const {
    float* factors = reinterpret_cast<float*>(mine) + columns_scratch_;
    if (last()) {
      const int64_t rows = grid_.box_at(t, slot(s.x).level).count(), ld = p_.ld_channels;
      for (int64_t r = 0; r < rows; r += s.trailing) {
        norm_columns(x + r * ld, ld, s.trailing, p_.dims.c, s.rms, s.eps, factors, out + r * ld);
      }
      return;
    }
    const int64_t ld = padded(t.positions), runs = t.positions / s.trailing;
    for (int64_t c = 0; c < t.channels; ++c) {
      (s.rms ? rms_norm_rows : layer_norm_rows)(x + c * ld, s.trailing, runs, s.trailing, s.eps,
                                                out + c * ld);
    }
  }

  // --- reductions

  // Channels last: one share a tile. Channels first: one a sample, for a tile holds all of a channel's space.
  int64_t shares() const { return last() ? grid_.per_sample : 1; }
  int64_t partial_bytes() const {
    return round_up(static_cast<int64_t>(p_.reductions.size()) * p_.dims.n * shares() * p_.dims.c * 16, 4096);
  }
  double* share(double* partials, size_t r, int64_t n, int64_t i) const {
    return partials + ((static_cast<int64_t>(r) * p_.dims.n + n) * shares() + i) * p_.dims.c * 2;
  }

  void partial(const Step& s, const Tile& t, const float* x, int64_t ld, double* partials, char* mine) const {
    const Reduction& reduction = p_.reductions[static_cast<size_t>(s.reduction)];
    double* a =
        share(partials, static_cast<size_t>(s.reduction), t.n, last() ? t.index % grid_.per_sample : 0);
    double* b = a + p_.dims.c;
    if (!last()) return moments_rows(x, ld, t.channels, t.positions, a + t.c0, b + t.c0);
    float* scratch = reinterpret_cast<float*>(mine) + columns_scratch_;
    const int64_t rows = grid_.box_at(t, reduction.level).count();
    if (rows == 0) return;
    switch (reduction.what) {
      case Reduction::What::kMoments:
        return moments_columns(x, ld, rows, p_.dims.c, a, b, scratch);
      case Reduction::What::kExpSum:
        return exp_sum_columns(x, ld, rows, p_.dims.c, a, b, scratch);
      case Reduction::What::kFold:
        return fold_columns(reduction.fold, x, ld, rows, p_.dims.c, a, scratch);
    }
  }

  void finish(const Bases& bases, size_t r, double* partials, int64_t me, int64_t team) const {
    const Reduction& reduction = p_.reductions[r];
    const int64_t sets = finish_sets(reduction, p_.dims);
    for (int64_t s = sets * me / team; s < sets * (me + 1) / team; ++s) {
      finish_set(reduction, p_.dims, s, share(partials, r, 0, 0), counts_[r], bases);
    }
  }

  TileProgram p_;
  TileGrid grid_;
  int64_t cache_, packed_input_limit_;
  std::vector<int64_t> offset_;
  std::vector<Segment> segments_;
  std::vector<std::vector<int64_t>> counts_;  // of each reduction: positions of a sample's tiles
  int64_t stage_ = 0, columns_scratch_ = 0, conv_scratch_ = 0, thread_bytes_ = 0;
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
