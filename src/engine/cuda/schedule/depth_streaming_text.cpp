#include <algorithm>

#include "engine/cuda/code.h"
#include "engine/cuda/lower.h"
#include "engine/cuda/schedule/depth_streaming.h"
#include "engine/cuda/schedule/tile_text.h"

// The text of a convolution's kernel that streams through the depth.
namespace upweave::cuda {
namespace {

// One tap's product: which sums, where its rows and its columns are.
struct Product {
  int phase = 0;  // of the width; 2: both
  int plane = 0, view = 0, place = 0, weights = 0;
};

// The products of a group of phases: those of both width phases, then the others. `slab` is the group's first
// among its part's.
struct Products {
  std::vector<Product> shared, alone;

  Products(const DepthStreaming& t, const DepthStreaming::ColumnPart& part, int group, int weights) {
    const int first = t.conv.group_begin[t.conv.phase_begin[2 * group]],
              middle = t.conv.group_begin[t.conv.phase_begin[2 * group + 1]],
              end = t.conv.group_begin[t.conv.phase_begin[2 * group + 2]];
    for (int i = first; i < end; ++i) {
      const bool both = i - first < 2 * t.shared_taps[group];
      if (both && (i - first) % 2 == 1) continue;
      const Step& step = t.conv.steps[t.order[i]];
      const auto& [d, h, w] = step.delta[0];
      Product p;
      p.phase = both ? 2 : t.order[i] >= middle;
      p.view = w & 1;
      p.plane = d - part.depth;
      const DepthStreaming::PairView& v = t.views[p.view];
      p.place = ((h - part.line) * 2 * v.pairs + (w - v.first) / 2) * t.conv.row_bytes() +
                step.block * t.part_bytes;
      p.weights = (weights + i - first) * t.conv.n * t.conv.row_bytes();
      (both ? shared : alone).push_back(p);
    }
  }
};

// Instructions of 16 terms, one width phase's and the other's in turn: those of one wait for one another.
// `halves`: rows' and columns' bytes from hi to what is multiplied, for each product of a term.
std::string instructions(const DepthStreaming& t, const std::vector<Product>& products, const char* sums,
                         bool add, const std::vector<std::array<int, 2>>& halves) {
  std::vector<std::string> of[2];
  bool begun[3] = {add, add, add};
  for (const Product& x : products) {
    for (const auto& [rows, columns] : halves) {
      for (int k = 0; k < t.conv.ck / 16; ++k) {
        of[x.phase == 1].push_back(code(
            "      at.multiply<$columns>($sums, $plane, $view, $place, $weights, $add);\n",
            {{"columns", x.phase == 2 ? 2 * t.conv.n : t.conv.n},
             {"sums", x.phase == 2 ? fmt::format("both({})", sums) : fmt::format("{}[{}][0]", sums, x.phase)},
             {"plane", x.plane},
             {"view", x.view},
             {"place", x.place + rows + k * 32},
             {"weights", x.weights + columns + k * 32},
             {"add", begun[x.phase]}}));
        begun[x.phase] = true;
      }
    }
  }
  std::string text;
  for (size_t i = 0; i < std::max(of[0].size(), of[1].size()); ++i) {
    for (const auto& list : of) {
      if (i < list.size()) text += list[i];
    }
  }
  return text;
}

// One product a term.
std::string whole_products(const DepthStreaming& t, const Products& p) {
  std::vector<Product> all;
  bool any[2] = {};
  for (Product x : p.shared) {
    x.phase = 0;
    all.push_back(x);
    x.phase = 1;
    x.weights += t.conv.n * t.conv.row_bytes();
    all.push_back(x);
  }
  all.insert(all.end(), p.alone.begin(), p.alone.end());
  for (const Product& x : all) any[x.phase] = true;
  std::string after;
  for (int ph = 0; ph < 2; ++ph) {
    after += any[ph] ? fmt::format("      hold(sum[{}]);\n", ph)
                     : fmt::format("      for (float& x : sum[{}][0]) x = 0.f;\n", ph);
  }
  return "      const DepthStream<G>& at = pipe;\n      wgmma_fence();\n" +
         instructions(t, all, "sum", false, {{0, 0}}) +
         "      wgmma_commit();\n      pipe.order_arrive(last);\n      wgmma_wait();\n" + after;
}

// hi*lo + lo*hi + hi*hi, the small ones first: one chain where lo has hi's scale, otherwise with the sums
// brought to the next product's scale in between. Products of twice the columns have sums of their own: on
// the same registers as others the compiler would put them one after the other.
std::string split_products(const DepthStreaming& t, const Products& p) {
  using Halves = std::vector<std::array<int, 2>>;
  const std::array<int, 2> rows_lo{t.tile_half(), 0}, columns_lo{0, t.weight_shared() / 2}, none{0, 0};
  struct Sums {
    const char* name;
    const std::vector<Product>& products;
    bool has[2];
    std::string each(const std::string& before, const std::string& after) const {
      std::string s = "     ";
      for (int ph = 0; ph < 2; ++ph) {
        if (has[ph]) s += fmt::format(" {}{}[{}]{};", before, name, ph, after);
      }
      return s + "\n";
    }
  };
  bool alone[2] = {};
  for (const Product& x : p.alone) alone[x.phase] = true;
  std::vector<Sums> all;
  if (!p.shared.empty()) all.push_back({"sum", p.shared, {true, true}});
  if (!p.alone.empty()) all.push_back({"part", p.alone, {alone[0], alone[1]}});
  auto pass = [&](const Sums& sums, bool add, const Halves& halves) {
    return "      {\n      const DepthStream<G> at = pipe.afresh();\n" +
           instructions(t, sums.products, sums.name, add, halves) + "      }\n";
  };
  Halves mixed{columns_lo};
  if (t.conv.input_lo) mixed.insert(mixed.begin(), rows_lo);
  std::string text =
      "      float part[2][1][G::kNr]; (void)part;\n      if (scales.one) {\n      wgmma_fence();\n";
  for (const Sums& sums : all) text += pass(sums, false, mixed);
  for (const Sums& sums : all) text += pass(sums, true, {none});
  text += "      wgmma_commit();\n      pipe.order_arrive(last);\n      wgmma_wait();\n";
  for (const Sums& sums : all) text += sums.each("hold(", ")");
  text += "      } else {\n";
  const std::string done = "      wgmma_commit();\n      wgmma_wait();\n";
  for (const Sums& sums : all) {
    text += "      wgmma_fence();\n";
    if (t.conv.input_lo)
      text += pass(sums, false, {rows_lo}) + done + sums.each("hold(", ")") +
              sums.each("scale(", ", scales.to_columns)") + "      wgmma_fence();\n";
    text += pass(sums, t.conv.input_lo, {columns_lo}) + done + sums.each("hold(", ")") +
            sums.each("scale(", ", scales.to_whole)") + "      wgmma_fence();\n" + pass(sums, true, {none}) +
            done + sums.each("hold(", ")");
  }
  text += "      pipe.order_arrive(last);\n      }\n";
  for (int ph = 0; ph < 2; ++ph) {
    if (!p.shared.empty() && !alone[ph]) continue;
    text +=
        fmt::format("#pragma unroll\n      for (int i = 0; i < G::kNr; ++i) sum[{0}][0][i] {1} {2};\n", ph,
                    p.shared.empty() ? "=" : "+=", alone[ph] ? fmt::format("part[{}][0][i]", ph) : "0.f");
  }
  return text;
}

// What this block's part has, and those before it together, as operands.
template <class F>
std::string own(const DepthStreaming& t, F value) {
  return fmt::format("({})", by_part(each_part(t.parts, value)));
}
template <class F>
std::string before_own(const DepthStreaming& t, F value) {
  return fmt::format("({})", before_part(each_part(t.parts, value)));
}
using Column = DepthStreaming::ColumnPart;

// Which jobs are this block's, and the items they are made of: the subtiles of all jobs for each group of
// phases, those of one group together, so that whole lines are stored at a time.
std::string block_start(const DepthStreaming& t, const std::string& g, bool fma, const std::string& role) {
  return code(
      "  typedef $g G;\n  constexpr bool fma = $fma; (void)fma;\n"
      "  const Scale& sx = *(const Scale*)(a.ws + G::kScale);\n"
      "  const Scale& sw = *(const Scale*)(a.packed + G::kWeightScale);\n"
      "  if ($not(sx.other_path | sw.other_path)) return;\n  extern __shared__ u8 raw[];\n"
      "  const int lane = threadIdx.x % 32, t = lane % 4, column0 = 2 * t; (void)column0;\n"
      "  int columns_of = -1; (void)columns_of;\n"
      "$role  const Walk<G> walk = walk_of<G>(block, blocks, job0, jobs, $planes);\n"
      "  const int groups = $groups, each = groups * (G::kM / 64), items = walk.count * each;\n",
      {{"g", g},
       {"fma", fma},
       {"not", fma ? "!" : ""},
       {"role",
        role.empty()
            ? fmt::format(
                  "  const int partition = {}, block = blockIdx.x - {}, blocks = {}, job0 = 0, jobs = "
                  "G::kTiles; (void)partition;\n",
                  part_of_block(each_part(t.parts, &Column::blocks)), before_own(t, &Column::blocks),
                  own(t, &Column::blocks))
            : role},
       {"planes", own(t, &Column::planes)},
       {"groups", own(t, group_count)}});
}

// Where float32 products read, for data that fp16 cannot hold.
std::string fma_start(const Lowering& l, const Node& conv) {
  return fmt::format(
      "  const int warpgroup = threadIdx.x / 128;\n  const float down = 1.f;\n  auto xv = {};\n"
      "  auto wv = {};\n  float* scratch = (float*)raw + warpgroup * 4 * G::kN * 3; (void)scratch;\n",
      input_value(l, conv.in[0]), input_value(l, conv.in[1]));
}

// The last warpgroup is the producer of weights and planes; its registers go to the others.
std::string pipe_start(const DepthStreaming& t, const std::string& g) {
  const int all = t.warpgroups + 1,
            registers = (65536 / (all * 128) / 8 * 8 * all - 24) / t.warpgroups / 8 * 8;
  return code(
      "  const u32 shared = (shared_address(raw) + 1023) & ~1023u;\n  DepthStream<G>::start(shared);\n"
      "  if (threadIdx.x >= G::kThreads) {\n    give_registers<24>();\n"
      "    if (threadIdx.x == G::kThreads) DepthStream<G>::produce(a, maps, shared, walk, $depth, $line, "
      "(const "
      "int(*)[2])$g_step_runs + $before, $groups);\n    return;\n  }\n  take_registers<$registers>();\n"
      "  const float down = sx.down * sw.down; (void)down;\n  DepthStream<G> pipe;\n"
      "  pipe.begin(shared, walk);\n  const int warpgroup = pipe.warpgroup;\n"
      "  const LoScales scales{sx.lo == 1.f && sw.lo == 1.f, sw.lo / sx.lo, 1.f / sw.lo};\n"
      "  float* scratch = (float*)(raw + (shared - shared_address(raw)) + DepthStream<G>::kScratchAt) + "
      "warpgroup * 4 * G::kN * 3; (void)scratch;\n",
      {{"depth", own(t, &Column::depth)},
       {"line", own(t, &Column::line)},
       {"g", g},
       {"before", before_own(t, group_count)},
       {"groups", own(t, group_count)},
       {"registers", std::min(registers, 240)}});
}

// leave_samples(until): every warpgroup leaves a part of every sample that its block meets.
std::string samples_text(const DepthStreaming& t, const std::string& finish) {
  return fmt::format(
      "  int at_sample = walk.first / G::kSampleJobs;\n  auto leave_samples = [&](int until) {{\n"
      "    for (; at_sample < until; ++at_sample) {{\n"
      "      const int sample_job = at_sample * G::kSampleJobs, slots = {};\n"
      "      const int first_block = block_of_job(sample_job - job0, jobs, blocks), used = "
      "block_of_job(sample_job - job0 + G::kSampleJobs - 1, jobs, blocks) - first_block + 1;\n"
      "      auto sample_part = [&](i64 at, int slot) {{ return (float*)(a.ws + at) + (((i64)at_sample * "
      "G::kSampleSlots + {} + slot) * (G::kThreads / 128) + warpgroup) * (G::kN * 3); }};\n{}    }}\n"
      "  }};\n",
      own(t, &Column::slots), own(t, &Column::first_slot), finish);
}

// Where an item is: its job's tile, which subtile of it, which phases; before its sums.
std::string item_text(const DepthStreaming& t, const EpilogueText& e, const std::string& g) {
  const std::string place = "item % each / (G::kM / 64)";  // among the part's groups
  return fmt::format(
      "    const int k = item / each, job = walk.job(k), q = item % (G::kM / 64), tile = job_tile<G>(job);\n"
      "    const int group = {0};\n{1}    const int ed = group / {2}, eh = group % {2}, ew = 0; (void)ew;\n"
      "    float sum[2][1][G::kNr];\n",
      t.parts.size() == 1 ? place : fmt::format("{}_phases[{} + {}]", g, before_own(t, group_count), place),
      e.finish.empty() ? "" : "    leave_samples(job / G::kSampleJobs);\n", t.conv.axis[1].phases);
}

// The epilogue of an item's sums.
std::string item_epilogue(const EpilogueText& e) {
  return e.state +
         "    { const int ud = 0, uh = 0, uw = 0;\n"
         "    const Row row = row_of<G>(tile, q, threadIdx.x / 32 % 4 * 16 + lane / 4);\n" +
         e.point + "    }\n";
}

std::string fma_loop(const std::string& g, const std::string& item, const std::string& point) {
  return fmt::format(
      "#pragma unroll 1\n  for (int item = warpgroup; item < items; item += G::kThreads / 128) {{\n"
      "{0}    Row rows[1][2];\n#pragma unroll\n"
      "    for (int r = 0; r < 2; ++r) rows[0][r] = row_of<G>(tile, q, threadIdx.x / 32 % 4 * 16 + lane / "
      "4 + 8 * r);\n#pragma unroll\n"
      "    for (int ph = 0; ph < 2; ++ph) products_fma<G>(sum[ph], group * 2 + ph, {1}_phase_begin, "
      "{1}_groups, (const int(*)[3]){1}_taps, (const int(*)[3]){1}_deltas, rows, xv, wv);\n{2}  }}\n",
      item, g, point);
}

// Warpgroups that take a turn together go on while one of them has an item. One that has none leaves all
// planes before it waits for its turn: the other may need a place in the ring that it has not left yet.
std::string pipe_loop(const DepthStreaming& t, const std::string& g, const std::string& item,
                      const std::string& point) {
  const int together = t.warpgroups / t.ping_pong;
  const bool uneven = std::ranges::any_of(t.parts, [&](const Column& part) {
    return static_cast<int>(part.groups.size()) * (t.m / 64) % together != 0;
  });
  return fmt::format(
      "#pragma unroll 1\n"
      "  for (int wave = pipe.ping_pong * pipe.kTogether; wave < items; wave += G::kThreads / 128) {{\n"
      "    const int item = wave + warpgroup % pipe.kTogether;\n"
      "    const bool last = wave + pipe.kTogether >= items;\n"
      "    if (pipe.kTogether > 1 && item >= items) {{ {}pipe.order_wait(); pipe.order_arrive(last); "
      "pipe.together(); break; }}\n{}    pipe.enter(k, q);\n    pipe.order_wait();\n"
      "    products_{}(sum, pipe, group, last, scales);\n    pipe.together();\n"
      "    pipe.leave_for(k, (item + G::kThreads / 128) / each);\n{}  }}\n  pipe.finish();\n",
      uneven ? "pipe.finish(); " : "", item, g, point);
}

}  // namespace

std::string DepthStreaming::own_constants(const Prepared&) const {
  ConstantsText t;
  t.put("kPlanes", planes), t.put("kRun", run), t.put("kSideBySide", side_by_side);
  t.put("kTileLines", tile_lines), t.put("kLinesBefore", lines_before);
  t.put("kEvenPairs", views[0].pairs), t.put("kOddPairs", views[1].pairs), t.put("kOddAt", views[1].at);
  t.put("kSampleJobs", jobs_of_sample()), t.put("kSampleSlots", sample_slots());
  t.put("kPartBytes", part_bytes), t.put("kStaging", staging);
  t.put("kGroupsOfPhases", conv.phase_groups());
  return t.text;
}

std::string DepthStreaming::products_text(const std::string& g) const {
  // Groups of different parts often have the same text, for it counts from what the part has brought. Where
  // each term is three products it stands there once, since compilers take seconds for it; where one, kernels
  // became slower that way.
  const bool once = conv.input_lo && conv.weights_lo;
  std::vector<std::pair<std::string, std::string>> cases;  // text, labels
  for (const ColumnPart& part : parts) {
    int weights = 0;
    for (size_t i = 0; i < part.groups.size(); ++i) {
      const Products p(*this, part, part.groups[i], weights);
      weights += part.step_runs[i][1];
      const std::string text = conv.exact() ? split_products(*this, p) : whole_products(*this, p);
      auto same = std::ranges::find(cases, text, &std::pair<std::string, std::string>::first);
      if (!once || same == cases.end()) same = cases.insert(cases.end(), {text, ""});
      same->second += fmt::format("case {}: ", part.groups[i]);
    }
  }
  std::string body;
  for (const auto& [text, labels] : cases)
    body += fmt::format("    {}{{\n{}      break;\n    }}\n", labels, text);
  body = once && cases.size() == 1 ? "  {\n" + cases[0].first + "  }\n"
                                   : "  switch (group) {\n" + body + "  }\n";
  return fmt::format(
      "DEVICE void products_{0}(float (&sum)[2][1][{0}::kNr], const DepthStream<{0}>& pipe, int group, bool "
      "last, const LoScales& scales) {{\n  typedef {0} G;\n{1}}}\n",
      g, body);
}

std::string DepthStreaming::role_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                                      const std::string& g, bool fma, const std::string& role) const {
  const DepthStreaming& t = *this;
  const bool leaves = !e.finish.empty();  // parts of reductions over space
  std::string s = block_start(t, g, fma, role);
  s += fma ? fma_start(l, l.graph[fusion.conv]) : pipe_start(t, g);
  s += e.kept;
  if (leaves) s += samples_text(t, e.finish);
  s += fma ? fma_loop(g, item_text(t, e, g), item_epilogue(e))
           : pipe_loop(t, g, item_text(t, e, g), item_epilogue(e));
  if (leaves) s += "  leave_samples((walk.first + walk.count - 1) / G::kSampleJobs + 1);\n";
  return s;
}

}  // namespace upweave::cuda
