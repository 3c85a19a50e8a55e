#include "engine/cpu/node_launch.h"
#include "graph/ops/conv.h"

namespace upweave::cpu {
namespace {

// out[n, co, o] = bias[co] + sum over ci, k of x[n, ci, o s - p + k d] K[co, ci, k], each output in float64.
class PlainConvLaunch final : public Launch {
 public:
  PlainConvLaunch(const Node& node, const std::vector<Memory>& operands, const std::vector<Shape>& shapes,
                  const Memory& result)
      : name_(node.op->name), in_(operands), out_(result) {
    const PlainConvGeometry g = plain_conv_geometry(node, shapes[0], shapes[1]);
    x_ = dims_of(shapes[0]);
    y_ = dims_of(node.shape);
    groups_ = g.groups;
    border_ = g.border;
    kernel_ = extents_of(g.kernel, 1);
    stride_ = extents_of(g.stride, 1);
    dilation_ = extents_of(g.dilation, 1);
    padding_ = extents_of(g.padding, 0);
  }

  int64_t scratch_bytes(int) const override { return 0; }
  Work work() const override {
    Work work;
    work.bytes = static_cast<double>(x_.count() * in_[0].element_bytes() + y_.count() * out_.element_bytes());
    work.scalars = static_cast<double>(y_.count()) * static_cast<double>(x_.c / groups_ * taps());
    work.tiles = y_.count();
    return work;
  }
  std::string describe() const override { return fmt::format("{} on its own, in float64", name_); }

  void run(const Bases& bases, char*, int threads, bool) const override {
    const Reader x(in_[0], bases), kernel(in_[1], bases);
    const Writer out(out_, bases);
    const bool has_bias = in_[2].exists();
    const Reader bias = has_bias ? Reader(in_[2], bases) : x;
    const int64_t rows = y_.n * y_.c * y_.space[0] * y_.space[1];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t h = r % y_.space[1], d = r / y_.space[1] % y_.space[0];
      const int64_t nc = r / (y_.space[1] * y_.space[0]), co = nc % y_.c;
      for (int64_t w = 0; w < y_.space[2]; ++w) {
        const double sum = (has_bias ? bias[co] : 0) + products(x, kernel, nc / y_.c, co, {d, h, w});
        out.store(r * y_.space[2] + w, sum);
      }
    }
  }

 private:
  int64_t taps() const { return kernel_[0] * kernel_[1] * kernel_[2]; }
  int64_t source(size_t axis, int64_t o, int64_t k) const {
    return border_source(border_, o * stride_[axis] - padding_[axis] + k * dilation_[axis], x_.space[axis]);
  }

  double products(const Reader& x, const Reader& kernel, int64_t n, int64_t co, const Extents& o) const {
    const int64_t per_in = x_.c / groups_, first = co / (y_.c / groups_) * per_in;
    double sum = 0;
    for (int64_t a = 0; a < kernel_[0]; ++a) {
      const int64_t d = source(0, o[0], a);
      for (int64_t b = 0; d >= 0 && b < kernel_[1]; ++b) {
        const int64_t h = source(1, o[1], b);
        for (int64_t c = 0; h >= 0 && c < kernel_[2]; ++c) {
          const int64_t w = source(2, o[2], c), tap = (a * kernel_[1] + b) * kernel_[2] + c;
          if (w < 0) continue;
          const int64_t at = (d * x_.space[1] + h) * x_.space[2] + w;
          for (int64_t ci = 0; ci < per_in; ++ci)
            sum += x[(n * x_.c + first + ci) * x_.voxels() + at] * kernel[(co * per_in + ci) * taps() + tap];
        }
      }
    }
    return sum;
  }

  std::string_view name_;
  std::vector<Memory> in_;
  Memory out_;
  Dims x_, y_;
  int64_t groups_ = 1;
  Border border_ = Border::kZeros;
  Extents kernel_, stride_, dilation_, padding_;
};

}  // namespace

std::unique_ptr<Launch> make_plain_conv_launch(const Node& node, const std::vector<Memory>& operands,
                                               const std::vector<Shape>& shapes, const Memory& result) {
  return std::make_unique<PlainConvLaunch>(node, operands, shapes, result);
}

}  // namespace upweave::cpu
