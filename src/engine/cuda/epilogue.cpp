#include "engine/cuda/epilogue.h"

#include <algorithm>

#include "engine/cuda/code.h"
#include "engine/cuda/epilogue_writer.h"
#include "graph/operation.h"

// The whole of an epilogue, the coordinates of its rows, and the operands of its values.
namespace upweave::cuda {

EpilogueText EpilogueWriter::write() {
  EpilogueText text;
  text.point = coordinates(false) + load_sums();
  for (const Id id : f_.nodes) {
    if (id == f_.conv || (form_.lines && f_.behind_pool[id] && id != f_.pool)) continue;
    std::string& part = f_.behind_pool[id] && id != f_.pool ? text.window : text.point;
    if (id == f_.pool) {
      text.pool += pool_start(id);
      if (pools_sums(id))
        text.row += pool_row(id);
      else
        text.point += pool_update(id);
      text.window += form_.lines ? keep_row() : coordinates(true) + pool_result(id);
      if (form_.lines) combine_rows(text);
    } else if (moments_of_sums(id)) {
      text.state += fmt::format("{1}<G> w{0}; w{0}.clear();\n", id,
                                form_.parts_by_block ? "RunningMoments" : "Moments");
      text.sums += moments_update(id);
      text.finish += reduction_flush(id);
    } else if (f_.reduction[id]) {
      (form_.parts_by_sample ? text.kept : text.state) += reduction_state(id);
      part += reduction_update(id);
      text.finish += reduction_flush(id);
    } else {
      part += value(id);
    }
  }
  for (const Id id : f_.stores) {
    if (f_.behind_pool[id] && form_.lines) continue;  // join_rows stores it
    (f_.behind_pool[id] ? text.window : text.point) += store(id);
  }
  text.state = column_constants() + norm_state_ + text.state;
  return text;
}

std::string EpilogueWriter::load_sums() {
  if (lazy()) return function(f_.conv, fmt::format("{} * down", sum()));
  return code("float y$id[PH][G::kN / 4];\n$phases$$columns$y$id[ph][i] = $sum * down;\n",
              {{"id", f_.conv}, {"phases", kEach}, {"columns", kColumns}, {"sum", sum()}});
}

std::string EpilogueWriter::coordinates(bool behind) const {
  const auto& [d, h, w] = conv_.axis;
  // The row's depth may be the height, and its height the sample.
  const bool by_line = form_.height_is_sample;
  const char* n = by_line ? "row.jh" : "row.n";
  if (behind) {
    const std::string place =
        by_line ? "od = 0, oh = ok ? row.jd : 0" : "od = ok ? row.jd : 0, oh = ok ? row.jh : 0";
    return code(
        "constexpr int PH = 1; (void)PH;\n"
        "const bool ok = row.ok && row.jd < $depth && row.jh < $height && row.jw < $width;\n"
        "const int n = ok ? $n : 0, $place, ow0 = ok ? row.jw : 0;\n$at",
        {{"depth", pooled_extent(by_line ? 1 : 0)},
         {"height", by_line ? h.out : pooled_extent(1)},
         {"width", pooled_extent(2)},
         {"n", n},
         {"place", place},
         {"at", at_text(1, f_.pool)}});
  }
  const char* place = by_line ? "od = 0, oh = ok ? rd : 0" : "od = ok ? rd : 0, oh = ok ? rh : 0";
  return code(
      "constexpr int PH = $phases;\n"
      "const int rd = row.jd * $windowD + ud * $strideD + ed, rh = row.jh * $windowH + uh * $strideH + eh, "
      "rw = row.jw * $windowW + uw * "
      "$strideW + ew;\nconst bool ok = row.ok && rd < $outD && rh < $outH && rw < $outW;\n"
      "const int n = ok ? $n : 0, $place, ow0 = ok ? rw : 0;\n$at",
      {{"phases", phases()},
       {"windowD", d.window},
       {"strideD", d.stride},
       {"windowH", h.window},
       {"strideH", h.stride},
       {"windowW", w.window},
       {"strideW", w.stride},
       {"outD", d.out},
       {"outH", h.out},
       {"outW", w.out},
       {"n", n},
       {"place", place},
       {"at", at_text(phases(), f_.conv)}});
}

int64_t EpilogueWriter::pooled_extent(size_t axis) const {
  const Shape& shape = l_.graph[f_.pool].shape;
  const size_t missing = 3 - spatial_rank(shape);
  return axis < missing ? 1 : shape[axis - missing + 2];
}

std::string EpilogueWriter::at_text(int ph, Id id) const {
  const size_t spatial = spatial_rank(l_.graph[id].shape);
  const int64_t width = l_.graph[id].shape.back();
  const char* axes[] = {"od", "oh"};
  std::string at = "At{{n, c";
  for (size_t a = 0; a + 1 < spatial; ++a) at += fmt::format(", {}", axes[3 - spatial + a]);
  at += ph > 1 ? fmt::format(", min(ow0 + ph, {})", width - 1) : ", ow0 + ph";
  for (size_t a = spatial; a < 3; ++a) at += ", 0";
  return fmt::format("auto at_of = [&](int ph, int i) {{ const int c = {}; return {}}}}}; }};\n", column(),
                     at);
}

std::string EpilogueWriter::column() const {
  return padded_ ? fmt::format("min({}, {})", raw_column(), conv_.c_out - 1) : raw_column();
}

std::string EpilogueWriter::masked(const std::string& x, const char* other) const {
  return padded_ ? fmt::format("({} < {} ? {} : {})", raw_column(), conv_.c_out, x, other) : x;
}

bool EpilogueWriter::one_a_column(Id id, const Shape& shape) const {
  if (f_.holds(id)) return false;
  if (!l_.weights[id]) {
    const Shape& own = l_.graph[id].shape;
    for (size_t a = 2; a < own.size(); ++a) {
      if (own[a] != 1) return false;
    }
    return own[0] == 1 || form_.one_sample;
  }
  const Shape strides = broadcast_strides(l_.graph[id].shape, shape);
  for (size_t a = 0; a < strides.size(); ++a) {
    if (a != 1 && strides[a] != 0) return false;
  }
  return true;
}

std::string EpilogueWriter::constant(const std::string& expression) {
  const auto at = std::ranges::find(constants_, expression);
  const auto k = at - constants_.begin();
  if (at == constants_.end()) constants_.push_back(expression);
  return fmt::format("columns[{}][8 * (i / 2) + 2 * t + i % 2]", k);
}

std::string EpilogueWriter::column_constants() const {
  if (constants_.empty()) return "";
  // Each warpgroup has its own, for they may be in different samples. Where registers are short each use
  // reads again.
  std::string text = fmt::format(
      "__shared__ __align__(16) float all_columns[G::kThreads / 128][{}][G::kN];\n"
      "{}float (*columns)[G::kN] = all_columns[threadIdx.x / 128];\nif (const int sample = {}; {}) {{\n"
      "warpgroup_sync();\nfor (int j = threadIdx.x % 128; j < G::kN; j += 128) {{\n"
      "  const At at = At{{{{sample, min((int)blockIdx.y * G::kN + j, G::kCOut - 1), 0, 0, 0}}}};\n",
      constants_.size(), f_.pool != kNone ? "volatile " : "",
      form_.height_is_sample ? "0" : "min(row_of<G>(tile, 0, 0).n, G::kBatch - 1)",
      form_.many_tiles ? "columns_of != sample && (columns_of = sample, true)" : "true");
  for (size_t k = 0; k < constants_.size(); ++k)
    text += fmt::format("  columns[{}][j] = {};\n", k, constants_[k]);
  return text + "}\nwarpgroup_sync();\n}\n";
}

std::string EpilogueWriter::function(Id id, const std::string& expression) {
  functions_.insert(id);
  return fmt::format("auto y{} = [&](int ph, int i) {{ {}return {}; }};\n", id, at_needed(expression),
                     expression);
}

std::string EpilogueWriter::at_needed(const std::string& expression) {
  const bool places =
      expression.find("at.x") != std::string::npos || expression.find("(a, ") != std::string::npos;
  return places ? "const At at = at_of(ph, i); (void)at; " : "";
}

std::string EpilogueWriter::element(Id id) const {
  return fmt::format("y{}{}", id, f_.scalar[id] ? "[ph]" : functions_.contains(id) ? "(ph, i)" : "[ph][i]");
}

std::string EpilogueWriter::read(Id id, const Shape& shape) {
  if (f_.holds(id)) return element(id);
  const std::string memory = l_.source.operand(id, shape, "at");
  return one_a_column(id, shape) ? constant(memory) : memory;
}

Partials reserve_partials(Lowering& l, const Fusion& f, const Schedule& t) {
  Partials partials;
  for (const Id id : f.nodes) {
    if (!f.reduction[id]) continue;
    l.keep(id);
    partials[id] = l.reserve(t.partials() * t.conv.column_blocks * t.conv.n * 12);
  }
  return partials;
}

EpilogueText epilogue(Lowering& l, const Fusion& f, const Convolution& conv, const EpilogueForm& form,
                      const Partials& partials) {
  return EpilogueWriter(l, f, conv, form, partials).write();
}

}  // namespace upweave::cuda
