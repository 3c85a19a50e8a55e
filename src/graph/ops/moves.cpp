#include "graph/ops/moves.h"

#include <charconv>
#include <cmath>

#include "base/checked.h"
#include "graph/limits.h"

// Operations that put elements in other places and compute nothing, and upsample, whose linear form weighs
// neighbours, and glu, which joins two elements of one value.
namespace upweave {
namespace {

// Along channels; all else is the same.
Shape cat_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  for (size_t slot = 1; slot < node.in.size(); ++slot) {
    const Shape& next = shape_of(graph, node, slot);
    bool fits = next.size() == shape.size();
    for (size_t a = 0; fits && a < shape.size(); ++a) fits = a == 1 || next[a] == shape[a];
    if (!fits) {
      throw invalid("cat of shapes {} and {}; they may differ in channels alone",
                    to_string(shape_of(graph, node, 0)), to_string(next));
    }
    shape[1] = checked_add(shape[1], next[1], "the channels of cat");
  }
  return shape;
}

Shape pad_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  const size_t spatial = spatial_rank(shape);
  const PadAttrs pad = pad_attrs(node, spatial);
  if (pad.border != Border::kZeros && node.attrs.has("value"))
    throw invalid("pad {} has no value", node.attrs.word("mode"));
  for (size_t a = 0; a < spatial; ++a) {
    check_border(node, axis_suffix(a, spatial), pad.begin[a], pad.end[a], shape[a + 2]);
    shape[a + 2] = checked_add(shape[a + 2], pad.begin[a], "the padded extent");
    shape[a + 2] = checked_add(shape[a + 2], pad.end[a], "the padded extent");
  }
  return shape;
}

Shape crop_shape(const Graph& graph, const Node& node) {
  const Shape& in = shape_of(graph, node, 0);
  const CropAttrs crop = crop_attrs(node, in);
  Shape shape = {in[0]};
  shape.insert(shape.end(), crop.extent.begin(), crop.extent.end());
  return shape;
}

int64_t factor(const Node& node, const Shape& factors, size_t axis) {
  if (factors[axis] < 1)
    throw invalid("{} by {} along {}; it must be at least 1", node.op->name, factors[axis],
                  axis_suffix(axis, factors.size()));
  return factors[axis];
}

Shape upsample_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  const UpsampleAttrs up = upsample_attrs(node, spatial_rank(shape));
  if (up.corners && !up.linear) throw invalid("upsample nearest has no corners");
  for (size_t a = 0; a < up.scale.size(); ++a)
    shape[a + 2] = checked_mul(shape[a + 2], factor(node, up.scale, a), "the upsampled extent");
  return shape;
}

int64_t product(const Node& node, const Shape& factors) {
  int64_t all = 1;
  for (size_t a = 0; a < factors.size(); ++a)
    all = checked_mul(all, factor(node, factors, a), "the product of factors");
  return all;
}

Shape shuffle_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  const Shape factors = shuffle_factors(node, spatial_rank(shape));
  const int64_t all = product(node, factors);
  if (shape[1] % all != 0)
    throw invalid("pixel_shuffle {} meets {} channels, which {} does not divide", to_string(factors),
                  shape[1], all);
  shape[1] /= all;
  for (size_t a = 0; a < factors.size(); ++a)
    shape[a + 2] = checked_mul(shape[a + 2], factors[a], "the shuffled extent");
  return shape;
}

Shape unshuffle_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  const Shape factors = shuffle_factors(node, spatial_rank(shape));
  shape[1] = checked_mul(shape[1], product(node, factors), "the channels of pixel_unshuffle");
  for (size_t a = 0; a < factors.size(); ++a) {
    if (shape[a + 2] % factors[a] != 0)
      throw invalid("pixel_unshuffle by {} along {}, which does not divide the extent {}", factors[a],
                    axis_suffix(a, factors.size()), shape[a + 2]);
    shape[a + 2] /= factors[a];
  }
  return shape;
}

Move::Place place_of(const Shape& values, int64_t channel, int64_t missing) {
  Move::Place place = {channel, missing, missing, missing};
  for (size_t a = 0; a < values.size(); ++a) place[a + 4 - values.size()] = values[a];
  return place;
}

// Calls f(output offset, operand, its offset); the offset is -1 where nothing is read.
template <class F>
void for_each_source(const Node& node, Inputs in, const Tensor& out, F f) {
  std::vector<Shape> shapes;
  for (const Tensor* operand : in) shapes.push_back(operand->shape);
  const Move move(node, shapes);
  std::vector<Move::Place> extents;
  for (const Shape& shape : shapes)
    extents.push_back(place_of(Shape(shape.begin() + 2, shape.end()), shape[1], 1));
  const size_t spatial = spatial_rank(out.shape);
  for_each_index(out.shape, [&](const Shape& index, int64_t o) {
    Move::Place to = {index[1], 0, 0, 0};
    for (size_t a = 0; a < spatial; ++a) to[a + 4 - spatial] = index[a + 2];
    const auto [operand, at, outside] = move.source(to);
    int64_t offset = index[0];
    for (size_t a = 0; a < 4; ++a) offset = offset * extents[operand][a] + at[a];
    f(o, operand, outside ? -1 : offset);
  });
}

void move_evaluate(const Node& node, Inputs in, Tensor& out) {
  const double value = node.attrs.real_or("value", 0);
  for_each_source(node, in, out, [&](int64_t o, size_t operand, int64_t i) {
    out.data[o] = i < 0 ? value : in[operand]->data[i];
  });
}

// Elements bring their errors; a number is rounded to float.
void move_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const double value = node.attrs.real_or("value", 0);
  for_each_source(node, in, out, [&](int64_t o, size_t operand, int64_t i) {
    out.err[o] = i < 0 ? rounding.unit * std::fabs(value) : in[operand]->err[i];
  });
}

// Calls f(output offset, input offset, weight) for each of the 2^axes neighbours, weights of 0 included: an
// infinity there makes NaN, as in PyTorch.
template <class F>
void for_each_neighbour(const Node& node, const Shape& in, const Shape& out, F f) {
  const size_t spatial = spatial_rank(in);
  const UpsampleAttrs up = upsample_attrs(node, spatial);
  const Shape strides = row_major(in), two(spatial, 2);
  std::vector<LinearTap> taps(spatial);
  for_each_index(out, [&](const Shape& index, int64_t o) {
    for (size_t a = 0; a < spatial; ++a)
      taps[a] = linear_tap(index[a + 2], in[a + 2], up.scale[a], up.corners);
    for_each_index(two, [&](const Shape& which, int64_t) {
      int64_t at = index[0] * strides[0] + index[1] * strides[1];
      double weight = 1;
      for (size_t a = 0; a < spatial; ++a) {
        at += (which[a] ? taps[a].hi : taps[a].lo) * strides[a + 2];
        weight *= which[a] ? taps[a].weight() : 1 - taps[a].weight();
      }
      f(o, at, weight);
    });
  });
}

void upsample_evaluate(const Node& node, Inputs in, Tensor& out) {
  if (!upsample_attrs(node, spatial_rank(out.shape)).linear) return move_evaluate(node, in, out);
  std::ranges::fill(out.data, 0.0);
  for_each_neighbour(node, in[0]->shape, out.shape,
                     [&](int64_t o, int64_t i, double w) { out.data[o] += w * in[0]->data[i]; });
}

// Weights are quotients of whole numbers: with each axis' quotient, their products and the sum a term has at
// most 16 roundings.
void upsample_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  if (!upsample_attrs(node, spatial_rank(out.shape)).linear) return move_bound(node, in, out, rounding);
  std::ranges::fill(out.err, 0.0);
  for_each_neighbour(node, in[0]->shape, out.shape, [&](int64_t o, int64_t i, double w) {
    out.err[o] += w * (in[0]->err[i] + 16 * rounding.unit * std::fabs(in[0]->data[i]));
  });
}

// The first half of the channels, each times the sigmoid of its partner in the second.
Shape glu_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  if (shape[1] % 2 != 0) throw invalid("glu meets {} channels; their number must be even", shape[1]);
  shape[1] /= 2;
  return shape;
}

// Calls f(output offset, offset of the value, offset of its gate).
template <class F>
void for_each_gate(const Tensor& out, F f) {
  const int64_t half = out.shape[0] == 0 ? 1 : count(out.shape) / out.shape[0];  // of a sample
  for (int64_t o = 0; o < count(out.shape); ++o) f(o, o / half * half + o, (o / half + 1) * half + o);
}

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

void glu_evaluate(const Node&, Inputs in, Tensor& out) {
  for_each_gate(out, [&](int64_t o, int64_t x, int64_t gate) {
    out.data[o] = in[0]->data[x] * sigmoid(in[0]->data[gate]);
  });
}

// A sigmoid moves by a quarter of what its argument does.
void glu_bound(const Node&, Inputs in, Tensor& out, const Rounding& rounding) {
  for_each_gate(out, [&](int64_t o, int64_t x, int64_t gate) {
    const double y = sigmoid(in[0]->data[gate]);
    const double moved = std::min(1.0, 0.25 * in[0]->err[gate] + 4 * rounding.unit * y);
    out.err[o] = in[0]->err[x] * (y + moved) + std::fabs(in[0]->data[x]) * moved +
                 2 * rounding.unit * std::fabs(out.data[o]);
  });
}

// begin:end of an axis as Python reads it: negative ends count from behind, and both are kept inside.
void resolve(std::string_view slice, int64_t extent, int64_t& begin, int64_t& length) {
  const size_t colon = slice.find(':');
  const auto bound = [&](std::string_view text, int64_t fallback) {
    int64_t v = fallback;
    std::from_chars(text.data(), text.data() + text.size(), v);
    return std::clamp<int64_t>(v < 0 ? v + extent : v, 0, extent);
  };
  begin = bound(slice.substr(0, colon), 0);
  length = bound(slice.substr(colon + 1), extent) - begin;
}

Operation row(Op id, std::string_view name, std::string_view summary, std::string_view example) {
  Operation op{.id = id, .family = Family::kMove, .name = name};
  op.summary = summary;
  op.example = example;
  op.evaluate = move_evaluate;
  op.bound = move_bound;
  op.reach = [](const Node&) { return Reach::kWindow; };
  return op;
}

}  // namespace

PadAttrs pad_attrs(const Node& node, size_t spatial) {
  const Shape begin = per_axis(node, "extents", spatial, 0);
  return {begin, node.attrs.has("end") ? per_axis(node, "end", spatial, 0) : begin, border_of(node),
          node.attrs.real_or("value", 0)};
}

CropAttrs crop_attrs(const Node& node, const Shape& shape) {
  const size_t spatial = spatial_rank(shape);
  CropAttrs crop{Shape(spatial + 1, 0), Shape(shape.begin() + 1, shape.end())};
  const auto given = [&](std::string_view name) -> std::string_view {
    if (node.attrs.has(name)) return node.attrs.word(name);
    return ":";
  };
  std::vector<std::string_view> slices = {given("channels")};
  const std::string_view space = given("space");
  for (size_t from = 0; from <= space.size();) {
    const size_t to = std::min(space.find('x', from), space.size());
    slices.push_back(space.substr(from, to - from));
    from = to + 1;
  }
  if (slices[0].find('x') != std::string_view::npos)
    throw invalid("channels of crop are one slice, not {}", slices[0]);
  if (slices.size() == 2) slices.resize(spatial + 1, slices[1]);  // one for all axes
  if (slices.size() != spatial + 1) {
    throw invalid("crop {} has {} slices; the value has {} spatial axes", space, slices.size() - 1, spatial);
  }
  for (size_t a = 0; a <= spatial; ++a) {
    resolve(slices[a], shape[a + 1], crop.begin[a], crop.extent[a]);
    if (crop.extent[a] < 1) {
      throw invalid("crop {} leaves nothing of {} {}", slices[a], shape[a + 1],
                    a == 0 ? "channels" : fmt::format("elements along {}", axis_suffix(a - 1, spatial)));
    }
  }
  return crop;
}

UpsampleAttrs upsample_attrs(const Node& node, size_t spatial) {
  return {per_axis(node, "scale", spatial, 1), node.attrs.word("mode") == "linear",
          node.attrs.flag("corners")};
}

Shape shuffle_factors(const Node& node, size_t spatial) { return per_axis(node, "factors", spatial, 1); }

// The place of output o is o (I - 1) / (O - 1) with corners, else (o + 1/2) / scale - 1/2, but not below 0.
LinearTap linear_tap(int64_t o, int64_t extent, int64_t scale, bool corners) {
  LinearTap tap{0, 0, 0, corners ? std::max<int64_t>(1, extent * scale - 1) : 2 * scale};
  const auto split = [&](auto place) {
    tap.lo = static_cast<int64_t>(place / tap.whole);
    tap.part = static_cast<int64_t>(place % tap.whole);
  };
  if (corners) {
    split(static_cast<__int128>(o) * (extent - 1));  // extents may have 40 bits
  } else {
    split(std::max<int64_t>(0, 2 * o + 1 - scale));
  }
  tap.hi = std::min(tap.lo + 1, extent - 1);
  return tap;
}

Move::Move(const Node& node, const std::vector<Shape>& operands) : op_(node.op->id) {
  for (const Shape& shape : operands)
    extents_.push_back(place_of(Shape(shape.begin() + 2, shape.end()), shape[1], 1));
  const size_t spatial = spatial_rank(operands[0]);
  if (op_ == Op::kPad) {
    const PadAttrs pad = pad_attrs(node, spatial);
    begin_ = place_of(pad.begin, 0, 0);
    for (int64_t& begin : begin_) begin = -begin;
    border_ = pad.border;
    value_ = pad.value;
  } else if (op_ == Op::kCrop) {
    const CropAttrs crop = crop_attrs(node, operands[0]);
    begin_ = place_of(Shape(crop.begin.begin() + 1, crop.begin.end()), crop.begin[0], 0);
  } else if (op_ == Op::kUpsample) {
    step_ = place_of(upsample_attrs(node, spatial).scale, 1, 1);
  } else if (op_ == Op::kPixelShuffle || op_ == Op::kPixelUnshuffle) {
    step_ = place_of(shuffle_factors(node, spatial), 1, 1);
  }
}

int64_t Move::along(size_t axis, int64_t o) const {
  return border_source(border_, o / step_[axis] + begin_[axis], extents_[0][axis]);
}

Move::Source Move::source(const Place& to) const {
  Source from{0, to, false};
  if (op_ == Op::kCat) {
    while (from.at[0] >= extents_[from.operand][0]) from.at[0] -= extents_[from.operand++][0];
  } else if (op_ == Op::kPixelShuffle) {  // out[c, h r + i, w r + j] = in[(c r + i) r + j, h, w]
    for (size_t a = 1; a < 4; ++a) {
      from.at[0] = from.at[0] * step_[a] + to[a] % step_[a];
      from.at[a] = to[a] / step_[a];
    }
  } else if (op_ == Op::kPixelUnshuffle) {  // out[(c r + i) r + j, h, w] = in[c, h r + i, w r + j]
    for (size_t a = 4; a-- > 1; from.at[0] /= step_[a]) from.at[a] = to[a] * step_[a] + from.at[0] % step_[a];
  } else {
    for (size_t a = 0; a < 4; ++a) {
      from.at[a] = along(a, to[a]);
      from.outside = from.outside || from.at[a] < 0;
    }
  }
  return from;
}

std::vector<Operation> ops_moves() {
  Operation cat = row(Op::kCat, "cat", "the value's channels, then those of other values", "cat @input");
  cat.args = {{.name = "values", .kind = Arg::Kind::kValues, .required = true}};
  cat.shape = cat_shape;

  Operation pad =
      row(Op::kPad, "pad", "more elements at both ends of space; `e` says how many behind the end",
          "pad 1x2 e1x0");
  pad.args = {{.name = "extents", .kind = Arg::Kind::kInts, .required = true},
              {.name = "end", .kind = Arg::Kind::kInts, .prefix = "e"},
              {.name = "mode", .kind = Arg::Kind::kWord, .words = kBorderWords},
              {.name = "value", .kind = Arg::Kind::kReal, .named = true}};
  pad.shape = pad_shape;

  Operation crop = row(Op::kCrop, "crop", "a slice of each spatial axis and of channels, as in Python",
                       "crop 1:-1x2: channels=0:32");
  crop.args = {{.name = "space", .kind = Arg::Kind::kSlices},
               {.name = "channels", .kind = Arg::Kind::kSlices, .named = true}};
  crop.shape = crop_shape;

  Operation upsample =
      row(Op::kUpsample, "upsample",
          "space times a factor; `linear corners` keeps the corners in their places", "upsample 2 nearest");
  upsample.args = {
      {.name = "scale", .kind = Arg::Kind::kInts, .required = true},
      {.name = "mode", .kind = Arg::Kind::kWord, .required = true, .words = {"nearest", "linear"}},
      {.name = "corners", .kind = Arg::Kind::kFlag}};
  upsample.shape = upsample_shape;
  upsample.evaluate = upsample_evaluate;
  upsample.bound = upsample_bound;

  Operation shuffle = row(Op::kPixelShuffle, "pixel_shuffle",
                          "C r^axes channels become C channels of r times the extents", "pixel_shuffle 2");
  shuffle.args = {{.name = "factors", .kind = Arg::Kind::kInts, .required = true}};
  shuffle.shape = shuffle_shape;
  Operation unshuffle = shuffle;
  unshuffle.id = Op::kPixelUnshuffle;
  unshuffle.name = "pixel_unshuffle";
  unshuffle.summary = "C channels become C r^axes channels of 1/r of the extents";
  unshuffle.example = "pixel_unshuffle 2";
  unshuffle.shape = unshuffle_shape;

  Operation glu =
      row(Op::kGlu, "glu", "the first half of the channels times the sigmoid of the second", "glu channel");
  glu.args = {{.name = "axis", .kind = Arg::Kind::kWord, .required = true, .words = {"channel"}}};
  glu.shape = glu_shape;
  glu.evaluate = glu_evaluate;
  glu.bound = glu_bound;
  glu.ops_per_element = 16;
  return {cat, pad, crop, upsample, shuffle, unshuffle, glu};
}

}  // namespace upweave
