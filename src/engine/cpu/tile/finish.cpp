#include "engine/cpu/tile/finish.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/partials.h"

namespace upweave::cpu {

void local_moments(const Step& step, const float* x, int64_t ld, int64_t channels, int64_t positions,
                   double* mean, double* variance) {
  moments_rows(x, ld, channels, positions, mean, variance);
  const int64_t together = step.groups;  // channels of one set
  for (int64_t c = 0; c < channels; c += together) {
    Moments set;
    for (int64_t k = c; k < c + together; ++k)
      set.add({static_cast<double>(positions), mean[k], variance[k]});
    for (int64_t k = c; k < c + together; ++k) {
      mean[k] = set.mean;
      variance[k] = set.variance();
    }
  }
}

namespace {

// Which set of a {2, sets} tensor channel c of sample n belongs to.
int64_t set_of(NormSets::Kind kind, int64_t groups, const Dims& dims, int64_t n, int64_t c) {
  switch (kind) {
    case NormSets::Kind::kBatch:
      return c;
    case NormSets::Kind::kGroup:
      return n * groups + c / (dims.c / groups);
    default:
      return n * dims.c + c;
  }
}

double element(const Memory& memory, const Bases& bases, int64_t i) { return Reader(memory, bases)[i]; }

}  // namespace

void norm_factors(const Step& step, const Bases& bases, const double* stats, int64_t stats_ld, int64_t n,
                  int64_t c0, int64_t channels, const Dims& dims, float* center, float* scale, float* shift) {
  const int64_t sets = step.sets == NormSets::Kind::kBatch   ? dims.c
                       : step.sets == NormSets::Kind::kGroup ? dims.n * step.groups
                                                             : dims.n * dims.c;
  for (int64_t c = 0; c < channels; ++c) {
    double mean, variance;
    if (stats) {
      mean = stats[c];
      variance = stats[stats_ld + c];
    } else {
      const int64_t s = set_of(step.sets, step.groups, dims, n, c0 + c);
      mean = element(step.memory, bases, s);
      variance = element(step.memory, bases, sets + s);
    }
    double factor = 1 / std::sqrt(variance + step.eps);
    if (step.weight.exists()) factor *= element(step.weight, bases, step.weight.dims.c == 1 ? 0 : c0 + c);
    const float near = static_cast<float>(mean);
    center[c] = near;
    scale[c] = static_cast<float>(factor);
    // What rounding the mean left over goes into the shift. An infinite mean leaves NaN, as it should.
    const double rest = near - mean == 0 ? 0 : (near - mean) * factor;
    shift[c] = static_cast<float>(
        rest + (step.bias.exists() ? element(step.bias, bases, step.bias.dims.c == 1 ? 0 : c0 + c) : 0));
  }
}

void softmax_factors(const Step& step, const Bases& bases, int64_t n, int64_t c0, int64_t channels,
                     const Dims& dims, float* top, float* scale) {
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t s = n * dims.c + c0 + c;
    top[c] = static_cast<float>(element(step.memory, bases, s));
    scale[c] = static_cast<float>(1 / element(step.memory, bases, dims.n * dims.c + s));
  }
}

void norm_columns(const float* x, int64_t ld, int64_t rows, int64_t cols, bool rms, double eps,
                  float* scratch, float* out) {
  const int64_t n = padded(cols);
  double* mean = reinterpret_cast<double*>(scratch);
  double* m2 = mean + n;
  float* center = reinterpret_cast<float*>(m2 + n);
  float* scale = center + n;
  float* shift = scale + n;
  moments_columns(x, ld, rows, cols, mean, m2, shift);
  for (int64_t c = 0; c < n; ++c) {
    if (c >= cols) {
      center[c] = scale[c] = shift[c] = 0;
      continue;
    }
    const double count = static_cast<double>(rows);
    const double variance = m2[c] / count + (rms ? mean[c] * mean[c] : 0);
    const double factor = 1 / std::sqrt(variance + eps);
    center[c] = rms ? 0 : static_cast<float>(mean[c]);
    scale[c] = static_cast<float>(factor);
    shift[c] = rms ? 0 : static_cast<float>((center[c] - mean[c]) * factor);
  }
  affine({x, ld, 1}, {center, 0, 1}, {scale, 0, 1}, {shift, 0, 1}, out, ld, rows, ld);
}

int64_t finish_sets(const Reduction& reduction, const Dims& dims) {
  switch (reduction.sets) {
    case NormSets::Kind::kBatch:
      return dims.c;
    case NormSets::Kind::kGroup:
      return dims.n * reduction.groups;
    default:
      return dims.n * dims.c;
  }
}

void finish_set(const Reduction& reduction, const Dims& dims, int64_t s, const double* shares,
                const std::vector<int64_t>& counts, const Bases& bases) {
  char* result = reduction.result.write(bases);
  int64_t n0 = s / dims.c, n1 = n0 + 1, c0 = s % dims.c, c1 = c0 + 1;
  if (reduction.sets == NormSets::Kind::kBatch) {
    n0 = bases.skip, n1 = dims.n, c0 = s, c1 = s + 1;
  } else if (reduction.sets == NormSets::Kind::kGroup) {
    const int64_t together = dims.c / reduction.groups;
    n0 = s / reduction.groups, n1 = n0 + 1, c0 = s % reduction.groups * together, c1 = c0 + together;
  }
  auto each = [&](auto f) {
    for (int64_t n = n0; n < n1; ++n) {
      for (int64_t c = c0; c < c1; ++c) {
        for (size_t i = 0; i < counts.size(); ++i) {
          const double* share =
              shares + (n * static_cast<int64_t>(counts.size()) + static_cast<int64_t>(i)) * dims.c * 2;
          if (counts[i] > 0) f(static_cast<double>(counts[i]), share[c], share[dims.c + c]);
        }
      }
    }
  };
  const int64_t sets = finish_sets(reduction, dims);
  const Dtype type = reduction.result.type;
  switch (reduction.what) {
    case Reduction::What::kMoments: {
      Moments m;
      const bool batch = reduction.sets == NormSets::Kind::kBatch;
      if (batch && bases.before > 0) {  // goes on where the samples before these have left it
        const int64_t sample = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        m = {static_cast<double>(bases.before * sample), load_element(result, type, s),
             load_element(result, type, sets + s)};
      }
      each([&](double count, double mean, double m2) { m.add({count, mean, m2}); });
      store_element(result, type, s, m.mean);
      store_element(result, type, sets + s, batch && !bases.closes ? m.m2 : m.variance());
      return;
    }
    case Reduction::What::kExpSum: {
      ExpSum e;
      each([&](double, double top, double sum) { e.add({top, sum}); });
      if (reduction.fold == Fold::kLogSumExp) {
        store_element(result, type, s, std::isinf(e.top) ? e.top : e.top + std::log(e.sum));
      } else {
        store_element(result, type, s, e.top);
        store_element(result, type, sets + s, std::isinf(e.top) ? std::nan("") : e.sum);
      }
      return;
    }
    case Reduction::What::kFold: {
      double acc = 0, total = 0;
      each([&](double count, double v, double) {
        const bool first = total == 0;
        total += count;
        if (first)
          acc = v;
        else if (reduction.fold == Fold::kSum || reduction.fold == Fold::kMean)
          acc += v;
        else if (std::isnan(v) || std::isnan(acc))
          acc = v + acc;
        else
          acc = reduction.fold == Fold::kMax ? std::max(acc, v) : std::min(acc, v);
      });
      store_element(result, type, s, reduction.fold == Fold::kMean ? acc / total : acc);
      return;
    }
  }
}

}  // namespace upweave::cpu
