// The elements of moves, and of glu, as functions of their coordinates.
#include "engine/cuda/code.h"
#include "engine/cuda/source.h"
#include "graph/operation.h"
#include "graph/ops/moves.h"

namespace upweave::cuda {

std::string Source::border(const Node& node, size_t axis, int64_t extent) {
  const char* text = "";
  switch (border_of(node)) {
    case Border::kZeros:
      text = "inside = inside && j.x[$axis] >= 0 && j.x[$axis] < $in; ";
      break;
    case Border::kReflect:
      text = "j.x[$axis] = j.x[$axis] < 0 ? -j.x[$axis] : min(j.x[$axis], 2 * ($in - 1) - j.x[$axis]); ";
      break;
    case Border::kReplicate:
      text = "j.x[$axis] = max(0, min(j.x[$axis], $in - 1)); ";
      break;
    case Border::kCircular:
      text = "j.x[$axis] += j.x[$axis] < 0 ? $in : j.x[$axis] >= $in ? -$in : 0; ";
      break;
  }
  return code(text, {{"axis", axis}, {"in", extent}});
}

std::string Source::move(const Node& node) const {
  const Shape& in = graph_[node.in[0]].shape;
  const size_t spatial = spatial_rank(in);
  std::string text = "At j = i; ";
  const auto value = [&](size_t slot) { return operand(node.in[slot], graph_[node.in[slot]].shape, "j"); };
  if (is(node, Op::kCat)) {
    for (size_t slot = 0; slot + 1 < node.in.size(); ++slot) {
      const int64_t channels = graph_[node.in[slot]].shape[1];
      text += fmt::format("if (j.x[1] < {0}) return {1}; j.x[1] -= {0}; ", channels, value(slot));
    }
    return text + fmt::format("return {};", value(node.in.size() - 1));
  }
  if (is(node, Op::kGlu)) {
    return fmt::format("const float x = {}; At j = i; j.x[1] += {}; return x * f_sigmoid({});",
                       operand(node.in[0], in, "i"), node.shape[1], value(0));
  }
  if (is(node, Op::kUpsample) && upsample_attrs(node, spatial).linear) return linear(node);
  std::string result = value(0);
  if (is(node, Op::kPad)) {
    const PadAttrs pad = pad_attrs(node, spatial);
    text += "bool inside = true; ";
    for (size_t a = 0; a < spatial; ++a) {
      text += fmt::format("j.x[{}] -= {}; ", a + 2, pad.begin[a]);
      text += border(node, a + 2, in[a + 2]);
    }
    result = fmt::format("inside ? {} : {}", result, number(pad.value));
  } else if (is(node, Op::kCrop)) {
    const CropAttrs crop = crop_attrs(node, in);
    for (size_t a = 0; a <= spatial; ++a) text += fmt::format("j.x[{}] += {}; ", a + 1, crop.begin[a]);
  } else if (is(node, Op::kUpsample)) {
    const Shape scale = upsample_attrs(node, spatial).scale;
    for (size_t a = 0; a < spatial; ++a) text += fmt::format("j.x[{}] /= {}; ", a + 2, scale[a]);
  } else if (is(node, Op::kPixelShuffle)) {
    const Shape factors = shuffle_factors(node, spatial);
    for (size_t a = 0; a < spatial; ++a)
      text += fmt::format("j.x[1] = j.x[1] * {1} + i.x[{0}] % {1}; j.x[{0}] /= {1}; ", a + 2, factors[a]);
  } else {
    const Shape factors = shuffle_factors(node, spatial);
    for (size_t a = spatial; a-- > 0;)
      text += fmt::format("j.x[{0}] = i.x[{0}] * {1} + j.x[1] % {1}; j.x[1] /= {1}; ", a + 2, factors[a]);
  }
  return text + fmt::format("return {};", result);
}

// Places are whole numbers of parts (see linear_tap): weights are rounded once.
std::string Source::linear(const Node& node) const {
  const Shape& in = graph_[node.in[0]].shape;
  const size_t spatial = spatial_rank(in);
  const UpsampleAttrs up = upsample_attrs(node, spatial);
  std::string text = "At j = i; float s = 0.f; ", loops, product = "1.f";
  for (size_t a = 0; a < spatial; ++a) {
    const int64_t extent = in[a + 2], scale = up.scale[a];
    text += code(
        "const i64 q$axis = $place; const int lo$axis = (int)(q$axis / $whole$ll); "
        "const float w$axis[2] = {(float)((double)($whole$ll - q$axis % $whole$ll) / $whole.), "
        "(float)((double)(q$axis % $whole$ll) / $whole.)}; ",
        {{"axis", a + 2},
         {"whole", up.corners ? std::max<int64_t>(1, extent * scale - 1) : 2 * scale},
         {"place", up.corners ? fmt::format("(i64)i.x[{}] * {}", a + 2, extent - 1)
                              : fmt::format("max(0ll, 2ll * i.x[{}] + 1 - {}ll)", a + 2, scale)}});
    loops += code("for (int p$axis = 0; p$axis < 2; ++p$axis) { j.x[$axis] = min(lo$axis + p$axis, $last); ",
                  {{"axis", a + 2}, {"last", extent - 1}});
    product += fmt::format(" * w{0}[p{0}]", a + 2);
  }
  return fmt::format("{}{}s += {} * {};{} return s;", text, loops, product, operand(node.in[0], in, "j"),
                     std::string(spatial, '}'));
}

}  // namespace upweave::cuda
