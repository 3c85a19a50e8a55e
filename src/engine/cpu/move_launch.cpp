#include <algorithm>
#include <cmath>

#include "engine/cpu/node_launch.h"
#include "graph/ops/moves.h"

namespace upweave::cpu {
namespace {

// What both launches of this file are alike in: rows of the result, each from memory to memory.
class RowsLaunch : public Launch {
 public:
  RowsLaunch(const Node& node, const std::vector<Memory>& operands, const std::vector<Shape>& shapes,
             const Memory& result)
      : node_(node), in_(operands), out_(result), size_(dims_of(node.shape)) {
    for (const Shape& shape : shapes) dims_.push_back(dims_of(shape));
  }

  int64_t scratch_bytes(int) const override { return 0; }
  Work work() const override {
    Work work;
    work.tiles = rows();
    work.bytes = static_cast<double>(size_.count() * (in_[0].element_bytes() + out_.element_bytes()));
    if (!copies()) work.scalars = static_cast<double>(size_.count());
    return work;
  }

 protected:
  int64_t rows() const { return size_.n * size_.c * size_.space[0] * size_.space[1]; }
  virtual bool copies() const { return false; }
  struct Row {
    int64_t n, c, d, h;
  };
  Row row(int64_t r) const {
    const int64_t h = r % size_.space[1], d = r / size_.space[1] % size_.space[0],
                  nc = r / (size_.space[1] * size_.space[0]);
    return {nc / size_.c, nc % size_.c, d, h};
  }
  static int64_t offset(const Dims& in, int64_t n, const Move::Place& at) {
    return (((n * in.c + at[0]) * in.space[0] + at[1]) * in.space[1] + at[2]) * in.space[2] + at[3];
  }

  Node node_;
  std::vector<Memory> in_;
  Memory out_;
  Dims size_;
  std::vector<Dims> dims_;
};

// Elements that go from one place to another: as bits where both have one type.
class MoveLaunch final : public RowsLaunch {
 public:
  MoveLaunch(const Node& node, const std::vector<Memory>& operands, const std::vector<Shape>& shapes,
             const Memory& result)
      : RowsLaunch(node, operands, shapes, result), move_(node, shapes) {}

  std::string describe() const override {
    return fmt::format("{} on its own, {}", node_.op->name, copies() ? "copied" : "element by element");
  }

  void run(const Bases& bases, char*, int threads, bool) const override {
    if (moves_positions()) return move_positions(bases, threads);
    const bool bits = copies_rows();
    const int64_t size = size_of(out_.type), all = rows();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < all; ++r) {
      if (bits && size == 4)
        move_row<uint32_t>(bases, r);
      else if (bits && size == 2)
        move_row<uint16_t>(bases, r);
      else
        move_row<double>(bases, r);
    }
  }

 private:
  bool copies() const override { return moves_positions() || copies_rows(); }
  bool copies_rows() const {
    const auto plain = [](const Memory& m) { return !m.split() && !m.channels_last(); };
    return plain(out_) && size_of(out_.type) <= 4 &&
           std::ranges::all_of(in_, [&](const Memory& m) { return m.type == out_.type && plain(m); });
  }

  // Channels last, what goes from place to place is a position with all its channels.
  bool moves_positions() const {
    return (is(node_, Op::kPad) || is(node_, Op::kCrop) || is(node_, Op::kUpsample)) &&
           out_.channels_last() && in_[0].channels_last() && in_[0].ld == out_.ld && dims_[0].c == size_.c;
  }
  void move_positions(const Bases& bases, int threads) const {
    const float* from = reinterpret_cast<const float*>(in_[0].read(bases));
    float* to = reinterpret_cast<float*>(out_.write(bases));
    const int64_t ld = out_.ld, lines = size_.n * size_.space[0] * size_.space[1], width = size_.space[2];
    const Dims& in = dims_[0];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t l = 0; l < lines; ++l) {
      const int64_t h = l % size_.space[1], d = l / size_.space[1] % size_.space[0],
                    n = l / (size_.space[1] * size_.space[0]);
      for (int64_t w = 0; w < width; ++w) {
        float* position = to + (l * width + w) * ld;
        const auto [operand, at, outside] = move_.source({0, d, h, w});
        if (outside) {
          std::fill(position, position + ld, 0.0f);
          std::fill(position, position + size_.c, static_cast<float>(move_.value()));
        } else {
          const int64_t place = ((n * in.space[0] + at[1]) * in.space[1] + at[2]) * in.space[2] + at[3];
          std::memcpy(position, from + place * ld, static_cast<size_t>(ld) * sizeof(float));
        }
      }
    }
  }

  // T: an element's bits, or double for one that is converted.
  template <class T>
  void move_row(const Bases& bases, int64_t r) const {
    const auto [n, c, d, h] = row(r);
    const int64_t width = size_.space[2], period = move_.period(), step = move_.step(), begin = r * width;
    auto [first, last] = move_.inside(width);
    const Writer out(out_, bases);
    T* to = std::is_same_v<T, double> ? nullptr : reinterpret_cast<T*>(out.data) + begin;
    const auto put_one = [&](int64_t w) {
      const auto [operand, at, outside] = move_.source({c, d, h, w});
      const Reader x(in_[operand], bases);
      const int64_t from = outside ? 0 : offset(dims_[operand], n, at);
      if (outside)
        out.store(begin + w, move_.value());
      else if constexpr (std::is_same_v<T, double>)
        out.store(begin + w, x[from]);
      else
        to[w] = reinterpret_cast<const T*>(x.data)[from];
    };
    const auto middle = move_.source({c, d, h, first});
    if (middle.outside) last = first;  // a row that pad made
    for (int64_t w = 0; w < first; ++w) put_one(w);
    for (int64_t j = first; j < std::min(first + period, last); ++j) {
      const auto [operand, at, outside] = move_.source({c, d, h, j});
      const Reader x(in_[operand], bases);
      const int64_t from = offset(dims_[operand], n, at);
      if constexpr (std::is_same_v<T, double>) {
        for (int64_t w = j, i = from; w < last; w += period, i += step) out.store(begin + w, x[i]);
      } else {
        const T* source = reinterpret_cast<const T*>(x.data) + from;
        if (period == 1 && step == 1)
          std::memcpy(to + first, source, static_cast<size_t>(last - first) * sizeof(T));
        else
          for (int64_t w = j; w < last; w += period, source += step) to[w] = *source;
      }
    }
    for (int64_t w = last; w < width; ++w) put_one(w);
  }

  Move move_;
};

// (1 - w) x[lo] + w x[hi] along each axis, in float64.
class LinearLaunch final : public RowsLaunch {
 public:
  LinearLaunch(const Node& node, const std::vector<Memory>& operands, const std::vector<Shape>& shapes,
               const Memory& result)
      : RowsLaunch(node, operands, shapes, result) {
    const UpsampleAttrs up = upsample_attrs(node, spatial_rank(node.shape));
    scale_ = extents_of(up.scale, 1);
    corners_ = up.corners;
    spatial_ = up.scale.size();
  }
  std::string describe() const override { return "upsample on its own, in float64"; }

  void run(const Bases& bases, char*, int threads, bool) const override {
    const Reader x(in_[0], bases);
    const Writer out(out_, bases);
    const int64_t all = rows(), width = size_.space[2];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < all; ++r) {
      const auto [n, c, d, h] = row(r);
      const LinearTap depth = tap(0, d), height = tap(1, h);
      for (int64_t w = 0; w < width; ++w) {
        const LinearTap across = tap(2, w);
        const auto along_w = [&](int64_t i, int64_t j) {
          const int64_t at = offset(dims_[0], n, {c, i, j, 0});
          return mix(across, x[at + across.lo], x[at + across.hi]);
        };
        // An axis that is not there has no neighbours: 0 times an infinity would be NaN.
        const auto along_h = [&](int64_t i) {
          return spatial_ < 2 ? along_w(i, 0) : mix(height, along_w(i, height.lo), along_w(i, height.hi));
        };
        out.store(r * width + w,
                  spatial_ < 3 ? along_h(0) : mix(depth, along_h(depth.lo), along_h(depth.hi)));
      }
    }
  }

 private:
  LinearTap tap(size_t axis, int64_t o) const {
    return linear_tap(o, dims_[0].space[axis], scale_[axis], corners_);
  }
  static double mix(const LinearTap& tap, double lo, double hi) {
    return (1 - tap.weight()) * lo + tap.weight() * hi;
  }

  Extents scale_;
  bool corners_;
  size_t spatial_;
};

// The first half of the channels times the sigmoid of the second, in float64.
class GluLaunch final : public RowsLaunch {
 public:
  using RowsLaunch::RowsLaunch;
  std::string describe() const override { return "glu on its own, in float64"; }

  void run(const Bases& bases, char*, int threads, bool) const override {
    const Reader x(in_[0], bases);
    const Writer out(out_, bases);
    const int64_t all = rows(), width = size_.space[2];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < all; ++r) {
      const auto [n, c, d, h] = row(r);
      const int64_t at = offset(dims_[0], n, {c, d, h, 0}), gate = at + size_.c * size_.voxels();
      for (int64_t w = 0; w < width; ++w) {
        const double g = x[gate + w], e = std::exp(-std::fabs(g));
        out.store(r * width + w, x[at + w] * ((g >= 0 ? 1 : e) / (1 + e)));
      }
    }
  }
};

}  // namespace

std::unique_ptr<Launch> make_move_launch(const Node& node, const std::vector<Memory>& operands,
                                         const std::vector<Shape>& shapes, const Memory& result) {
  if (is(node, Op::kGlu)) return std::make_unique<GluLaunch>(node, operands, shapes, result);
  if (is(node, Op::kUpsample) && upsample_attrs(node, spatial_rank(node.shape)).linear)
    return std::make_unique<LinearLaunch>(node, operands, shapes, result);
  return std::make_unique<MoveLaunch>(node, operands, shapes, result);
}

}  // namespace upweave::cpu
