#include "engine/cuda/code.h"
#include "engine/cuda/epilogue_writer.h"
#include "engine/cuda/schedule/whole_lines.h"

// Whole lines: what leaves their tiles, windows of rows.
namespace upweave::cuda {

std::string EpilogueWriter::keep_row() const {
  return fmt::format(
      "const int place = (threadIdx.x / 128 * G::kSubtiles + p) * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4 "
      "+ "
      "8 * r;\n{}((float*)raw)[(8 * (i / 2) + 2 * t + i % 2) * {} + place] = pool[p][r][i];\n",
      kColumns, form_.lines->combined_pitch());
}

std::string EpilogueWriter::put_windows(const std::string& value) const {
  const Node& pool = l_.graph[f_.pool];
  const Node& node = l_.graph[f_.last];
  const auto& [d, h, w] = conv_.axis;
  const size_t spatial = spatial_rank(node.shape);
  const std::string places[] = {fmt::format("first.jd / {}", form_.lines->window[0]),
                                fmt::format("first.jh / {} + line", form_.lines->window[1]), "window"};
  std::vector<std::string> exists;
  std::string place, inside, x = value;
  for (size_t a = 0; a < 3; ++a) {
    const std::string at = a < spatial ? places[3 - spatial + a] : "0";
    place += ", " + at;
    inside += a < spatial ? fmt::format(", min({}, {})", at, node.shape[a + 2] - 1) : ", 0";
    if (a < spatial) exists.push_back(fmt::format("at.x[{}] < {}", a + 2, node.shape[a + 2]));
    if (a >= spatial)
      exists.push_back(places[a - spatial] + " < 1");  // an axis that the tensor does not have
  }
  if (is(pool, Op::kAvgPool)) {
    const int terms = d.window * h.window * w.window * form_.lines->window[0] * form_.lines->window[1] *
                      form_.lines->window[2];
    x += fmt::format(" * {}", number(1.0 / terms));
  } else if (pool.in[1] != kNone) {
    x += fmt::format(" * ({} < 0.f ? -1.f : 1.f)", l_.source.operand(pool.in[1], pool.shape, "at"));
  }
  for (const Id id : f_.nodes) {
    if (f_.behind_pool[id] && id != f_.pool && !f_.scalar[id]) x = l_.source.pointwise(l_.graph[id], x, "at");
  }
  const std::string start = fmt::format(
      "const Row first = row_of<G>(unit_tile<G>(unit.number), 0, 0);\n"
      "const auto value = [&](int column, int line, int window) {{ const At at = At{{{{first.n, "
      "min((int)blockIdx.y * G::kN + column, {}){}}}}}; (void)at; return {}; }};\n",
      conv_.c_out - 1, inside, x);
  const std::string store = fmt::format("store<{}>({}, {}::offset(at), ", l_.source.type(f_.last),
                                        l_.source.address(f_.last), dims(node.shape));
  if (!f_.scalar[f_.last]) {
    return code(
        "$start$each_window<G>([&](int column, int line, int window) {\n"
        "const int c = blockIdx.y * G::kN + column; const At at = At{{first.n, c$place}};\n"
        "if (c < $channels && $exists) $store$value(column, line, window)); });\n",
        {{"start", start},
         {"place", place},
         {"channels", conv_.c_out},
         {"exists", fmt::format("{}", fmt::join(exists, " && "))},
         {"store", store}});
  }
  return code(
      "$start$reduce_windows<G>($zero, value, [](float x, float y) { return $combine(x, y); }, [&](int line, "
      "int window, "
      "float x) {\nconst At at = At{{first.n, 0$place}}; if ($exists) $store$x$scale); });\n",
      {{"start", start},
       {"zero", reduction_start(node)},
       {"combine", reduction_combine(node)},
       {"place", place},
       {"exists", fmt::format("{}", fmt::join(exists, " && "))},
       {"store", store},
       {"scale", is(node, Op::kMean) ? fmt::format(" * {}", number(1.0 / conv_.c_out)) : ""}});
}

void EpilogueWriter::combine_rows(EpilogueText& text) {
  const std::string combine = fmt::format("[](float x, float y) {{ return {}(x, y); }}",
                                          pool_combine(l_.graph[f_.pool])),
                    rows = fmt::format("window_of_rows<G>((const float*)raw, column, line, window, {})",
                                       combine);
  if (form_.lines->split_units() == 0) {
    text.finish = "{ " + put_windows(rows) + "}\n";
    return;
  }
  const std::string parts = fmt::format(
      "(float*)(a.ws + {}ll)", l_.reserve(int64_t{form_.lines->split_units()} * form_.lines->window[0] *
                                          conv_.column_blocks * form_.lines->combined_windows() * 4));
  text.finish = fmt::format(
      "if (unit.whole) {{ {}}} else {{\n"
      "float* part = {} + ((i64)((int)blockIdx.x - G::kWhole) * gridDim.y + blockIdx.y) * "
      "G::kCombinedWindows;\n"
      "each_window<G>([&](int column, int line, int window) {{ part[window_place<G>(column, line, window)] = "
      "{}; }}); }}\n",
      put_windows(rows), parts, rows);
  text.combine_blocks = form_.lines->split_units();
  text.combine = fmt::format(
      "const Unit unit = whole_unit<G>(G::kWhole + blockIdx.x);\n"
      "const float* parts = {} + ((i64)blockIdx.x * G::kCombineD * gridDim.y + blockIdx.y) * "
      "G::kCombinedWindows;\n{}",
      parts,
      put_windows(fmt::format("window_of_parts<G>(parts, unit, window_place<G>(column, line, window), {})",
                              combine)));
}

}  // namespace upweave::cuda
