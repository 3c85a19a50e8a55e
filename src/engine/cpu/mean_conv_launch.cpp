#include <omp.h>

#include <algorithm>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/node_launch.h"
#include "graph/ops/conv_transpose.h"

namespace upweave::cpu {
namespace {

// mean over space of convT(x; K) = 1/|O| sum over ci, k of K[ci, co, k] S[ci, k], S[ci, k] the sum of x over
// the inputs whose tap k lands inside the output. Per axis they are an interval, so a row of inputs is summed
// once: what all taps share, and the few elements that only some of them see.
class MeanConvLaunch final : public Launch {
 public:
  MeanConvLaunch(const Node& node, const Memory& x, const Memory& kernel, const Memory& bias,
                 const std::vector<Shape>& shapes, const Memory& result)
      : x_(x), kernel_(kernel), bias_(bias), out_(result) {
    in_ = dims_of(shapes[0]);
    const size_t spatial = spatial_rank(shapes[0]);
    const auto [stride, padding, extra, dilation, step, extent, groups] = conv_attrs(node, spatial);
    groups_ = groups;
    per_out_ = shapes[1][1];
    taps_ = extents_of(Shape(shapes[1].begin() + 2, shapes[1].end()), 1);
    voxels_ = static_cast<double>(count(extent));
    for (size_t a = 0; a < 3; ++a) {
      for (int64_t k = 0; k < taps_[a]; ++k) {
        if (a + spatial < 3) {
          range_[a].push_back({0, 1});
          continue;
        }
        const size_t s = a + spatial - 3;
        const int64_t shift = k * dilation[s] - padding[s], last = extent[s] - 1 - shift;
        const int64_t lo = shift < 0 ? (-shift + stride[s] - 1) / stride[s] : 0;
        const int64_t hi = last < 0 ? 0 : std::min(in_.space[a], last / stride[s] + 1);
        range_[a].push_back({lo, std::max(lo, hi)});
      }
    }
  }

  int64_t taps() const { return taps_[0] * taps_[1] * taps_[2]; }
  int64_t scratch_bytes(int threads) const override {
    return round_up(in_.n * in_.c * taps() * 8, 64) +
           threads * round_up(padded(in_.space[2]) * 4 + taps_[2] * 8, 64);
  }
  Work work() const override {  // a float64 sum of every input, then every tap of every pair of channels
    Work work;
    work.tiles = in_.n * in_.c;
    work.bytes = static_cast<double>(in_.count()) * 4;
    work.scalars = static_cast<double>(in_.count() + in_.n * in_.c * per_out_ * taps()) / 4;
    return work;
  }
  std::string describe() const override {
    return fmt::format("mean of the convolution from {} sums of the input, without the convolution", taps());
  }

  void run(const Bases& bases, char* scratch, int threads, bool) const override {
    double* sums = reinterpret_cast<double*>(scratch);
    char* rows = scratch + round_up(in_.n * in_.c * taps() * 8, 64);
    const int64_t row_bytes = round_up(padded(in_.space[2]) * 4 + taps_[2] * 8, 64);
    const int64_t c_out = per_out_ * groups_, per_in = in_.c / groups_;
#pragma omp parallel num_threads(threads)
    {
      float* row = reinterpret_cast<float*>(rows + omp_get_thread_num() * row_bytes);
      double* row_sums = reinterpret_cast<double*>(row + padded(in_.space[2]));
#pragma omp for schedule(static)
      for (int64_t r = 0; r < in_.n * in_.c; ++r) channel_sums(bases, r, row, row_sums, sums + r * taps());
#pragma omp for schedule(static)
      for (int64_t o = 0; o < in_.n * c_out; ++o) {
        const int64_t n = o / c_out, co = o % c_out, group = co / per_out_;
        const Reader kernel(kernel_, bases);
        double total = 0;
        for (int64_t ci = group * per_in; ci < (group + 1) * per_in; ++ci) {
          for (int64_t t = 0; t < taps(); ++t) {
            total +=
                kernel[(ci * per_out_ + co % per_out_) * taps() + t] * sums[(n * in_.c + ci) * taps() + t];
          }
        }
        total /= voxels_;
        if (bias_.exists()) total += Reader(bias_, bases)[co];
        Writer(out_, bases).store(o, total);
      }
    }
  }

 private:
  struct Interval {
    int64_t lo, hi;
    bool holds(int64_t i) const { return lo <= i && i < hi; }
  };

  void channel_sums(const Bases& bases, int64_t r, float* row, double* row_sums, double* sums) const {
    std::fill(sums, sums + taps(), 0.0);
    const auto& along = range_[2];
    int64_t lo = 0, hi = in_.space[2];  // what every tap that sees anything sees
    for (const Interval& i : along) {
      if (i.lo < i.hi) lo = std::max(lo, i.lo), hi = std::min(hi, i.hi);
    }
    if (hi < lo) hi = lo;
    for (int64_t d = 0; d < in_.space[0]; ++d) {
      for (int64_t h = 0; h < in_.space[1]; ++h) {
        const int64_t at = ((r * in_.space[0] + d) * in_.space[1] + h) * in_.space[2];
        if (x_.channels_last()) {
          const Reader x(x_, bases);
          for (int64_t w = 0; w < in_.space[2]; ++w) row[w] = static_cast<float>(x[at + w]);
        } else {
          expand(x_.read(bases) + at * size_of(x_.type), x_.type, in_.space[2], row);
        }
        double shared = 0;
        for (int64_t w = lo; w < hi; ++w) shared += row[w];
        for (size_t k = 0; k < along.size(); ++k) {
          row_sums[k] = 0;
          if (along[k].lo >= along[k].hi) continue;
          for (int64_t w = along[k].lo; w < std::min(lo, along[k].hi); ++w) row_sums[k] += row[w];
          for (int64_t w = std::max(hi, along[k].lo); w < along[k].hi; ++w) row_sums[k] += row[w];
          row_sums[k] += shared;
        }
        for (int64_t i = 0; i < taps_[0]; ++i) {
          for (int64_t j = 0; j < taps_[1]; ++j) {
            if (!range_[0][i].holds(d) || !range_[1][j].holds(h)) continue;
            for (int64_t k = 0; k < taps_[2]; ++k) sums[(i * taps_[1] + j) * taps_[2] + k] += row_sums[k];
          }
        }
      }
    }
  }

  Memory x_, kernel_, bias_, out_;
  Dims in_;
  int64_t groups_ = 1, per_out_ = 1;
  Extents taps_;
  double voxels_ = 1;
  std::vector<Interval> range_[3];
};

}  // namespace

std::unique_ptr<Launch> make_mean_conv_launch(const Node& node, const std::vector<Memory>& operands,
                                              const std::vector<Shape>& shapes, const Memory& result) {
  return std::make_unique<MeanConvLaunch>(node, operands[0], operands[1], operands[2], shapes, result);
}

}  // namespace upweave::cpu
