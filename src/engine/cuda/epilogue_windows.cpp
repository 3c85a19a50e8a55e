#include "engine/cuda/epilogue_writer.h"

// Whole lines: what leaves their tiles, windows of rows.
namespace upweave::cuda {

std::string EpilogueWriter::keep_row() const {
  return fmt::format(
      "const int place = (threadIdx.x / 128 * G::kPieces + p) * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4 + "
      "8 * r;\n{}((float*)raw)[(8 * (i / 2) + 2 * t + i % 2) * {} + place] = pool[p][r][i];\n",
      kColumns, t_.joined_pitch());
}

std::string EpilogueWriter::put_windows(const std::string& value) const {
  const Node& pool = l_.graph[f_.pool];
  const Node& node = l_.graph[f_.last];
  const auto& [d, h, w] = t_.axis;
  const size_t spatial = spatial_rank(node.shape);
  const std::string places[] = {fmt::format("first.jd / {}", t_.join[0]),
                                fmt::format("first.jh / {} + line", t_.join[1]), "window"};
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
    const int terms = d.window * h.window * w.window * t_.join[0] * t_.join[1] * t_.join[2];
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
      t_.c_out - 1, inside, x);
  const std::string store = fmt::format("store<{}>({}, {}::offset(at), ", l_.source.type(f_.last),
                                        l_.source.address(f_.last), dims(node.shape));
  if (!f_.scalar[f_.last]) {
    return fmt::format(
        "{}each_window<G>([&](int column, int line, int window) {{\n"
        "const int c = blockIdx.y * G::kN + column; const At at = At{{{{first.n, c{}}}}};\n"
        "if (c < {} && {}) {}value(column, line, window)); }});\n",
        start, place, t_.c_out, fmt::join(exists, " && "), store);
  }
  return fmt::format(
      "{}reduce_windows<G>({}, value, [](float x, float y) {{ return {}(x, y); }}, [&](int line, int window, "
      "float x) {{\nconst At at = At{{{{first.n, 0{}}}}}; if ({}) {}x{}); }});\n",
      start, reduction_start(node), reduction_join(node), place, fmt::join(exists, " && "), store,
      is(node, Op::kMean) ? fmt::format(" * {}", number(1.0 / t_.c_out)) : "");
}

void EpilogueWriter::join_rows(EpilogueText& text) {
  const std::string join = fmt::format("[](float x, float y) {{ return {}(x, y); }}",
                                       pool_join(l_.graph[f_.pool])),
                    rows =
                        fmt::format("window_of_rows<G>((const float*)raw, column, line, window, {})", join);
  if (t_.split_units() == 0) {
    text.finish = "{ " + put_windows(rows) + "}\n";
    return;
  }
  const std::string parts = fmt::format(
      "(float*)(a.ws + {}ll)",
      l_.reserve(int64_t{t_.split_units()} * t_.join[0] * t_.column_blocks * t_.joined_windows() * 4));
  text.finish = fmt::format(
      "if (unit.whole) {{ {}}} else {{\n"
      "float* part = {} + ((i64)((int)blockIdx.x - G::kWhole) * gridDim.y + blockIdx.y) * "
      "G::kJoinedWindows;\n"
      "each_window<G>([&](int column, int line, int window) {{ part[window_place<G>(column, line, window)] = "
      "{}; }}); }}\n",
      put_windows(rows), parts, rows);
  text.join = fmt::format(
      "const Unit unit = whole_unit<G>(G::kWhole + blockIdx.x);\n"
      "const float* parts = {} + ((i64)blockIdx.x * G::kJoinD * gridDim.y + blockIdx.y) * "
      "G::kJoinedWindows;\n{}",
      parts,
      put_windows(
          fmt::format("window_of_parts<G>(parts, unit, window_place<G>(column, line, window), {})", join)));
}

}  // namespace upweave::cuda
