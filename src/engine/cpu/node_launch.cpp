#include "engine/cpu/node_launch.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/cpu/kernels/kernels.h"
#include "engine/partials.h"
#include "graph/ops/conv.h"
#include "graph/ops/norms.h"
#include "graph/ops/pools.h"
#include "graph/ops/reductions.h"

namespace upweave::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class NodeLaunch final : public Launch {
 public:
  NodeLaunch(const Node& node, std::vector<Memory> operands, std::vector<Shape> shapes, const Memory& result)
      : node_(node), in_(std::move(operands)), shapes_(std::move(shapes)), out_(result) {
    if (is(node, Family::kPointwise)) {
      x_strides_ = strides(dims_of(broadcast_shape(shapes_[0], node.shape, "operand")));
      if (has(1)) y_strides_ = strides(dims_of(broadcast_shape(shapes_[1], node.shape, "operand")));
    }
    if (is_pool(node)) {
      const auto [window, stride] = pool_attrs(node);
      window_ = extents_of(window, 1);
      stride_ = extents_of(stride, 1);
    }
  }

  int64_t scratch_bytes(int) const override { return 0; }
  Work work() const override {
    Work work;
    double values = static_cast<double>(count(node_.shape));
    for (size_t i = 0; i < in_.size(); ++i) {
      if (!has(i)) continue;
      values += static_cast<double>(count(shapes_[i]));
      work.bytes += static_cast<double>(count(shapes_[i]) * in_[i].element_bytes());
    }
    work.bytes += static_cast<double>(out_.dims.count() * out_.element_bytes());
    work.scalars = values;
    work.tiles = count(node_.shape);
    return work;
  }
  std::string describe() const override { return fmt::format("{} on its own, in float64", node_.op->name); }

  void run(const Bases& bases, char*, int threads, bool) const override {
    Call call{bases, threads, Reader(in_[0], bases), Writer(out_, bases)};
    if (is(node_, Family::kPointwise)) return in_.size() > 1 ? meet(call) : map(call);
    if (is_pool(node_)) return pool(call);
    if (is(node_, Family::kSoftmax)) return softmax(call);
    if (is(node_, Op::kAdjustMoments)) return adjust(call);
    if (is(node_, Op::kBatchNormGiven)) return normalize_given(call);
    if (is(node_, Family::kNorm)) return norm(call);
    return reduce(call);
  }

 private:
  struct Call {
    const Bases& bases;
    int threads;
    Reader x;
    Writer out;
  };

  static void store(const Call& call, int64_t i, double v) { call.out.store(i, v); }
  Reader operand(const Call& call, size_t slot) const { return Reader(in_[slot], call.bases); }
  bool has(size_t slot) const { return slot < in_.size() && in_[slot].exists(); }

  void map(const Call& call) const {
    const auto f = node_.op->value;
    const Numbers own = numbers(node_);
    const int64_t n = count(node_.shape);
#pragma omp parallel for num_threads(call.threads) schedule(static)
    for (int64_t i = 0; i < n; ++i) store(call, i, f(call.x[i], own.a, own.b));
  }

  // Strides of an operand against the result, 0 along axes that it is broadcast over.
  static std::array<int64_t, 5> strides(const Dims& d) {
    std::array<int64_t, 5> s = {d.c * d.voxels(), d.voxels(), d.space[1] * d.space[2], d.space[2], 1};
    const std::array<int64_t, 5> e = {d.n, d.c, d.space[0], d.space[1], d.space[2]};
    for (size_t a = 0; a < 5; ++a) {
      if (e[a] == 1) s[a] = 0;
    }
    return s;
  }

  void meet(const Call& call) const {
    const auto f = node_.op->value;
    const Dims d = dims_of(node_.shape);
    const auto &sx = x_strides_, &sy = y_strides_;
    const Reader y = has(1) ? operand(call, 1) : call.x;
    const Numbers own = numbers(node_);
    const bool snake = is(node_, Op::kSnake);
    const Reader beta = snake && has(2) ? operand(call, 2) : y;
    const int64_t rows = d.n * d.c;
#pragma omp parallel for num_threads(call.threads) schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      const double b = snake ? beta[r % d.c] + own.b : own.b;
      int64_t i = r * d.voxels();
      for (int64_t p = 0; p < d.space[0]; ++p) {
        for (int64_t q = 0; q < d.space[1]; ++q) {
          for (int64_t w = 0; w < d.space[2]; ++w, ++i) {
            auto at = [&](const std::array<int64_t, 5>& s) {
              return r / d.c * s[0] + r % d.c * s[1] + p * s[2] + q * s[3] + w * s[4];
            };
            store(call, i, f(call.x[at(sx)], has(1) ? y[at(sy)] : own.a, b));
          }
        }
      }
    }
  }

  void pool(const Call& call) const {
    const Dims in = dims_of(shapes_[0]), out = dims_of(node_.shape);
    const Extents &window = window_, &stride = stride_;
    const bool average = is(node_, Op::kAvgPool);
    const int64_t rows = out.n * out.c;
    const Reader sign = has(1) ? operand(call, 1) : call.x;
    const bool one_sign = has(1) && count(shapes_[1]) == 1;
#pragma omp parallel for num_threads(call.threads) schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      const bool flip = has(1) && sign[one_sign ? 0 : r % out.c] < 0;
      const bool largest = is(node_, Op::kMaxPool) != flip;
      int64_t o = r * out.voxels();
      for (int64_t d = 0; d < out.space[0]; ++d) {
        for (int64_t h = 0; h < out.space[1]; ++h) {
          for (int64_t ow = 0; ow < out.space[2]; ++ow, ++o) {
            double acc = average ? 0 : largest ? -kInf : kInf;
            for (int64_t i = 0; i < window[0]; ++i) {
              for (int64_t j = 0; j < window[1]; ++j) {
                for (int64_t k = 0; k < window[2]; ++k) {
                  const int64_t at =
                      ((r * in.space[0] + d * stride[0] + i) * in.space[1] + h * stride[1] + j) *
                          in.space[2] +
                      ow * stride[2] + k;
                  const double x = call.x[at];
                  if (average)
                    acc += x;
                  else if (std::isnan(x) || std::isnan(acc))
                    acc = x + acc;
                  else
                    acc = largest ? std::max(x, acc) : std::min(x, acc);
                }
              }
            }
            store(call, o, average ? acc / static_cast<double>(window[0] * window[1] * window[2]) : acc);
          }
        }
      }
    }
  }

  void reduce(const Call& call) const {
    const Dims in = dims_of(shapes_[0]), out = dims_of(node_.shape);
    const Op op = node_.op->id;
    const std::array<int64_t, 5> ein = {in.n, in.c, in.space[0], in.space[1], in.space[2]};
    const std::array<int64_t, 5> eout = {out.n, out.c, out.space[0], out.space[1], out.space[2]};
    std::array<int64_t, 5> stride, walk;
    int64_t step = 1;
    for (size_t a = 5; a-- > 0; step *= ein[a]) {
      stride[a] = step;
      walk[a] = ein[a] / eout[a];
    }
    const double terms = static_cast<double>(walk[0] * walk[1] * walk[2] * walk[3] * walk[4]);
    const int64_t n = out.count();
#pragma omp parallel for num_threads(call.threads) schedule(static)
    for (int64_t o = 0; o < n; ++o) {
      int64_t rest = o, base = 0;
      for (size_t a = 5; a-- > 0; rest /= eout[a]) base += rest % eout[a] * stride[a];
      auto each = [&](auto f) {
        for (int64_t c = 0; c < walk[1]; ++c) {
          for (int64_t d = 0; d < walk[2]; ++d) {
            for (int64_t h = 0; h < walk[3]; ++h) {
              for (int64_t w = 0; w < walk[4]; ++w) {
                f(call.x[base + c * stride[1] + d * stride[2] + h * stride[3] + w * stride[4]]);
              }
            }
          }
        }
      };
      if (op == Op::kSum || op == Op::kMean) {
        double sum = 0;
        each([&](double x) { sum += x; });
        store(call, o, op == Op::kSum ? sum : sum / terms);
      } else {
        const bool smallest = op == Op::kMin;
        double best = smallest ? kInf : -kInf;
        each([&](double x) {
          if (std::isnan(x) || std::isnan(best))
            best = x + best;
          else
            best = smallest ? std::min(x, best) : std::max(x, best);
        });
        if (op == Op::kLogsumexp) {
          const double top = std::isinf(best) ? 0 : best;
          double sum = 0;
          each([&](double x) { sum += std::exp(x - top); });
          best = top + std::log(sum);
        }
        store(call, o, best);
      }
    }
  }

  void softmax(const Call& call) const {
    const Dims d = dims_of(shapes_[0]);
    const bool channels = node_.attrs.word("axes") == "channel";
    const int64_t v = d.voxels(), sets = channels ? d.n * v : d.n * d.c;
    const int64_t size = channels ? d.c : v, step = channels ? v : 1;
    const Op op = node_.op->id;
#pragma omp parallel for num_threads(call.threads) schedule(static)
    for (int64_t s = 0; s < sets; ++s) {
      const int64_t start = channels ? s / v * d.c * v + s % v : s * v;
      double top = -kInf, sum = 0;
      if (op == Op::kSoftmaxApply) {
        top = operand(call, 1)[s];
        sum = operand(call, 1)[sets + s];
      } else {
        for (int64_t i = 0; i < size; ++i) {
          const double x = call.x[start + i * step];
          top = std::isnan(x) || x > top ? x : top;
        }
        for (int64_t i = 0; i < size; ++i) sum += std::exp(call.x[start + i * step] - top);
      }
      if (op == Op::kSoftmaxStats) {
        store(call, s, top);
        store(call, sets + s, sum);
        continue;
      }
      for (int64_t i = 0; i < size; ++i) {
        store(call, start + i * step, std::exp(call.x[start + i * step] - top) / sum);
      }
    }
  }

  void adjust(const Call& call) const {
    const double scale = node_.attrs.real_or("scale", 1);
    const int64_t sets = node_.shape[1], shifts = has(1) ? count(shapes_[1]) : 1;
    for (int64_t s = 0; s < sets; ++s) {
      const double shift = has(1) ? operand(call, 1)[s % shifts] : node_.attrs.real_or("shift", 0);
      store(call, s, call.x[s] * scale + shift);
      store(call, sets + s, call.x[sets + s] * scale * scale);
    }
  }

  void normalize_given(const Call& call) const {
    const Dims d = dims_of(node_.shape);
    const double eps = norm_eps(node_);
#pragma omp parallel for num_threads(call.threads) schedule(static)
    for (int64_t r = 0; r < d.n * d.c; ++r) {
      const int64_t c = r % d.c;
      const double mean = operand(call, 1)[c], root = std::sqrt(operand(call, 2)[c] + eps);
      const double weight = has(3) ? operand(call, 3)[c] : 1, bias = has(4) ? operand(call, 4)[c] : 0;
      for (int64_t i = r * d.voxels(); i < (r + 1) * d.voxels(); ++i)
        store(call, i, (call.x[i] - mean) / root * weight + bias);
    }
  }

  // A set is `blocks` runs of `size` elements.
  struct Set {
    int64_t start, blocks, block_stride, size, stride;
    template <class F>
    void each(F f) const {
      for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t i = 0; i < size; ++i) f(start + b * block_stride + i * stride);
      }
    }
  };
  static Set set_of(const NormSets& sets, int64_t s) {
    const int64_t v = sets.voxels, c = sets.channels;
    switch (sets.kind) {
      case NormSets::Kind::kChannel:
        return {s / v * c * v + s % v, 1, 0, c, v};
      case NormSets::Kind::kBatch:
        return {s * v, sets.size / v, c * v, v, 1};
      case NormSets::Kind::kLast:
      case NormSets::Kind::kInstance:
      case NormSets::Kind::kGroup:
        break;
    }
    return {s * sets.size, 1, 0, sets.size, 1};
  }

  void norm(const Call& call) const {
    const Op op = node_.op->id;
    const NormSets sets = norm_sets(node_, shapes_[0]);
    const double eps = norm_eps(node_), n = static_cast<double>(sets.size);
    const size_t weight = op == Op::kNormalize ? 2 : 1, bias = weight + 1;
#pragma omp parallel for num_threads(call.threads) schedule(static)
    for (int64_t s = 0; s < sets.sets; ++s) {
      const Set set = set_of(sets, s);
      double mean = 0, var = 0;
      if (op == Op::kNormalize) {
        mean = operand(call, 1)[s];
        var = operand(call, 1)[sets.sets + s];
      } else {
        if (op != Op::kRmsNorm) set.each([&](int64_t i) { mean += call.x[i]; });
        mean /= n;
        set.each([&](int64_t i) { var += (call.x[i] - mean) * (call.x[i] - mean); });
        var /= n;
      }
      if (op == Op::kMoments) {
        store(call, s, mean);
        store(call, sets.sets + s, var);
        continue;
      }
      const double scale = 1 / std::sqrt(var + eps);
      set.each([&](int64_t i) {
        const int64_t c =
            sets.kind == NormSets::Kind::kLast ? i % sets.trailing : i / sets.voxels % sets.channels;
        double y = (call.x[i] - mean) * scale;
        if (has(weight)) y *= operand(call, weight)[c];
        if (has(bias)) y += operand(call, bias)[c];
        store(call, i, y);
      });
    }
  }

  Node node_;
  std::vector<Memory> in_;
  std::vector<Shape> shapes_;
  Memory out_;
  std::array<int64_t, 5> x_strides_ = {}, y_strides_ = {};  // of pointwise operations
  Extents window_ = {1, 1, 1}, stride_ = {1, 1, 1};         // of pools
};

}  // namespace

std::unique_ptr<Launch> make_node_launch(const Node& node, std::vector<Memory> operands,
                                         std::vector<Shape> shapes, const Memory& result) {
  if (is(node, Op::kMeanConv)) {
    return make_mean_conv_launch(node, operands, shapes, result);
  }
  if (is_plain_conv(node)) return make_plain_conv_launch(node, operands, shapes, result);
  if (is(node, Family::kMove)) return make_move_launch(node, operands, shapes, result);
  if (is(node, Family::kLeaf) || is(node, Family::kConvolution) || is(node, Family::kWeights))
    throw fail(Status::kUnsupported, "the CPU engine has no {}", node.op->name);
  return std::make_unique<NodeLaunch>(node, std::move(operands), std::move(shapes), result);
}

}  // namespace upweave::cpu
