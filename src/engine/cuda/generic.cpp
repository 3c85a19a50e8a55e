#include "engine/cuda/generic.h"

#include <algorithm>

#include "engine/cuda/code.h"
#include "engine/cuda/work.h"
#include "graph/operation.h"
#include "graph/ops/conv.h"
#include "graph/ops/norms.h"
#include "graph/ops/reductions.h"

namespace upweave::cuda {
namespace {

constexpr unsigned kBlock = 256;

// Sums over channels of fewer voxels than this have eight threads each.
constexpr int64_t kFewVoxels = 1 << 16;

bool sums_channels(const Node& node) {
  return (is(node, Op::kSum) || is(node, Op::kMean)) && node.attrs.word("axes") == "channel";
}

int64_t voxels_of(const Shape& shape) { return count(shape) / std::max<int64_t>(1, shape[1]); }

int64_t blocks_for(int64_t threads) { return (threads + kBlock - 1) / kBlock; }

std::string lambda(const std::string& expression) {
  return fmt::format("[&](const At& i) {{ return {}; }}", expression);
}

// layer_norm, rms_norm, softmax and reductions over channels: one thread a voxel.
std::string over_channels(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  const Shape& in = l.graph[node.in[0]].shape;
  const std::string s = dims(in), f = lambda(l.source.operand(node.in[0], in, "i"));
  const std::string type = l.source.type(id), to = l.source.address(id), size = dims(node.shape);
  auto body = [&](const std::string& text) {
    return fmt::format("per_voxel<{}>([&](At at) {{ auto f = {}; {} }});", s, f, text);
  };
  auto put = [&](const std::string& value) {
    return fmt::format("store<{}>({}, {}::offset(at), {});", type, to, size, value);
  };
  auto each = [&](const std::string& text) {
    return fmt::format("for (int c = 0; c < {}; ++c) {{ at.x[1] = c; {} }}", in[1], text);
  };
  if (is(node, Op::kLayerNorm) || is(node, Op::kRmsNorm)) {
    std::string y = "(f(at) - m) * r";
    if (node.in[1] != kNone) y = fmt::format("{} * {}", y, l.source.operand(node.in[1], node.shape, "at"));
    if (node.in[2] != kNone) y = fmt::format("{} + {}", y, l.source.operand(node.in[2], node.shape, "at"));
    const std::string mean =
        is(node, Op::kLayerNorm)
            ? fmt::format("const float m = (float)(channel_sum<{}>(at, f) / {});", s, in[1])
            : "const float m = 0.f;";
    return body(code(
        "$mean const float v = (float)(channel_sum<$dims>(at, [&](const At& i) { const float d = f(i) - m; "
        "return d * d; }) / $channels); const float r = inv_sqrt(v + $eps); $stores",
        {{"mean", mean},
         {"dims", s},
         {"channels", in[1]},
         {"eps", number(norm_eps(node))},
         {"stores", each(put(y))}}));
  }
  if (is(node, Op::kSoftmax)) {
    return body(
        fmt::format("const float m = channel_max<{0}>(at, f); const float s = (float)channel_sum<{0}>(at, "
                    "[&](const At& i) {{ return expf(f(i) - m); }}); {1}",
                    s, each(put("expf(f(at) - m) / s"))));
  }
  if (sums_channels(node) && voxels_of(in) < kFewVoxels) {
    return fmt::format("few_channel_sums<{}>({}, [&](const At& at, double sum) {{ {} }});", s, f,
                       put(is(node, Op::kMean) ? fmt::format("(float)(sum / {})", in[1]) : "(float)sum"));
  }
  std::string y;
  if (is(node, Op::kSum)) y = fmt::format("(float)channel_sum<{}>(at, f)", s);
  if (is(node, Op::kMean)) y = fmt::format("(float)(channel_sum<{}>(at, f) / {})", s, in[1]);
  if (is(node, Op::kMax)) y = fmt::format("channel_max<{}>(at, f)", s);
  if (is(node, Op::kMin)) y = fmt::format("channel_min<{}>(at, f)", s);
  if (is(node, Op::kLogsumexp)) {
    return body(fmt::format(
        "float m = channel_max<{0}>(at, f); if (isinf(m)) m = 0.f; const double s = channel_sum<{0}>(at, "
        "[&](const At& i) {{ return expf(f(i) - m); }}); {1}",
        s, put("(float)((double)m + log(s))")));
  }
  return body(fmt::format("const float y = {}; at.x[1] = 0; {}", y, put("y")));
}

// A block for each set of elements: base(blockIdx.x) + offsets in `reduced`.
std::string over_sets(const std::string& base, const Shape& reduced, const std::string& f,
                      const std::string& text) {
  return code(
      "$base constexpr i64 n = $dims::count; auto f = [&](i64 k) { At i = $dims::at(k); "
      "for (int x = 0; x < 5; ++x) i.x[x] += base.x[x]; return $value; }; $text",
      {{"base", base}, {"dims", dims(reduced)}, {"value", f}, {"text", text}});
}

std::string reduction(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  const Shape& in = l.graph[node.in[0]].shape;
  Shape reduced(in.size(), 1);
  for (const size_t axis : reduced_axes(node, in)) reduced[axis] = in[axis];
  const std::string base = fmt::format("const At base = {}::at(blockIdx.x);", dims(node.shape));
  std::string value;
  if (is(node, Op::kSum)) value = "(float)block_reduce<Sum>(n, f)";
  if (is(node, Op::kMean)) value = "(float)(block_reduce<Sum>(n, f) / n)";
  if (is(node, Op::kMax)) value = "block_reduce<Max>(n, f)";
  if (is(node, Op::kMin)) value = "block_reduce<Min>(n, f)";
  if (is(node, Op::kLogsumexp)) value = "block_logsumexp(n, f)";
  return over_sets(base, reduced, l.source.operand(node.in[0], in, "i"),
                   fmt::format("const float y = {}; if (threadIdx.x == 0) store<{}>({}, blockIdx.x, y);",
                               value, l.source.type(id), l.source.address(id)));
}

// Which elements set blockIdx.x holds: `base` and the extents from there.
std::string set_base(const Lowering& l, const Node& node, Shape& reduced) {
  const Shape& in = l.graph[node.in[0]].shape;
  std::string base;
  reduced = in;
  if (is(node, Op::kMoments)) {
    const NormSets norm = norm_sets(node, in);
    if (norm.kind == NormSets::Kind::kBatch) {
      base = "const At base = At{{0, (int)blockIdx.x, 0, 0, 0}};";
      reduced[1] = 1;
    } else {
      const int64_t groups = norm.kind == NormSets::Kind::kGroup ? norm.groups : in[1], each = in[1] / groups;
      base = fmt::format(
          "const At base = At{{{{(int)blockIdx.x / {0}, (int)blockIdx.x % {0} * {1}, 0, 0, 0}}}};", groups,
          each);
      reduced[0] = 1;
      reduced[1] = each;
    }
  } else {
    base = fmt::format("const At base = At{{{{(int)blockIdx.x / {0}, (int)blockIdx.x % {0}, 0, 0, 0}}}};",
                       in[1]);
    reduced[0] = reduced[1] = 1;
  }
  return base;
}

// Mean first, then the squares of what is left: no cancellation.
std::string statistics(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  const Shape& in = l.graph[node.in[0]].shape;
  const int64_t sets = node.shape[1];
  Shape reduced;
  const std::string base = set_base(l, node, reduced);
  const std::string put = fmt::format(
      "if (threadIdx.x == 0) {{ store<float>({0}, blockIdx.x, p); store<float>({0}, (i64)blockIdx.x + {1}, "
      "q); }}",
      l.source.address(id), sets);
  const std::string text = is(node, Op::kMoments)
                               ? "const float p = (float)(block_reduce<Sum>(n, f) / n); "
                                 "const float q = (float)(block_reduce<Sum>(n, [&](i64 k) { "
                                 "const float d = f(k) - p; return (double)d * d; }) / n); "
                               : "const float p = block_reduce<Max>(n, f); const float q = "
                                 "(float)block_reduce<Sum>(n, [&](i64 k) { "
                                 "return (double)expf(f(k) - p); }); ";
  return over_sets(base, reduced, l.source.operand(node.in[0], in, "i"), text + put);
}

// layer_norm over trailing axes: a block a row of them.
std::string over_last(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  const Shape& in = l.graph[node.in[0]].shape;
  const NormSets sets = norm_sets(node, in);
  const int64_t last = norm_attrs(node).count;
  Shape outer = in, reduced(in.size(), 1);
  for (size_t a = in.size() - last; a < in.size(); ++a) {
    reduced[a] = in[a];
    outer[a] = 1;
  }
  std::string y = "(f(k) - m) * r";
  if (node.in[1] != kNone)
    y += fmt::format(" * load<{}>({}, k)", l.source.type(node.in[1]), l.source.address(node.in[1]));
  if (node.in[2] != kNone)
    y += fmt::format(" + load<{}>({}, k)", l.source.type(node.in[2]), l.source.address(node.in[2]));
  const std::string mean = is(node, Op::kLayerNorm) ? "(float)(block_reduce<Sum>(n, f) / n)" : "0.f";
  return over_sets(
      fmt::format("const At base = {}::at(blockIdx.x);", dims(outer)), reduced,
      l.source.operand(node.in[0], in, "i"),
      code("const float m = $mean; const float v = (float)(block_reduce<Sum>(n, [&](i64 k) { const float d = "
           "f(k) - m; return (double)d * d; }) / n); const float r = inv_sqrt(v + $eps); "
           "for (i64 k = threadIdx.x; k < n; k += blockDim.x) store<$type>($to, blockIdx.x * $size$ll + k, "
           "$y);",
           {{"mean", mean},
            {"eps", number(norm_eps(node))},
            {"type", l.source.type(id)},
            {"to", l.source.address(id)},
            {"size", sets.trailing},
            {"y", y}}));
}

// out[n, co, o] = sum over ci, k of x[n, ci, i] K[ci, co, k] where o = i s - p + k d; one thread an output.
std::string plain_conv(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  const ConvGeometry g = conv_geometry(l.graph, node);
  const Shape& kernel = l.graph[node.in[1]].shape;
  const int64_t per_in = g.c_in / g.groups, per_out = g.c_out / g.groups;
  std::string loops, close;
  for (size_t a = 0; a < g.spatial; ++a) {
    loops += code(
        "for (int k$axis = 0; k$axis < $kernel; ++k$axis) { const int t$axis = o.x[$axis] + $padding - "
        "k$axis * $dilation; "
        "if (t$axis < 0 || t$axis % $stride || t$axis / $stride >= $in) continue; i.x[$axis] = t$axis / "
        "$stride; j.x[$axis] = k$axis; ",
        {{"axis", a + 2},
         {"kernel", g.kernel[a]},
         {"padding", g.padding[a]},
         {"dilation", g.dilation[a]},
         {"stride", g.stride[a]},
         {"in", g.in[a]}});
    close += "}";
  }
  const std::string bias =
      node.in[2] == kNone ? "" : fmt::format(" + {}", l.source.operand(node.in[2], node.shape, "o"));
  return code(
      "elementwise<$type, $dims>($to, [&](const At& o) { At i = o, j = {}; float s = 0.f; const int first = "
      "o.x[1] / $outs * $ins; "
      "j.x[1] = o.x[1] % $outs; $loops for (int c = 0; c < $ins; ++c) { i.x[1] = first + c; j.x[0] = first + "
      "c; "
      "s = fmaf($x, $kernel, s); } $close return s$bias; });",
      {{"type", l.source.type(id)},
       {"dims", dims(node.shape)},
       {"to", l.source.address(id)},
       {"outs", per_out},
       {"ins", per_in},
       {"loops", loops},
       {"x", l.source.operand(node.in[0], l.graph[node.in[0]].shape, "i")},
       {"kernel", l.source.operand(node.in[1], kernel, "j")},
       {"close", close},
       {"bias", bias}});
}

// out[n, co, o] = sum over ci, k of x[n, ci, o s - p + k d] K[co, ci, k]; one thread an output.
std::string ordinary_conv(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  const PlainConvGeometry g = plain_conv_geometry(l.graph, node);
  const Shape& in = l.graph[node.in[0]].shape;
  std::string loops, close, tap = "0";
  for (size_t a = 0; a < g.spatial; ++a) {
    loops += code(
        "for (int k$axis = 0; k$axis < $kernel; ++k$axis) { j.x[$axis] = o.x[$axis] * $stride - $padding + "
        "k$axis * $dilation; bool inside = true; $border if (!inside) continue; ",
        {{"axis", a + 2},
         {"kernel", g.kernel[a]},
         {"stride", g.stride[a]},
         {"padding", g.padding[a]},
         {"dilation", g.dilation[a]},
         {"border", Source::border(node, a + 2, g.in[a])}});
    close += "}";
    tap = fmt::format("({}) * {} + k{}", tap, g.kernel[a], a + 2);
  }
  const std::string bias =
      node.in[2] == kNone ? "" : fmt::format(" + {}", l.source.operand(node.in[2], node.shape, "o"));
  return code(
      "elementwise<$type, $dims>($to, [&](const At& o) { At j = o; float s = 0.f; const int first = o.x[1] / "
      "$outs * $ins; $loops for (int c = 0; c < $ins; ++c) { j.x[1] = first + c; s = fmaf($x, "
      "load<$ktype>($kernel, ((i64)o.x[1] * $ins + c) * $taps + $tap), s); } $close return s$bias; });",
      {{"type", l.source.type(id)},
       {"dims", dims(node.shape)},
       {"to", l.source.address(id)},
       {"outs", g.c_out / g.groups},
       {"ins", g.c_in / g.groups},
       {"loops", loops},
       {"x", l.source.operand(node.in[0], in, "j")},
       {"ktype", l.source.type(node.in[1])},
       {"kernel", l.source.address(node.in[1])},
       {"taps", count(g.kernel)},
       {"tap", tap},
       {"close", close},
       {"bias", bias}});
}

// Sums of x over the box of inputs that each tap carries into the output; then K times those sums.
void mean_conv(Lowering& l, Id id) {
  const Node& node = l.graph[id];
  const Shape& in = l.graph[node.in[0]].shape;
  const Shape& kernel = l.graph[node.in[1]].shape;
  const size_t spatial = spatial_rank(in);
  const auto [stride, padding, output_padding, dilation, extent, groups] = conv_attrs(node, spatial);
  const int64_t per_in = in[1] / groups, per_out = kernel[1];
  const Shape taps(kernel.begin() + 2, kernel.end());
  const int64_t tap_count = count(taps), sums = in[0] * in[1] * tap_count;
  const int64_t at = l.reserve(sums * 8);
  std::string text = fmt::format(
      "const int tap = blockIdx.x % {0}; const i64 nc = blockIdx.x / {0}; int lo[5] = {{}}, size[5] = "
      "{{1, 1, 1, 1, 1}}; ",
      tap_count);
  int64_t rest = 1;
  for (size_t a = spatial; a-- > 0;) {
    text += code(
        "{ const int s = tap / $before % $taps * $dilation - ($padding), last = $lastOut - s; lo[$axis] = s "
        "< 0 ? (-s + $round) / $stride "
        ": 0; "
        "const int hi = last < 0 ? 0 : min($in, last / $stride + 1); size[$axis] = max(0, hi - lo[$axis]); "
        "} ",
        {{"before", rest},
         {"taps", taps[a]},
         {"dilation", dilation[a]},
         {"padding", padding[a]},
         {"lastOut", extent[a] - 1},
         {"axis", a + 2},
         {"round", stride[a] - 1},
         {"stride", stride[a]},
         {"in", in[a + 2]}});
    rest *= taps[a];
  }
  text += fmt::format(
      "const i64 n = (i64)size[2] * size[3] * size[4]; const double s = block_reduce<Sum>(n, [&](i64 k) {{ "
      "At i; "
      "i.x[0] = (int)(nc / {0}); i.x[1] = (int)(nc % {0}); i.x[4] = lo[4] + (int)(k % size[4]); k /= "
      "size[4]; "
      "i.x[3] = lo[3] + (int)(k % size[3]); i.x[2] = lo[2] + (int)(k / size[3]); return {1}; }}); "
      "if (threadIdx.x == 0) ((double*)(a.ws + {2}ll))[blockIdx.x] = s;",
      in[1], l.source.operand(node.in[0], in, "i"), at);
  const LaunchId boxes = l.run(l.kernel(fmt::format("box_sums_{}", id), text, sums, kBlock));
  const LaunchId products = l.run(l.kernel(
      fmt::format("mean_conv_{}", id),
      code("const int co = blockIdx.x % $columns, n0 = blockIdx.x / $columns, first = co / $outs * $ins; "
           "const double s = "
           "block_reduce<Sum>($ins * $taps, [&](i64 k) { const i64 ci = first + k / $taps; return "
           "(double)load<$weightType>($weights, (ci * $outs + co % $outs) * $taps + k % $taps) * ((const "
           "double*)(a.ws + "
           "$sums$ll))[(n0 * $channels$ll + ci) * $taps "
           "+ k % $taps]; }); if (threadIdx.x == 0) store<$type>($to, blockIdx.x, (float)(s / $count.));",
           {{"columns", per_out * groups},
            {"outs", per_out},
            {"ins", per_in},
            {"taps", tap_count},
            {"weightType", l.source.type(node.in[1])},
            {"weights", l.source.address(node.in[1])},
            {"sums", at},
            {"channels", in[1]},
            {"type", l.source.type(id)},
            {"to", l.source.address(id)},
            {"count", count(extent)}}),
      in[0] * per_out * groups, kBlock));
  note_mean_conv_work(l, id, boxes, products);
}

bool over_channel_axis(const Node& node) {
  return node.attrs.has("axes") && node.attrs.word("axes") == "channel";
}

}  // namespace

bool must_store(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  if (is_pointwise(node)) return false;
  if (!computable(node)) return true;
  // A pool is computed where it is read if every value is read once: by a sum over channels, through
  // pointwise values that nobody else needs.
  for (Id at = id;;) {
    Id reader = kNone;
    for (Id other = 0; other < l.graph.size(); ++other) {
      const auto reads = std::ranges::count(l.graph[other].in, at);
      if (reads == 0) continue;
      if (reads > 1 || reader != kNone) return true;
      reader = other;
    }
    if (reader == kNone) return true;
    if (sums_channels(l.graph[reader])) return false;
    if (!is_pointwise(l.graph[reader])) return true;
    at = reader;
  }
}

void lower_alone(Lowering& l, Id id, bool packing) {
  const Node& node = l.graph[id];
  l.keep(id);
  const std::string name = fmt::format("{}_{}", node.op->name, id);
  const int64_t elements = count(node.shape);
  if (computable(node)) {
    const int64_t blocks = std::min<int64_t>(blocks_for(elements), 1 << 20);
    Launch launch =
        l.kernel(name,
                 fmt::format("elementwise<{}, {}>({}, [&](const At& i) {{ {} }});", l.source.type(id),
                             dims(node.shape), l.source.address(id), l.source.compute(id)),
                 blocks, kBlock);
    if (packing)
      l.out.pack.push_back(std::move(launch));
    else
      note_work(l, id, l.run(std::move(launch)));
    return;
  }
  if (packing)
    throw fail(Status::kUnsupported, "the CUDA engine cannot compute {} from parameters alone",
               node.op->name);
  if (is(node, Op::kMeanConv)) return mean_conv(l, id);
  const Shape& in = l.graph[node.in[0]].shape;
  Launch launch;
  if (is(node, Op::kConvTranspose)) {
    launch = l.kernel(name, plain_conv(l, id), std::min<int64_t>(blocks_for(elements), 1 << 20), kBlock);
  } else if (is_plain_conv(node)) {
    launch = l.kernel(name, ordinary_conv(l, id), std::min<int64_t>(blocks_for(elements), 1 << 20), kBlock);
  } else if (is(node, Op::kMoments) || (is(node, Op::kSoftmaxStats) && !over_channel_axis(node))) {
    launch = l.kernel(name, statistics(l, id), node.shape[1], 1024);
  } else if (over_channel_axis(node) && !is(node, Op::kSoftmaxStats)) {
    const int64_t voxels = voxels_of(in);
    const bool few = sums_channels(node) && voxels < kFewVoxels;
    launch = l.kernel(name, over_channels(l, id), few ? (voxels + 31) / 32 : blocks_for(voxels), kBlock);
  } else if (is(node, Op::kLayerNorm) || is(node, Op::kRmsNorm)) {
    const NormSets sets = norm_sets(node, in);
    launch = l.kernel(name, over_last(l, id), sets.sets,
                      static_cast<unsigned>(std::clamp<int64_t>((sets.size + 31) / 32 * 32, 32, 256)));
  } else if (is(node, Op::kSum) || is(node, Op::kMean) || is(node, Op::kMax) || is(node, Op::kMin) ||
             is(node, Op::kLogsumexp)) {
    const int64_t length = count(in) / std::max<int64_t>(1, elements);
    launch = l.kernel(name, reduction(l, id), elements,
                      static_cast<unsigned>(std::clamp<int64_t>((length + 31) / 32 * 32, 32, 512)));
  } else {
    throw fail(Status::kUnsupported, "the CUDA engine has no kernel for {}", node.op->name);
  }
  note_work(l, id, l.run(std::move(launch)));
}

}  // namespace upweave::cuda
