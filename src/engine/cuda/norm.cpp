#include "engine/cuda/norm.h"

#include <algorithm>

#include "base/dtype.h"
#include "engine/cuda/code.h"
#include "engine/cuda/work.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"

namespace upweave::cuda {
namespace {

// Whether an operand is one number for all voxels of a channel.
bool one_a_channel(const Lowering& l, Id id, const Shape& shape) {
  if (id == kNone) return true;
  const Shape strides = broadcast_strides(l.graph[id].shape, shape);
  return l.weights[id] && std::all_of(strides.begin() + 2, strides.end(), [](int64_t s) { return s == 0; });
}

// Whether value `id` is made of `from` by functions of the value and its channel alone.
bool made_flat(const Lowering& l, Id id, Id from) {
  if (id == from) return true;
  const Node& node = l.graph[id];
  if (l.weights[id] || !is_pointwise(node) || l.graph[node.in[0]].shape != node.shape) return false;
  for (size_t s = 1; s < node.in.size(); ++s) {
    const bool statistics = s == 1 && (is(node, Op::kNormalize) || is(node, Op::kSoftmaxApply));
    if (!statistics && !one_a_channel(l, node.in[s], node.shape)) return false;
  }
  return made_flat(l, node.in[0], from);
}
// What it is made of `leaf`, which is `from` at some voxel of channel `at`.
std::string flat_value(const Lowering& l, Id id, Id from, const std::string& leaf) {
  const Node& node = l.graph[id];
  return id == from ? leaf : l.source.pointwise(node, flat_value(l, node.in[0], from, leaf), "at");
}
// The value in memory that `id` is made of, first operands followed; kNone if there is none.
Id stored_source(const Lowering& l, Id id) {
  while (!l.stored(id)) {
    if (l.weights[id] || !is_pointwise(l.graph[id])) return kNone;
    id = l.graph[id].in[0];
  }
  return id;
}

// The normalize that alone reads moments `id` of the value it normalises, or kNone.
Id reader_of(const Lowering& l, Id id) {
  Id norm = kNone;
  for (Id reader = 0; reader < l.graph.size(); ++reader) {
    if (std::ranges::find(l.graph[reader].in, id) == l.graph[reader].in.end()) continue;
    if (norm != kNone || !is(l.graph[reader], Op::kNormalize) || l.graph[reader].in[0] != l.graph[id].in[0])
      return kNone;
    norm = reader;
  }
  return norm;
}

// How a block's threads share a set.
struct Shares {
  int64_t groups, channels, voxels;           // sets of a sample; channels and voxels of a set
  int64_t lanes, per_channel, each, threads;  // lanes: neighbours that share a voxel; of each, voxels apart
  bool fits = false;
};
// A channel's voxels go to neighbouring threads, so that what depends on the channel alone is computed once a
// thread; of a blocked value a thread takes four channels. About twenty numbers a thread pay for the two
// joins over the block.
Shares share_set(const Lowering& l, const Node& moments, bool blocked) {
  const Shape& in = l.graph[moments.in[0]].shape;
  const NormSets sets = norm_sets(moments, in);
  Shares s;
  s.groups = sets.kind == NormSets::Kind::kGroup ? sets.groups : in[1];
  s.channels = in[1] / s.groups;
  s.voxels = count(in) / (in[0] * in[1]);
  s.lanes = blocked ? s.channels / 4 : s.channels;
  if (s.channels > 1024 || (blocked && s.channels % 16 != 0)) return s;
  const int64_t wanted = blocked ? 5 : 20;
  s.per_channel = std::clamp<int64_t>((s.voxels + wanted - 1) / wanted, 1, 1024 / s.lanes);
  if (s.per_channel >= 8 && s.per_channel % 8 != 0 && (s.per_channel / 8 + 1) * 8 * s.lanes <= 1024)
    s.per_channel = (s.per_channel / 8 + 1) * 8;  // whole sectors
  s.each = (s.voxels + s.per_channel - 1) / s.per_channel;
  s.threads = (s.lanes * s.per_channel + 31) / 32 * 32;
  s.fits = s.each <= (blocked ? 6 : 24);
  return s;
}

bool parameters_flat(const Lowering& l, const Node& normalize) {
  return one_a_channel(l, normalize.in[2], normalize.shape) &&
         one_a_channel(l, normalize.in[3], normalize.shape);
}

}  // namespace

// A norm's block holds its whole set before it writes: the set may lie where the result will, in another
// order.
Id norm_of_blocks(const Lowering& l, Id from) {
  if (l.graph[from].shape[1] % 16 != 0) return kNone;
  auto readers = [&](Id id) {
    int64_t found = 0;
    for (const Node& node : l.graph.nodes) found += std::ranges::count(node.in, id);
    return found;
  };
  for (Id id = 0; id < l.graph.size(); ++id) {
    const Node& node = l.graph[id];
    if (!is(node, Op::kMoments) || node.attrs.word("axes") == "batch") continue;
    const Id norm = reader_of(l, id);
    if (norm == kNone || !parameters_flat(l, l.graph[norm]) || !share_set(l, node, true).fits ||
        !made_flat(l, node.in[0], from))
      continue;
    // Moments and normalize read the operand; on the way down to `from` nobody else reads.
    bool alone = readers(node.in[0]) == 2;
    for (Id at = node.in[0]; at != from;) {
      at = l.graph[at].in[0];
      alone = alone && readers(at) == 1;
    }
    if (alone) return norm;
  }
  return kNone;
}

Id lower_norm(Lowering& l, Id id) {
  const Node& node = l.graph[id];
  if (!is(node, Op::kMoments) || node.attrs.word("axes") == "batch") return kNone;
  const Id norm = reader_of(l, id);
  if (norm == kNone || !parameters_flat(l, l.graph[norm])) return kNone;
  const Node& normalize = l.graph[norm];
  const Shape& in = l.graph[node.in[0]].shape;
  const Id from = stored_source(l, node.in[0]);
  const bool blocked = from != kNone && l.source.places[from].blocked;
  const Shares s = share_set(l, node, blocked);
  if (!s.fits) return kNone;
  const int64_t width = blocked ? 4 : 1;  // channels of a thread
  std::string value;
  if (from != kNone) {
    const std::string leaf = blocked
                                 ? "x[e]"
                                 : fmt::format("load<{}>({}, ((i64)at.x[0] * {} + at.x[1]) * {} + j)",
                                               l.source.type(from), l.source.address(from), in[1], s.voxels);
    if (made_flat(l, node.in[0], from)) value = flat_value(l, node.in[0], from, leaf);
  }
  if (value.empty()) {
    if (blocked) throw fail(Status::kInternal, "a norm cannot read blocks of channels");
    Shape space = in;
    space[0] = space[1] = 1;
    value = fmt::format("[&] {{ At i = {}::at(j); i.x[0] = at.x[0]; i.x[1] = at.x[1]; return {}; }}()",
                        dims(space), l.source.operand(node.in[0], in, "i"));
  }
  l.keep(norm);
  auto parameter = [&](size_t at, const char* none) {
    return normalize.in[at] == kNone ? none : l.source.operand(normalize.in[at], in, "at");
  };
  // A thread has voxels first, first + per_channel, ... of `width` channels from c.
  std::string text =
      blocked ? fmt::format(
                    "const int part = threadIdx.x / {0}, first = threadIdx.x / 4 % {1}, c = part * 16 + "
                    "threadIdx.x % 4 * 4;\n",
                    4 * s.per_channel, s.per_channel)
              : fmt::format("const int c = threadIdx.x / {0}, first = threadIdx.x % {0};\n", s.per_channel);
  text += code(
      "constexpr int W = $width, N = $each, STEP = $step, VOXELS = $voxels;\n"
      "const At at0 = At{{(int)blockIdx.x / $groups, (int)blockIdx.x % $groups * $channels + min(c, "
      "$channels - W), 0, 0, "
      "0}};\n"
      "auto there = [&](int k) { return $exists(k < VOXELS / STEP || first + k * STEP < VOXELS); };\n",
      {{"width", width},
       {"each", s.each},
       {"step", s.per_channel},
       {"voxels", s.voxels},
       {"groups", s.groups},
       {"channels", s.channels},
       {"exists", s.threads == s.lanes * s.per_channel ? "" : fmt::format("c < {} && ", s.channels)}});
  std::string load;
  if (blocked) {
    const std::string& tiles = l.source.places[from].divided;
    const std::string at =
        tiles.empty()
            ? fmt::format("({} + (i64)blockIdx.x * {}))[(c / 16 * VOXELS + j)", l.source.address(from),
                          s.channels * s.voxels * 4)
            : fmt::format("divided_at<{0}>(a, at0.x[0], at0.x[1] / 16, j / {1}))[j % {1}", tiles, in.back());
    load = fmt::format("float x[4]; *(float4*)x = ((const float4*){} * 4 + c % 16 / 4];\n", at);
  }
  text += code(
      "float v[N][W], w[W], b[W], m, q;\n#pragma unroll\nfor (int k = 0; k < N; ++k) {\n"
      "const int j = first + k * STEP;\n#pragma unroll\nfor (int e = 0; e < W; ++e) v[k][e] = 0.f;\n"
      "if (there(k)) {\n$load#pragma unroll\nfor (int e = 0; e < W; ++e) { At at = at0; at.x[1] += e; "
      "v[k][e] "
      "= "
      "$value; }\n}\n}\nblock_moments<VOXELS / STEP>(v, there, $count., m, q);\nconst float r = inv_sqrt(q + "
      "$eps);\n"
      "#pragma unroll\nfor (int e = 0; e < W; ++e) { At at = at0; at.x[1] += e; w[e] = $weight; b[e] = "
      "$bias; }\n",
      {{"load", load},
       {"value", value},
       {"count", s.channels * s.voxels},
       {"eps", number(norm_eps(normalize))},
       {"weight", parameter(2, "1.f")},
       {"bias", parameter(3, "0.f")}});
  // Four channels of a voxel lie far apart in the result: by way of shared memory they leave in whole lines.
  const int64_t bytes =
      s.channels * s.voxels * (l.source.places[norm].element ? size_of(l.options.dtype) : 4);
  const std::string type = l.source.type(norm), to = l.source.address(norm);
  const bool staged = blocked && bytes <= 40 << 10;
  text += staged ? fmt::format("__shared__ __align__(16) {} all[{}];\n{}* out = all + c * VOXELS;\n", type,
                               s.channels * s.voxels, type)
                 : fmt::format("{0}* out = ({0}*){1} + ((i64)at0.x[0] * {2} + at0.x[1]) * VOXELS;\n", type,
                               to, in[1]);
  text +=
      "#pragma unroll\nfor (int k = 0; k < N; ++k) if (there(k)) {\n#pragma unroll\nfor (int e = 0; e < W; "
      "++e) "
      "from_float((v[k][e] - m) * r * w[e] + b[e], out[e * VOXELS + first + k * STEP]); }\n";
  if (staged) {
    if (l.source.places[norm].kind == Location::Kind::kOutput)
      l.out.output_alignment = std::max(l.out.output_alignment, 16);
    text += fmt::format(
        "__syncthreads();\nfor (int i = threadIdx.x; i < {}; i += {}) ((uint4*)({} + (i64)blockIdx.x * "
        "{}))[i] = "
        "((const uint4*)all)[i];\n",
        bytes / 16, s.threads, to, bytes);
  }
  // Registers for 1280 threads a multiprocessor: loads of one block run beside the sums of others.
  const auto threads = static_cast<unsigned>(s.threads);
  note_norm_work(l, norm,
                 l.run(l.kernel(fmt::format("norm_{}", norm), text, node.shape[1], threads,
                                std::max(1u, 1280 / threads))));
  return norm;
}

}  // namespace upweave::cuda
