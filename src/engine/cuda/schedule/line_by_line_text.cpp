#include "engine/cuda/code.h"
#include "engine/cuda/lower.h"
#include "engine/cuda/schedule/line_by_line.h"
#include "engine/cuda/schedule/tile_text.h"

// The text of a convolution's kernel whose tiles go by line.
namespace upweave::cuda {
namespace {

// Computed when they are needed, not ahead: products leave no registers for them.
constexpr const char* kRows =
    "  int here = tile; asm volatile(\"\" : \"+r\"(here));\n  Row rows[G::kSubtiles][2];\n#pragma unroll\n"
    "  for (int r = 0; r < 2; ++r) rows[0][r] = row_of<G>(here, threadIdx.x / 128, threadIdx.x / 32 % 4 * "
    "16 + lane / 4 + 8 * r);\n";

// One class of outputs after the other; `products` fills sum[0].
std::string phases_text(const LineByLine& t, const EpilogueText& e, const std::string& products,
                        const std::string& rows) {
  const std::string point = fmt::format(
      "      const int p = 0, ud = 0, uh = 0, uw = s; (void)p; const Row& row = rows[p][r];\n{}", e.point);
  const std::string window =
      e.window.empty() ? "" : "    const int p = 0; const Row& row = rows[p][r];\n" + e.window;
  std::string before, behind, points;
  const std::string row =
      e.row.empty()
          ? fmt::format("#pragma unroll\n    for (int s = 0; s < G::kSums; ++s) {{\n{}    }}\n", point)
          : e.row;
  // Where the pool's values are in memory, one row after the other goes to its end: registers for one.
  points = fmt::format("#pragma unroll\n    for (int r = 0; r < 2; ++r) {{\n{}{}{}    }}\n",
                       t.pool_in_memory ? e.pool : "", row, t.pool_in_memory ? window : "");
  if (!t.pool_in_memory) {
    before = e.pool;
    if (!window.empty())
      behind = fmt::format("  {{\n{}#pragma unroll\n  for (int r = 0; r < 2; ++r) {{\n{}  }}\n  }}\n", rows,
                           window);
  }
  return code(
      "$before#pragma unroll 1\n  for (int group = 0; group < $phases; ++group) {\n"
      "    const int ed = group, eh = 0, ew = 0; (void)eh;\n    float sum[1][G::kSums][G::kNr];\n"
      "$products$$rows$$sums$$points  }\n$behind",
      {{"before", before},
       {"phases", t.conv.phases.size()},
       {"products", products},
       {"rows", rows},
       {"sums", e.sums},
       {"points", points},
       {"behind", behind}});
}

}  // namespace

EpilogueForm LineByLine::epilogue_form() const {
  EpilogueForm form;
  form.parts_by_block = form.height_is_sample = true;
  form.pool_in_memory = pool_in_memory;
  return form;
}

TileConstants LineByLine::constants() const {
  TileConstants c;
  c.by_line = true;
  c.segments = static_cast<int>(segments.list.size()), c.segment_rows = segments.rows;
  c.buffers = kBuffers, c.stages = stages;
  return c;
}

std::string LineByLine::own_constants(const Prepared& p) const {
  if (!divided) return "";
  ConstantsText t;
  t.put("kPooledLines", divided->lines), t.put("kPooledWidth", divided->width);
  t.put("kOwnLines", divided->own_lines), t.put("kRestSamples", divided->samples);
  t.put_long("kRest", p.copy);
  return t.text;
}

std::string LineByLine::own_tables(const std::string& g) const {
  std::vector<int> last;
  for (const LineLaunch& launch : parts) {
    for (size_t wave = 0; wave < launch.last_waves(); ++wave) {
      for (const auto& mine : launch.last_tiles) last.push_back(wave < mine.size() ? mine[wave] : tiles);
    }
  }
  // Every line's taps and positions have the same offsets.
  return table(g + "_shifts", "int", line_shift) + table(g + "_order", "int", line_order) +
         table(g + "_last", "int", last) +
         table(g + "_offsets", "int", byte_offsets(conv, segments, 0, conv.group_begin[1]));
}

KernelForm LineByLine::kernel_form() const {
  return {
      launched, true, ", const __grid_constant__ LineLaunch launch",
      parts.size() > 1 ? "if (launch.number == 0) { await_previous(); admit_next(); }" : "await_previous();"};
}

std::vector<int> LineByLine::launch_numbers(size_t which) const {
  size_t lists = 0;
  for (size_t i = 0; i < which; ++i) lists += parts[i].last_waves() * launched;
  const LineLaunch& launch = parts[which];
  return {static_cast<int>(which), launch.first, launch.plain_waves,
          launch.plain_waves + static_cast<int>(launch.last_waves()), static_cast<int>(lists)};
}

std::vector<Launch> LineByLine::launches(const Launch& one, const Work& work, const Prepared&) const {
  std::vector<Launch> result;
  for (size_t i = 0; i < parts.size(); ++i) {
    Launch& launch = result.emplace_back(one);
    launch.numbers = launch_numbers(i);
    launch.work.add(work, static_cast<double>(parts[i].end - parts[i].first) / tiles);
  }
  return result;
}

std::string LineByLine::kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                                    const std::string& g, bool fma) const {
  std::string s = fmt::format(
      "  typedef {0} G;\n  constexpr bool fma = {1};\n"
      "  const Scale& sx = *(const Scale*)(a.ws + G::kScale);\n"
      "  const Scale& sw = *(const Scale*)(a.packed + G::kWeightScale);\n"
      "  if ({2}(sx.other_path | sw.other_path)) {{ await_previous(); return; }}\n  extern __shared__ u8 "
      "raw[];\n"
      "  const int lane = threadIdx.x % 32, t = lane % 4, column0 = blockIdx.y * G::kN + 2 * t, partition = "
      "0; "
      "(void)partition;\n  const bool more = {3}; (void)more;\n",
      g, fma, fma ? "!" : "", fma ? "false" : "launch.number > 0");
  if (fma) {
    const Node& node = l.graph[fusion.conv];
    s += fmt::format(
        "  float* scratch = (float*)raw + threadIdx.x / 128 * 4 * G::kN * 3; (void)scratch;\n"
        "  const float down = 1.f;\n  auto xv = {};\n  auto wv = {};\n",
        input_value(l, node.in[0], Mapped::kInput), input_value(l, node.in[1], Mapped::kKernel));
    const std::string products = fmt::format(
        "    products_fma<G>(sum[0], group, {0}_phase_begin, {0}_groups, (const int(*)[3]){0}_taps, (const "
        "int(*)[3]){0}_deltas, rows, xv, wv);\n",
        g);
    return s + e.state +
           "#pragma unroll 1\n  for (int tile = blockIdx.x; tile < G::kTiles; tile += gridDim.x) {\n" +
           kRows + phases_text(*this, e, products, "") + "  }\n" + e.finish;
  }
  // A second launch stores over what the first reads; its first products need not wait for that.
  const std::string waits =
      parts.size() > 1 ? "  if (more && wave == 0 && group == 0) await_previous();\n" : "";
  const std::string lines =
      fmt::format("sum[0], tile, {0}_phase_begin[group], {0}_phase_begin[group + 1], {0}_shifts", g);
  const std::string products =
      conv.exact()
          ? fmt::format("    pipe.split_products({}, {}_offsets, G::kInputLo ? sx.lo : 1.f, sw.lo);\n", lines,
                        g)
          : fmt::format("    pipe.products<{}>({}, {{{}}});\n", conv.group_begin[1], lines,
                        fmt::join(byte_offsets(conv, segments, 0, conv.group_begin[1]), ", "));
  s += fmt::format(
      "  const u32 shared = (shared_address(raw) + 1023) & ~1023u;\n  LineStream<G>::start(shared);\n"
      "  if (threadIdx.x >= G::kThreads) {{\n    give_registers<24>();\n"
      "    if (threadIdx.x == G::kThreads) LineStream<G>::produce(a, shared, launch, {0}_segments, "
      "{0}_shifts, "
      "{0}_order, {0}_last);\n  }} else {{\n  take_registers<240>();\n"
      "  const float down = sx.down * sw.down; (void)down;\n"
      "  float* scratch = (float*)(raw + (shared - shared_address(raw)) + LineStream<G>::kScratchAt) + "
      "threadIdx.x / 128 * 4 * G::kN * 3; (void)scratch;\n{1}  LineStream<G> pipe;\n  pipe.begin(shared);\n"
      "#pragma unroll 1\n"
      "  for (int wave = 0, tile; (tile = line_tile<G>(wave, launch, {0}_order, {0}_last)) < G::kTiles; "
      "++wave) "
      "{{\n",
      g, e.state);
  return s + phases_text(*this, e, products + waits, kRows) + "  }\n" +
         (waits.empty() ? "" : "  if (more) await_previous();\n") + e.finish + "  }\n";
}

}  // namespace upweave::cuda
