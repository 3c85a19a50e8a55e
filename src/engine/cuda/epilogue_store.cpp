#include <algorithm>

#include "base/dtype.h"
#include "engine/cuda/code.h"
#include "engine/cuda/epilogue_writer.h"
#include "graph/operation.h"

// What leaves the registers: pools, stores and reductions over space.
namespace upweave::cuda {

const char* pool_combine(const Node& node) {
  return is(node, Op::kAvgPool) ? "add2" : is(node, Op::kMaxPool) ? "max_nan" : "min_nan";
}

const char* reduction_start(const Node& node) {
  return is(node, Op::kMax) || is(node, Op::kSoftmaxStats) ? "-kInf" : is(node, Op::kMin) ? "kInf" : "0.f";
}

const char* reduction_combine(const Node& node) {
  return is(node, Op::kMax) ? "max_nan" : is(node, Op::kMin) ? "min_nan" : "add2";
}

std::string EpilogueWriter::flip(Id id) {
  const Node& node = l_.graph[id];
  if (is(node, Op::kAvgPool) || node.in[1] == kNone) return "";
  const std::string sign =
      fmt::format("{} < 0.f ? -1.f : 1.f", l_.source.operand(node.in[1], node.shape, "at"));
  if (one_a_column(node.in[1], node.shape)) return fmt::format("const float flip = {}; ", constant(sign));
  return fmt::format("const At at = at_of(0, i); (void)at; const float flip = {}; ", sign);
}

std::string EpilogueWriter::pool_start(Id id) const {
  const Node& node = l_.graph[id];
  return fmt::format(
      "float pool[G::kSubtiles][2][G::kN / 4];\n#pragma unroll\nfor (int p = 0; p < G::kSubtiles; ++p)\n"
      "#pragma unroll\nfor (int r = 0; r < 2; ++r)\n{}pool[p][r][i] = {};\n",
      kColumns,
      is(node, Op::kAvgPool)   ? "0.f"
      : is(node, Op::kMaxPool) ? "-kInf"
                               : "kInf");
}

std::string EpilogueWriter::pool_update(Id id) {
  const Node& node = l_.graph[id];
  const std::string sign = flip(id);
  return code("$phases$$columns{ $sign$pool[p][r][i] = $combine(pool[p][r][i], $flip$y$x[ph][i]); }\n",
              {{"phases", kEach},
               {"columns", kColumns},
               {"sign", sign},
               {"combine", pool_combine(node)},
               {"flip", sign.empty() ? "" : "flip * "},
               {"x", node.in[0]}});
}

std::string EpilogueWriter::pool_row(Id id) {
  const std::string sign = flip(id);
  return fmt::format(
      "{}{{ {}_Pragma(\"unroll\") for (int s = 0; s < G::kSums; ++s) pool[0][r][i] = {}(pool[0][r][i], "
      "{}sum[0][s][i / 2 * 4 + r * 2 + i % 2]); }}\n",
      kColumns, sign, pool_combine(l_.graph[id]), sign.empty() ? "" : "flip * ");
}

std::string EpilogueWriter::pool_result(Id id) {
  const Node& node = l_.graph[id];
  const auto& [d, h, w] = conv_.axis;
  const std::string sign = flip(id);
  std::string scale = sign.empty() ? "" : " * flip";
  if (is(node, Op::kAvgPool)) scale = fmt::format(" * {}", number(1.0 / (d.window * h.window * w.window)));
  if (pools_sums(id)) scale += " * down";
  if (!form_.pool_in_memory) {
    return fmt::format("float y{0}[1][G::kN / 4];\n{1}{{ {2}y{0}[0][i] = pool[p][r][i]{3}; }}\n", id,
                       kColumns, sign, scale);
  }
  // What the phases before left is where the result will be; the last one takes the scale or the sign.
  return code(
      "if (ok && group > 0) { $base$$columns{ $exists$pool[p][r][i] = $combine(pool[p][r][i], "
      "load<$type>($to, "
      "$at)); } }\n"
      "if (group == $last) { $columns{ $sign$pool[p][r][i] = pool[p][r][i]$scale; } }\nfloat y$id[1][G::kN / "
      "4];\n"
      "$columns$y$id[0][i] = pool[p][r][i];\n",
      {{"id", id},
       {"base", store_base(id)},
       {"columns", kColumns},
       {"exists", column_exists()},
       {"combine", pool_combine(node)},
       {"type", l_.source.type(id)},
       {"to", store_to(id)},
       {"at", store_at(id)},
       {"sign", sign},
       {"last", conv_.phases.size() - 1},
       {"scale", scale}});
}

int64_t EpilogueWriter::voxels_of(Id id) const {
  const Shape& shape = l_.graph[id].shape;
  return count(shape) / (shape[0] * shape[1]);
}

std::string EpilogueWriter::voxel_at(Id id) const {
  const Shape& shape = l_.graph[id].shape;
  const int64_t height = spatial_rank(shape) > 1 ? shape[shape.size() - 2] : 1;
  return fmt::format("((i64)od * {} + oh) * {} + ow0", height, shape.back());
}

std::string EpilogueWriter::store_base(Id id) const {
  if (divided(id)) {
    return fmt::format(
        "u8* const home = divided_at<G>(a, n, blockIdx.y * (G::kN / 16), oh) + (ow0 * 16 + 2 * t) * 4;\n"
        "const int step = own_line<G>(oh) ? {} : {};\n",
        voxels_of(id) * 8, l_.graph[id].shape.back() * 16);
  }
  if (blocked(id)) {
    return fmt::format(
        "const i64 base = (((i64)n * {0} + blockIdx.y * (G::kN / 16)) * {1}ll + {2}) * 16 + 2 * t;\n",
        conv_.c_out / 16, voxels_of(id), voxel_at(id));
  }
  return fmt::format("const i64 base = ((i64)n * {} + column0) * {}ll + {};\n", conv_.c_out, voxels_of(id),
                     voxel_at(id));
}

std::string EpilogueWriter::store_to(Id id) const { return divided(id) ? "home" : l_.source.address(id); }

std::string EpilogueWriter::store_at(Id id) const {
  if (divided(id)) return "i / 4 * step + i / 2 % 2 * 8 + i % 2";
  if (blocked(id)) return fmt::format("base + i / 4 * {}ll + i / 2 % 2 * 8 + i % 2", voxels_of(id) * 16);
  return fmt::format("base + (8 * (i / 2) + i % 2) * {}ll", voxels_of(id));
}

bool EpilogueWriter::pairs_rows(Id id) const {
  return f_.behind_pool[id] && !f_.scalar[id] && form_.row_pairs && !padded_ &&
         l_.source.places[id].element && l_.options.dtype != Dtype::kF32 &&
         l_.graph[id].shape.back() % 2 == 0;
}

std::string EpilogueWriter::column_exists() const {
  return padded_ ? fmt::format("if ({} < {}) ", raw_column(), conv_.c_out) : "";
}

std::string EpilogueWriter::store(Id id) {
  const int64_t width = l_.graph[id].shape.back();
  const std::string type = l_.source.type(id), to = store_to(id);
  const int ph = phases(id);
  const int together = f_.scalar[id] ? 1 : pairs_rows(id) ? 2 : width % ph == 0 ? ph : 1;
  if (together > 1 && l_.source.places[id].kind == Location::Kind::kOutput) {
    const auto bytes =
        static_cast<int>(size_of(l_.source.places[id].element ? l_.options.dtype : Dtype::kF32)) * together;
    l_.out.output_alignment = std::max(l_.out.output_alignment, bytes);
  }
  if (f_.scalar[id]) {
    return code(
        "if (ok && t == 0) {\n"
        "$phases$if (ph == 0 || ow0 + ph < $width) store<$type>($to, (i64)n * $voxels + $voxel + ph, "
        "y$id[ph]); }\n",
        {{"phases", kEach},
         {"width", width},
         {"type", type},
         {"to", to},
         {"voxels", voxels_of(id)},
         {"voxel", voxel_at(id)},
         {"id", id}});
  }
  const std::string check = column_exists(), base = store_base(id), at = store_at(id);
  if (blocked(id)) {
    return fmt::format(
        "if (ok) {{ {0}_Pragma(\"unroll\") for (int i = 0; i < G::kN / 4; i += 2) *(float2*)((float*){1} + "
        "{2}) = make_float2(y{3}[0][i], y{3}[0][i + 1]); }}\n",
        base, to, at, id);
  }
  if (form_.staged) return staged_store(id);
  if (ph > 1 && width % ph == 0) {  // all phases at once: whole sectors
    return code(
        "if (ok) { $base$$columns$$exists{ float row[PH]; $phases$row[ph] = $y; store_row<$type>($to, $at, "
        "row); } }\n",
        {{"base", base},
         {"columns", kColumns},
         {"exists", check},
         {"phases", kEach},
         {"y", element(id)},
         {"type", type},
         {"to", to},
         {"at", at}});
  }
  if (pairs_rows(id)) {
    return code(
        "{ $base$const i64 pair = base + (lane & 4 ? $voxels$ll - 1 : 0);\n_Pragma(\"unroll\") for (int i = "
        "0; i < "
        "G::kN / 4; i += 2) {\nconst u32 both = pair_rows<$type>(y$id[0][i], y$id[0][i + 1]);\n"
        "if (ok) *(u32*)(($type*)$to + pair + 4 * i * $voxels$ll) = both; } }\n",
        {{"base", base}, {"voxels", voxels_of(id)}, {"type", type}, {"id", id}, {"to", to}});
  }
  const std::string each = fmt::format("store<{}>({}, {} + ph, {});", type, to, at, element(id)),
                    real = fmt::format("if (ph == 0 || ow0 + ph < {}) ", width);
  if (lazy())  // column by column
    return code("if (ok) { $base$$columns$$exists{\n$phases$$real$$store } }\n", {{"base", base},
                                                                                  {"columns", kColumns},
                                                                                  {"exists", check},
                                                                                  {"phases", kEach},
                                                                                  {"real", real},
                                                                                  {"store", each}});
  return code("if (ok) { $base$$phases$$real{\n$columns$$exists$$store } }\n", {{"base", base},
                                                                                {"phases", kEach},
                                                                                {"real", real},
                                                                                {"columns", kColumns},
                                                                                {"exists", check},
                                                                                {"store", each}});
}

std::string EpilogueWriter::staged_store(Id id) const {
  // 16 channels of a warp's 32 outputs by TMA, which leaves out what is beyond the line. What
  // it needs is the same in all lanes, for the compiler too.
  return fmt::format(
      "{{ const u32 staged = __shfl_sync(~0u, shared + DepthStream<G>::kStaged + threadIdx.x / 32 * "
      "G::kStaging, "
      "0);\n"
      "const int w0 = __shfl_sync(~0u, ow0, 0), h0 = __shfl_sync(~0u, oh, 0), d0 = __shfl_sync(~0u, od, "
      "0), n0 = __shfl_sync(~0u, ok ? n : -1, 0);\n#pragma unroll\n"
      "for (int part = 0; part < G::kN / 16; ++part) {{\nfloat rows[4][PH];\n#pragma unroll\n"
      "for (int k = 0; k < 4; ++k) {{ const int i = 4 * part + k;\n{0}rows[k][ph] = {1}; }}\n"
      "stage_free();\n#pragma unroll\n"
      "for (int k = 0; k < 4; ++k) stage(staged, 8 * (k / 2) + 2 * t + k % 2, rows[k]);\n"
      "stage_store(maps.output, staged, w0, h0, d0, n0 * {2} + 16 * part, n0 >= 0);\n}} }}\n",
      kEach, element(id), conv_.c_out);
}

std::string EpilogueWriter::reduction_state(Id id) const {
  const Node& node = l_.graph[id];
  const bool two = is(node, Op::kMoments) || is(node, Op::kSoftmaxStats);
  const char* start = reduction_start(node);
  return fmt::format(
             "float p{0}[G::kN / 4], q{0}[G::kN / 4], k{0} = 0.f;\n{1}{{ p{0}[i] = {2}; q{0}[i] = 0.f; }}\n",
             id, kColumns, start) +
         (two ? "" : fmt::format("(void)q{0}; (void)k{0};\n", id));
}

bool EpilogueWriter::moments_of_sums(Id id) const {
  return f_.reduction[id] && is(l_.graph[id], Op::kMoments) && l_.graph[id].in[0] == f_.conv;
}

std::string EpilogueWriter::moments_update(Id id) const {
  if (form_.parts_by_block) {
    return fmt::format(
        "{{ bool real[G::kSums][2];\n#pragma unroll\nfor (int s = 0; s < G::kSums; ++s)\n#pragma unroll\n"
        "for (int r = 0; r < 2; ++r) {{\nconst Row& row = rows[0][r]; const int ud = 0, uh = 0, uw = s;\n"
        "{}real[s][r] = ok; }}\nw{}.update(sum[0], real, scratch); }}\n",
        coordinates(false), id);
  }
  return code(
      "{ float weight[$count][G::kSums][2];\n#pragma unroll\nfor (int s = 0; s < G::kSums; ++s)\n"
      "#pragma unroll\nfor (int r = 0; r < 2; ++r) {\n"
      "const int v = s / G::kSubtiles; const Row& row = rows[s % G::kSubtiles][r];\n"
      "const int ud = v / (G::kOnceH * G::kOnceW), uh = v / G::kOnceW % G::kOnceH, uw = v % G::kOnceW;\n"
      "$at$$phases{ const bool real = ok && ow0 + ph < $width; weight[ph][s][r] = real ? 1.f : 0.f;\n"
      "if (!real) { $columns$$sum = 0.f; } } }\nw$id.update(sum, weight); }\n",
      {{"count", f_.store_phases},
       {"at", coordinates(false)},
       {"phases", kEach},
       {"width", l_.graph[f_.conv].shape.back()},
       {"columns", kColumns},
       {"sum", sum()},
       {"id", id}});
}

std::string EpilogueWriter::reduction_update(Id id) const {
  const Node& node = l_.graph[id];
  const Id in = node.in[0];
  const std::string x = element(in);
  const std::string p = fmt::format("p{}[i]", id), q = fmt::format("q{}[i]", id);
  const int64_t width = l_.graph[in].shape.back();
  std::string text;
  if (is(node, Op::kMoments)) {  // Welford's update: mean += (x - mean)/k, M2 += (x - old mean)(x - new mean)
    text = code(
        "k$id += 1.f; const float z = 1.f / k$id;\n"
        "$columns{ const float e = $x - $mean; $mean = fmaf(e, z, $mean); $squares = fmaf(e, $x - $mean, "
        "$squares); }",
        {{"id", id}, {"columns", kColumns}, {"x", x}, {"mean", p}, {"squares", q}});
  } else if (is(node, Op::kSoftmaxStats)) {
    text = fmt::format(
        "{0}{{ const float m = max_nan({1}, {2}); {3} = ({1} == m ? {3} : {3} * f_exp({1} - m)) + "
        "f_exp({2} - m); {1} = m; }}",
        kColumns, p, x, q);
  } else {
    const char* combine = reduction_combine(node);
    // All four outputs of a thread are there or none: joined first, they are a fourth of the terms in a row.
    if (form_.windows > 1 && width % 4 == 0) {
      auto y = [&](const char* a, const char* b) {
        return fmt::format("{0}(y({1}), y({2}))", combine, a, b);
      };
      return code(
          "if (ok) { $columns{ auto y = [&](int ph) { return $x; }; $state = $combine($state, "
          "$combine($left, "
          "$right)); } }\n",
          {{"columns", kColumns},
           {"x", x},
           {"state", p},
           {"combine", combine},
           {"left", y("0", "1")},
           {"right", y("2", "3")}});
    }
    text = fmt::format("{0}{1} = {2}({1}, {3});", kColumns, p, combine, x);
  }
  return fmt::format("{}if (ok && ow0 + ph < {}) {{ {} }}\n", kEach, width, text);
}

std::string EpilogueWriter::reduction_flush(Id id) {
  const Node& node = l_.graph[id];
  const int64_t at = partials_.at(id);
  const char* kind = is(node, Op::kMoments)        ? "CombineMoments"
                     : is(node, Op::kSoftmaxStats) ? "CombineExp"
                     : is(node, Op::kMax)          ? "CombineMax"
                     : is(node, Op::kMin)          ? "CombineMin"
                                                   : "CombineSum";
  if (form_.parts_by_sample) {
    // Slots of the sample that no block has are nobody's: its first block says so.
    return code(
        "flush<G, $kind>(p$id, q$id, k$id, scratch, sample_part($at$ll, block - first_block));\n"
        "if (block == first_block) for (int s = used; s < slots; ++s) no_part<G, $kind>(sample_part($at$ll, "
        "s));\n$columns$p$id[i] = $start;\n",
        {{"id", id}, {"kind", kind}, {"at", at}, {"columns", kColumns}, {"start", reduction_start(node)}});
  }
  const char* tile =
      form_.parts_by_block ? "blockIdx.x" : "tile";  // a block's tiles may have one part together
  if (moments_of_sums(id)) {
    return fmt::format(
        "w{0}.flush(scratch, partial<G>(a.ws + {1}ll, {2}, partition){3});\n"
        "if (fma) for (int o = 1; o < G::kPartitions; ++o) no_part<G, CombineMoments>(partial<G>(a.ws + "
        "{1}ll, "
        "{2}, o));\n",
        id, at, tile, form_.parts_by_block ? ", more" : "");
  }
  return fmt::format(
      "flush<G, {1}>(p{0}, q{0}, k{0}, scratch, partial<G>(a.ws + {2}ll, {3}, partition));\n"
      "if (fma) for (int o = 1; o < G::kPartitions; ++o) no_part<G, {1}>(partial<G>(a.ws + {2}ll, {3}, "
      "o));\n",
      id, kind, at, tile);
}

}  // namespace upweave::cuda
