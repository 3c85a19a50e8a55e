#include "engine/cuda/schedule/tile_text.h"

#include "engine/cuda/code.h"
#include "graph/operation.h"

namespace upweave::cuda {

// "v3(a, At{{n, c, h, w, 0}})" for coordinates n, c, d, h, w of a value with `spatial` axes.
std::string input_value(const Lowering& l, Id id, Mapped mapped) {
  const Shape& shape = l.graph[id].shape;
  const size_t spatial = spatial_rank(shape);
  const char* axes[] = {"d", mapped == Mapped::kNo ? "h" : "d", "w"};
  std::string at = fmt::format("const At i = At{{{{{}, c", mapped == Mapped::kInput ? "h" : "n");
  for (size_t a = 0; a < 3; ++a) at += fmt::format(", {}", a < spatial ? axes[3 - spatial + a] : "0");
  return fmt::format("[&](int n, int c, int d, int h, int w) {{ {}}}}}; return {}; }}", at,
                     l.source.operand(id, shape, "i"));
}

std::string start_text(const std::string& g, bool fma) {
  return fmt::format(
      "  typedef {} G;\n  constexpr bool fma = {};\n"
      "  const Scale& sx = *(const Scale*)(a.ws + G::kScale);\n"
      "  const Scale& sw = *(const Scale*)(a.packed + G::kWeightScale);\n"
      "  if ({}(sx.other_path | sw.other_path)) return;\n  extern __shared__ u8 raw[];\n"
      "  const int lane = threadIdx.x % 32, t = lane % 4, column0 = blockIdx.y * G::kN + 2 * t;\n"
      "  int columns_of = -1; (void)columns_of;\n"
      "  float* scratch = (float*)raw + threadIdx.x / 128 * 4 * G::kN * 3; (void)scratch;\n",
      g, fma, fma ? "!" : "");
}

std::string fma_operands(const Lowering& l, const Fusion& fusion) {
  const Node& conv = l.graph[fusion.conv];
  return fmt::format(
      "  const int partition = 0; (void)partition;\n  const float down = 1.f;\n  auto xv = {};\n  auto wv = "
      "{};\n",
      input_value(l, conv.in[0]), input_value(l, conv.in[1]));
}

std::string tensor_start() {
  return "  const float down = sx.down * sw.down;\n"
         "  const u32 shared = (shared_address(raw) + 1023) & ~1023u;\n";
}

std::string rows_text(const char* tile) {
  return fmt::format(
      "  Row rows[G::kSubtiles][2];\n#pragma unroll\n  for (int p = 0; p < G::kSubtiles; ++p)\n#pragma "
      "unroll\n"
      "    for (int r = 0; r < 2; ++r)\n"
      "      rows[p][r] = row_of<G>({}, threadIdx.x / 128 * G::kSubtiles + p, threadIdx.x / 32 % 4 * 16 + "
      "lane / 4 + 8 * r);\n",
      tile);
}

std::string ring_products(const Convolution& conv, const RowSegments& segments, bool completes_sums,
                          const std::string& g) {
  std::string text = fmt::format(
      "DEVICE void products(float (&sum)[{0}::kSums][{0}::kNr], Pipe<{0}>& pipe, int phase) {{\n"
      "  switch (phase) {{\n",
      g);
  for (size_t c = 0; c + 1 < conv.phase_begin.size(); ++c) {
    text += fmt::format("    case {}:\n", c);
    if (conv.phase_begin[c] == conv.phase_begin[c + 1]) {
      // No tap reaches these outputs. Zeros that the compiler does not know: it would move them between other
      // phases' products, and have those wait for one another.
      text += "      for (auto& s : sum) for (float& x : s) { x = 0.f; asm volatile(\"\" : \"+f\"(x)); }\n";
    }
    for (int group = conv.phase_begin[c]; group < conv.phase_begin[c + 1]; ++group) {
      const int from = conv.group_begin[group], to = conv.group_begin[group + 1];
      text += code("      group_products<$g, $count>(sum, pipe, $group, {$offsets}, $first, $last);\n",
                   {{"g", g},
                    {"count", to - from},
                    {"group", group},
                    {"offsets", fmt::format("{}", fmt::join(byte_offsets(conv, segments, from, to), ", "))},
                    {"first", group == conv.phase_begin[c]},
                    {"last", group + 1 == conv.phase_begin[c + 1]}});
      if (completes_sums) text += "      hold(sum);\n";
    }
    text += "      break;\n";
  }
  return text + "  }\n}\n";
}

std::string group_loop(const Fusion& fusion, const std::string& count, const std::string& group) {
  return fmt::format(
      "#pragma unroll 1\n  for (int k = 0; k < {}; ++k) {{\n    const int group = {};\n"
      "    float sum[{}][G::kSums][G::kNr];\n",
      count, group, fusion.store_phases);
}

static std::string phase_loop(const Fusion& fusion, const std::string& body) {
  return fmt::format("#pragma unroll\n    for (int ph = 0; ph < {}; ++ph) {{\n{}    }}\n",
                     fusion.store_phases, body);
}

std::string fma_sums(const Fusion& fusion, const std::string& g) {
  return phase_loop(
      fusion, fmt::format("      products_fma<G>(sum[ph], group * {0} + ph, {1}_phase_begin, {1}_groups, "
                          "(const int(*)[3]){1}_taps, (const int(*)[3]){1}_deltas, rows, xv, wv);\n",
                          fusion.store_phases, g));
}

std::string ring_sums(const Fusion& fusion) {
  return "    pipe.refresh();\n" +
         phase_loop(fusion,
                    fmt::format("      products(sum[ph], pipe, group * {0} + ph);\n", fusion.store_phases));
}

std::string point_text(const Convolution& conv, const Fusion& fusion, const EpilogueText& e) {
  const auto& [d, h, w] = conv.axis;
  const std::string phases =
      fusion.store_phases > 1
          ? fmt::format("const int ed = group / {0}, eh = group % {0}, ew = 0;", h.phases)
          : fmt::format("const int ed = group / {0}, eh = group / {1} % {2}, ew = group % {1};",
                        h.phases * w.phases, w.phases, h.phases);
  return fmt::format(
      "    {}\n{}#pragma unroll\n    for (int s = 0; s < G::kSums; ++s)\n#pragma unroll\n"
      "      for (int r = 0; r < 2; ++r) {{\n        const int v = s / G::kSubtiles, p = s % G::kSubtiles;\n"
      "        const Row& row = rows[p][r];\n"
      "        const int ud = v / (G::kOnceH * G::kOnceW), uh = v / G::kOnceW % G::kOnceH, uw = v % "
      "G::kOnceW;\n{}      }}\n  }}\n",
      phases, e.sums, e.point);
}

std::string window_text(const EpilogueText& e) {
  if (e.window.empty()) return "";
  return fmt::format(
      "#pragma unroll\n  for (int p = 0; p < G::kSubtiles; ++p)\n#pragma unroll\n"
      "    for (int r = 0; r < 2; ++r) {{\n      const Row& row = rows[p][r];\n{}    }}\n",
      e.window);
}

std::string finish_text(const EpilogueText& e) {
  return e.finish.empty() ? "  }\n" : "  __syncthreads();\n" + e.finish + "  __syncthreads();\n  }\n";
}

std::string fma_text(const Lowering& l, const Fusion& fusion, const Convolution& conv, const EpilogueText& e,
                     const std::string& g) {
  return start_text(g, true) + fma_operands(l, fusion) +
         "  for (int tile = blockIdx.x; tile < G::kTiles; tile += gridDim.x) {\n" + rows_text("tile") +
         e.state + e.pool + group_loop(fusion, fmt::format("{}", conv.phase_groups()), "k") +
         fma_sums(fusion, g) + point_text(conv, fusion, e) + window_text(e) + finish_text(e);
}

}  // namespace upweave::cuda
