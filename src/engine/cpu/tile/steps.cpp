#include "engine/cpu/tile/steps.h"

#include <algorithm>

#include "engine/cpu/tile/finish.h"
#include "engine/cpu/tile/move.h"
#include "engine/cpu/tile/pack.h"

namespace upweave::cpu {

bool of_batch(const Reduction& r) {
  return r.what == Reduction::What::kMoments && r.sets == NormSets::Kind::kBatch;
}
bool counts(const Bases& bases, const Reduction& r) { return bases.counts || !of_batch(r); }

TileSteps::TileSteps(const TileProgram& program, const TileGrid& grid) : p_(program), grid_(grid) {
  size_buffers();
  find_segments();
}

bool TileSteps::chunked(const Step& step) const {
  return step.row_local(p_.layout) &&
         (slot(step.out).kind == Kind::kFull || slot(step.out).kind == Kind::kLine);
}

void TileSteps::find_segments() {
  for (size_t i = 0; i < p_.steps.size();) {
    size_t j = i + 1;
    if (chunked(p_.steps[i])) {
      while (j < p_.steps.size() && chunked(p_.steps[j]) && level_of(p_.steps[j]) == level_of(p_.steps[i]))
        ++j;
    }
    segments_.push_back({i, j});
    i = j;
  }
}

void TileSteps::size_buffers() {
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
  thread_bytes_ =
      round_up(conv_scratch_ + (p_.conv ? static_cast<int64_t>(p_.conv->kernel->scratch_bytes()) : 0), 4096);
}

int64_t TileSteps::partial_bytes() const {
  return round_up(static_cast<int64_t>(p_.reductions.size()) * p_.dims.n * shares() * p_.dims.c * 16, 4096);
}
double* TileSteps::share(double* partials, size_t r, int64_t n, int64_t i) const {
  return partials + ((static_cast<int64_t>(r) * p_.dims.n + n) * shares() + i) * p_.dims.c * 2;
}

float* TileSteps::buffer(char* mine, int s) const {
  return reinterpret_cast<float*>(mine) + offset_[static_cast<size_t>(slot(s).buffer)];
}

// A slot's values in this tile, channels last: in a buffer, or in their place among the tiles that are
// kept.
float* TileSteps::value(const Bases& bases, const Tile& t, char* mine, int s) const {
  const Memory& alias = slot(s).alias;
  return alias.exists() ? reinterpret_cast<float*>(alias.write(bases)) + kept_at(t) : buffer(mine, s);
}

void TileSteps::run(const Bases& bases, const Tile& t, double* partials, char* mine) const {
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
void TileSteps::run_rows(const Bases& bases, const Segment& segment, const Tile& t, char* mine) const {
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
void TileSteps::run_columns(const Bases& bases, const Segment& segment, const Tile& t, char* mine) const {
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
        float* out = to.alias.exists() ? reinterpret_cast<float*>(to.alias.write(bases)) + alias_at(t, r) + c
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

void TileSteps::run_step(const Bases& bases, const Step& s, const Tile& t, double* partials,
                         char* mine) const {
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
      return pool_tile(s.pooling, x, in, ld, s.window, s.stride, s.y >= 0 ? buffer(mine, s.y) : nullptr, out,
                       extent);
    }
    case What::kNormPool:
      return norm_pool_tile(s.rms, x, grid_.box_at(t, slot(s.x).level).extent, ld, p_.dims.c, s.eps, s.window,
                            out, grid_.box_at(t, slot(s.out).level).extent);
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
      return softmax_factors(s, bases, t.n, t.c0, t.channels, p_.dims, buffer(mine, s.y), buffer(mine, s.z));
    case What::kPartial:
      if (!counts(bases, p_.reductions[static_cast<size_t>(s.reduction)])) return;
      return partial(s, t, x, ld, partials, mine);
    default:
      return;
  }
}

void TileSteps::load(const Bases& bases, const Step& s, const Tile& t, char* mine, float* stage) const {
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

void TileSteps::store(const Bases& bases, const Step& s, const Tile& t, char* mine, float* stage) const {
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
int64_t TileSteps::kept_at(const Tile& t) const {
  const Extents &lo = t.box.lo, &extent = t.box.extent, &full = p_.levels[0].extent;
  return (lo[0] * full[1] * full[2] + extent[0] * (lo[1] * full[2] + extent[1] * lo[2])) * p_.ld_channels;
}

// Where row `r` of a tile, channels first, begins in memory.
int64_t TileSteps::alias_at(const Tile& t, int64_t r) const {
  return (t.n * p_.dims.c + t.c0 + r) * p_.dims.voxels() + t.first;
}

// Over runs of `trailing` positions that follow each other.
void TileSteps::norm_last(const Step& s, const Tile& t, const float* x, float* out, char* mine) const {
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
    (s.rms ? rms_norm_rows : layer_norm_rows)(x + c * ld, s.trailing, runs, s.trailing, s.eps, out + c * ld);
  }
}

void TileSteps::partial(const Step& s, const Tile& t, const float* x, int64_t ld, double* partials,
                        char* mine) const {
  const Reduction& reduction = p_.reductions[static_cast<size_t>(s.reduction)];
  double* a = share(partials, static_cast<size_t>(s.reduction), t.n, last() ? t.index % grid_.per_sample : 0);
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

}  // namespace upweave::cpu
