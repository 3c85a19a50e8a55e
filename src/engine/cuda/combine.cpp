#include "engine/cuda/code.h"
#include "engine/cuda/conv_kernels.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"

// Reductions over space, second half: what the tiles of a convolution left, combined.
namespace upweave::cuda {

// Partials are [tile and part of it][column][count or largest, mean, rest]. Which of them belong to a set:
// all tiles for a channel of the batch, a sample's tiles otherwise. Float64, in a fixed order.
std::vector<Launch> combine_reductions(Lowering& l, const ConvKernel& k) {
  const Fusion& f = k.fusion;
  const Convolution& conv = k.schedule->conv;
  std::vector<Launch> launches;
  const int64_t columns = int64_t{conv.n} * conv.column_blocks, all_tiles = k.schedule->partials(),
                tiles_per_sample = all_tiles / conv.batch;
  for (const Id id : f.nodes) {
    if (!f.reduction[id]) continue;
    const Node& node = l.graph[id];
    const Shape& in = l.graph[node.in[0]].shape;
    int64_t sets = in[0] * in[1], each = 1, tiles = tiles_per_sample;
    std::string first =
        fmt::format("const i64 tile0 = blockIdx.x / {0} * {1}ll; const int c0 = blockIdx.x % {0};", in[1],
                    tiles_per_sample);
    if (is(node, Op::kMoments)) {
      const NormSets norm = norm_sets(node, in);
      sets = norm.sets;
      if (norm.kind == NormSets::Kind::kBatch) {
        first = "const i64 tile0 = 0; const int c0 = blockIdx.x;";
        tiles = all_tiles;
      } else if (norm.kind == NormSets::Kind::kGroup) {
        each = norm.channels / norm.groups;
        first =
            fmt::format("const i64 tile0 = blockIdx.x / {0} * {1}ll; const int c0 = blockIdx.x % {0} * {2};",
                        norm.groups, tiles_per_sample, each);
      }
    }
    const std::string part = code(
        "$first constexpr i64 n = $count$ll; auto part = [&](i64 k, int w) { return ((const float*)(a.ws + "
        "$at$ll))[((tile0 + k / $each) * $columns + c0 + k % $each) * 3 + w]; };",
        {{"first", first},
         {"count", tiles * each},
         {"at", k.partials.at(id)},
         {"each", each},
         {"columns", columns}});
    const std::string out = l.source.address(id), type = l.source.type(id);
    std::string text;
    if (is(node, Op::kMoments)) {
      text = fmt::format(
          "const double size = block_reduce<Sum>(n, [&](i64 k) {{ return (double)part(k, 0); }}); const "
          "double mean = block_reduce<Sum>(n, [&](i64 k) "
          "{{ return (double)part(k, 0) * part(k, 1); }}) / size; const double m2 = block_reduce<Sum>(n, "
          "[&](i64 k) {{ const double e = part(k, 1) - mean; "
          "return part(k, 2) + part(k, 0) * e * e; }}); if (threadIdx.x == 0) {{ store<float>({0}, "
          "blockIdx.x, (float)(mean * down)); store<float>({0}, "
          "(i64)blockIdx.x + {1}, (float)(m2 / size * down * down)); }}",
          out, sets);
      text =
          (node.in[0] == f.conv
               ? fmt::format(
                     "const Scale& sx = *(const Scale*)(a.ws + {0}::kScale), &sw = *(const Scale*)(a.packed "
                     "+ {0}::kWeightScale); "
                     "const double down = sx.other_path | sw.other_path ? 1. : (double)sx.down * sw.down; ",
                     k.name())
               : "const double down = 1.; ") +
          text;
    } else if (is(node, Op::kSoftmaxStats)) {
      text = fmt::format(
          "const float top = block_reduce<Max>(n, [&](i64 k) {{ return part(k, 1); }}); const double s = "
          "block_reduce<Sum>(n, [&](i64 k) {{ return "
          "part(k, 2) == 0.f ? 0. : (double)part(k, 2) * exp((double)part(k, 1) - top); }}); if (threadIdx.x "
          "== 0) {{ store<float>({0}, blockIdx.x, top); "
          "store<float>({0}, (i64)blockIdx.x + {1}, (float)s); }}",
          out, sets);
    } else {
      const int64_t voxels = count(in) / (in[0] * in[1]);
      const char* kind = is(node, Op::kMax) ? "Max" : is(node, Op::kMin) ? "Min" : "Sum";
      text = fmt::format(
          "const auto s = block_reduce<{}>(n, [&](i64 k) {{ return part(k, 1); }}); if (threadIdx.x == 0) "
          "store<{}>({}, blockIdx.x, (float)(s{}));",
          kind, type, out, is(node, Op::kMean) ? fmt::format(" / {}.", voxels) : "");
    }
    launches.push_back(l.kernel(fmt::format("combine_{}_{}", id, k.index + 1), part + text, sets,
                                tiles * each > 1024 ? 512 : 128));
  }
  return launches;
}

}  // namespace upweave::cuda
