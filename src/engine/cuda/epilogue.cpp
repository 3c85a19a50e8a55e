#include <algorithm>

#include "engine/cuda/fuse.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"

// The text between the sums and memory: one array y<id>[phase][column] a value and row, one number
// y<id>[phase] for a value that was reduced over channels. A row lies in four lanes, so a sum over channels
// is two shuffles.
namespace upweave::cuda {
namespace {

constexpr const char* kEach = "_Pragma(\"unroll\") for (int ph = 0; ph < PH; ++ph)\n";
// The convolution's value as the products left it, before the scale is taken out.
constexpr const char* kSum = "sum[ph][s][i / 2 * 4 + r * 2 + i % 2]";
constexpr const char* kColumns = "_Pragma(\"unroll\") for (int i = 0; i < G::kN / 4; ++i) ";

class Writer {
 public:
  Writer(Lowering& l, const Fusion& f, const ConvTiles& t)
      : l_(l), f_(f), t_(t), padded_(t.n * t.column_blocks != t.c_out) {}

  EpilogueText write() {
    EpilogueText text;
    text.point = coordinates(false) + load_sums();
    for (const Id id : f_.nodes) {
      if (id == f_.conv) continue;
      std::string& part = f_.behind_pool[id] && id != f_.pool ? text.window : text.point;
      if (id == f_.pool) {
        text.pool += fmt::format(
            "float pool[G::kPieces][2][G::kN / 4];\n#pragma unroll\nfor (int p = 0; p < G::kPieces; "
            "++p)\n#pragma unroll\n"
            "for (int r = 0; r < 2; ++r)\n{}pool[p][r][i] = {};\n",
            kColumns,
            is(l_.graph[id], "avg_pool")   ? "0.f"
            : is(l_.graph[id], "max_pool") ? "-kInf"
                                           : "kInf");
        if (pools_sums(id))
          text.row += pool_row(id);
        else
          text.point += pool_update(id);
        text.window += coordinates(true) + pool_result(id);
      } else if (moments_of_sums(id)) {
        text.state +=
            fmt::format("{1}<G> w{0}; w{0}.clear();\n", id, t_.by_line ? "RunningMoments" : "Moments");
        text.sums += moments_update(id);
        text.finish += reduction_flush(id);
      } else if (f_.reduction[id]) {
        text.state += reduction_state(id);
        part += reduction_update(id);
        text.finish += reduction_flush(id);
      } else {
        part += value(id);
      }
    }
    for (const Id id : f_.stores) (f_.behind_pool[id] ? text.window : text.point) += store(id);
    text.state = column_constants() + norm_state_ + text.state;
    return text;
  }

 private:
  int phases(Id id) const { return f_.behind_pool[id] ? 1 : f_.store_phases; }

  // Where this row's value lies in the output; rows outside read from place 0 and write nothing.
  std::string coordinates(bool behind) const {
    const auto& [d, h, w] = t_.axis;
    // By line: the row's depth is the height, its height the sample.
    const char* n = t_.by_line ? "row.jh" : "row.n";
    if (behind) {
      const std::string place =
          t_.by_line ? "od = 0, oh = ok ? row.jd : 0" : "od = ok ? row.jd : 0, oh = ok ? row.jh : 0";
      return fmt::format(
          "constexpr int PH = 1; (void)PH;\nconst bool ok = row.ok && row.jd < {} && row.jh < {} && row.jw < "
          "{};\nconst int n = ok ? {} : 0, {}, ow0 = ok ? row.jw : 0;\n{}",
          pooled_extent(t_.by_line ? 1 : 0), t_.by_line ? h.out : pooled_extent(1), pooled_extent(2), n,
          place, at_text(1, f_.pool));
    }
    const char* place = t_.by_line ? "od = 0, oh = ok ? rd : 0" : "od = ok ? rd : 0, oh = ok ? rh : 0";
    return fmt::format(
        "constexpr int PH = {};\nconst int rd = row.jd * {} + ud * {} + ed, rh = row.jh * {} + uh * {} + eh, "
        "rw = row.jw * {} + uw * {} + ew;\n"
        "const bool ok = row.ok && rd < {} && rh < {} && rw < {};\nconst int n = ok ? {} : 0, {}, ow0 = ok ? "
        "rw : 0;\n{}",
        f_.store_phases, d.window, d.stride, h.window, h.stride, w.window, w.stride, d.out, h.out, w.out, n,
        place, at_text(f_.store_phases, f_.conv));
  }

  int64_t pooled_extent(size_t axis) const {
    const Shape& shape = l_.graph[f_.pool].shape;
    const size_t missing = 3 - spatial_rank(shape);
    return axis < missing ? 1 : shape[axis - missing + 2];
  }

  // A function from phase and column to coordinates.
  std::string at_text(int ph, Id id) const {
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
  std::string raw_column() const { return "column0 + 8 * (i / 2) + i % 2"; }
  std::string column() const {
    return padded_ ? fmt::format("min({}, {})", raw_column(), t_.c_out - 1) : raw_column();
  }
  // `x` where the column exists, `other` where it only fills the tile.
  std::string masked(const std::string& x, const char* other) const {
    return padded_ ? fmt::format("({} < {} ? {} : {})", raw_column(), t_.c_out, x, other) : x;
  }

  std::string load_sums() const {
    return fmt::format("float y{}[PH][G::kN / 4];\n{}{}y{}[ph][i] = {} * down;\n", f_.conv, kEach, kColumns,
                       f_.conv, kSum);
  }

  // --- What is one number a column for all of a block lies in shared memory
  // --------------------------------------------
  bool one_a_column(Id id, const Shape& shape) const {
    if (f_.holds(id)) return false;
    if (!l_.weights[id]) {
      const Shape& own = l_.graph[id].shape;
      for (size_t a = 2; a < own.size(); ++a) {
        if (own[a] != 1) return false;
      }
      return own[0] == 1 || t_.boxes;  // a tile of boxes lies in one sample
    }
    const Shape strides = broadcast_strides(l_.graph[id].shape, shape);
    for (size_t a = 0; a < strides.size(); ++a) {
      if (a != 1 && strides[a] != 0) return false;
    }
    return true;
  }
  // `expression` of a column's coordinates `at`, computed once.
  std::string constant(const std::string& expression) const {
    const auto at = std::ranges::find(constants_, expression);
    const auto k = at - constants_.begin();
    if (at == constants_.end()) constants_.push_back(expression);
    return fmt::format("columns[{}][8 * (i / 2) + 2 * t + i % 2]", k);
  }
  // Each warpgroup has its own, for they may be in different samples. Where registers are short each use
  // reads again.
  std::string column_constants() const {
    if (constants_.empty()) return "";
    std::string text = fmt::format(
        "__shared__ __align__(16) float all_columns[G::kThreads / 128][{}][G::kN];\n"
        "{}float (*columns)[G::kN] = all_columns[threadIdx.x / 128];\n"
        "if (const int sample = {}; {}) {{\n"
        "warpgroup_sync();\nfor (int j = threadIdx.x % 128; j < G::kN; j += 128) {{\n"
        "  const At at = At{{{{sample, min((int)blockIdx.y * G::kN + j, G::kCOut - 1), 0, 0, 0}}}};\n",
        constants_.size(), f_.pool != kNone ? "volatile " : "",
        t_.by_line ? "0" : "min(row_of<G>(tile, 0, 0).n, G::kBatch - 1)",
        t_.held ? "columns_of != sample && (columns_of = sample, true)" : "true");
    for (size_t k = 0; k < constants_.size(); ++k)
      text += fmt::format("  columns[{}][j] = {};\n", k, constants_[k]);
    return text + "}\nwarpgroup_sync();\n}\n";
  }

  // A value in registers, in memory, or a parameter, as seen at (ph, i).
  std::string read(Id id, const Shape& shape) const {
    if (f_.holds(id)) return f_.scalar[id] ? fmt::format("y{}[ph]", id) : fmt::format("y{}[ph][i]", id);
    const std::string memory = l_.source.operand(id, shape, "at");
    return one_a_column(id, shape) ? constant(memory) : memory;
  }

  // A pointwise node's result, with what is constant over a block's columns computed ahead: a division
  // becomes a multiplication, a norm one difference and one product.
  std::string pointwise_value(const Node& node, const std::string& x) const {
    if (is(node, "gelu") && !node.attrs.flag("tanh")) {
      if (f_.holds(node.in[0]) && feeds_gelu(node.in[0]))
        return fmt::format("{}({})", fast() ? "gelu_scaled5" : "gelu_scaled10", x);
      return gelu(x);
    }
    if (is(node, "exp") && fast()) return fmt::format("exp2_fast({} * 1.44269504f)", x);
    if (is(node, "normalize") &&
        (norm_sets(node, l_.graph[node.in[0]].shape).kind == NormSets::Kind::kBatch || t_.boxes)) {
      const std::string mean = l_.source.moment(node, "at", 0), variance = l_.source.moment(node, "at", 1);
      std::string factor = fmt::format("inv_sqrt({} + {})", variance, number(norm_eps(node)));
      if (node.in[2] != kNone)
        factor = fmt::format("{} * {}", factor, l_.source.operand(node.in[2], node.shape, "at"));
      std::string y = fmt::format("({} - {}) * {}", x, constant(mean), constant(factor));
      if (node.in[3] != kNone)
        y = fmt::format("({}) + {}", y, constant(l_.source.operand(node.in[3], node.shape, "at")));
      return "(" + y + ")";
    }
    if (const std::string factor = column_factor(node); !factor.empty()) {
      // Factors in a row become one: x / a * b = x (1/a b).
      const Node& before = l_.graph[node.in[0]];
      const std::string earlier = f_.holds(node.in[0]) && node.in[0] != f_.conv ? column_factor(before) : "";
      if (!earlier.empty())
        return fmt::format("({} * {})", read(before.in[0], before.shape), constant(earlier + " * " + factor));
      return fmt::format("({} * {})", x, constant(factor));
    }
    std::string other;
    if (node.in.size() > 1 && node.in[1] != kNone && !is(node, "normalize") && !is(node, "softmax_apply"))
      other = read(node.in[1], node.shape);
    return l_.source.pointwise(node, x, "at", other);
  }
  // What a product with, or a quotient by, one number a column multiplies with; empty for other nodes.
  std::string column_factor(const Node& node) const {
    if ((!is(node, "div") && !is(node, "mul")) || node.in[1] == kNone ||
        !one_a_column(node.in[1], node.shape))
      return "";
    return (is(node, "div") ? "1.f / " : "") + l_.source.operand(node.in[1], node.shape, "at");
  }
  bool fast() const { return l_.options.precision == Precision::kFast; }

  std::string gelu(const std::string& x) const {
    return fmt::format("{}({})",
                       l_.options.precision == Precision::kStrict ? "f_gelu_poly10" : "f_gelu_poly5", x);
  }

  std::string value(Id id) const {
    const Node& node = l_.graph[id];
    const Id in = node.in[0];
    const std::string x = read(in, node.shape), y = fmt::format("y{}", id);
    if (is_pointwise(node)) {
      const std::string expression = pointwise_value(node, x);
      const bool places =
          expression.find("at.x") != std::string::npos || expression.find("(a, ") != std::string::npos;
      if (f_.scalar[id]) {
        return fmt::format("float {}[PH];\n{}{{ const int i = 0; (void)i; {}{}[ph] = {}; }}\n", y, kEach,
                           places ? "const At at = at_of(ph, i); (void)at; " : "", y, expression);
      }
      return fmt::format("float {}[PH][G::kN / 4];\n{}{}{{ {}{}[ph][i] = {}; }}\n", y, kEach, kColumns,
                         places ? "const At at = at_of(ph, i); (void)at; " : "", y, expression);
    }
    return channel_value(id, x, y);
  }

  // rms_norm -> gelu and nobody else: the norm's factor takes gelu's along, and |x| < sqrt(C) needs no clamp.
  bool feeds_gelu(Id id) const {
    const Node& node = l_.graph[id];
    if (!is(node, "rms_norm") || node.in[0] != f_.conv || node.in[1] != kNone || node.in[2] != kNone ||
        t_.c_out > 128)
      return false;
    int readers = 0;
    for (const Id reader : f_.nodes) {
      const Node& other = l_.graph[reader];
      if (std::ranges::find(other.in, id) == other.in.end()) continue;
      ++readers;
      if (!is(other, "gelu") || other.attrs.flag("tanh")) return false;
    }
    return readers == 1 && std::ranges::find(f_.stores, id) == f_.stores.end();
  }

  std::string quad(const char* name, const std::string& start, const std::string& term,
                   const char* join) const {
    // join(a, b) over the row's columns, then over its four lanes.
    return fmt::format(
        "float {0} = {1};\n{2}{0} = {4}({0}, {3});\n{0} = {4}({0}, __shfl_xor_sync(~0u, {0}, 1)); {0} = "
        "{4}({0}, __shfl_xor_sync(~0u, {0}, 2));\n",
        name, start, kColumns, term, join);
  }

  std::string channel_value(Id id, const std::string& x, const std::string& y) const {
    const Node& node = l_.graph[id];
    const std::string inverse = number(1.0 / t_.c_out);
    std::string text;
    if (is(node, "rms_norm") || is(node, "layer_norm")) {
      const bool mean = is(node, "layer_norm");
      if (mean) text += quad("m", "0.f", masked(x, "0.f"), "add2") + fmt::format("m *= {};\n", inverse);
      // Right behind the convolution the scale stays in: x^2 neither overflows nor vanishes, and a product is
      // saved.
      const bool raw = !mean && node.in[0] == f_.conv;
      const std::string d = mean ? fmt::format("({} - m)", x) : raw ? kSum : x;
      text += fmt::format(
          "float q = 0.f;\n{}{{ const float e = {}; q = fmaf(e, e, q); }}\nq += __shfl_xor_sync(~0u, q, 1); "
          "q += __shfl_xor_sync(~0u, q, 2);\n"
          "const float z = {};\n",
          kColumns, masked(d, "0.f"),
          raw ? fmt::format("norm_scale * inv_sqrt(fmaf(q * norm_a, norm_b, norm_eps))")
              : fmt::format("inv_sqrt(fmaf(q, {}, {}))", inverse, number(norm_eps(node))));
      if (raw) {
        norm_state_ = fmt::format(
            "const bool norm_small = down <= 1.f;\nconst float norm_a = norm_small ? {0} * down : {0}, "
            "norm_b = norm_small ? down : 1.f, "
            "norm_eps = norm_small ? {1} : {1} / down / down, norm_scale = (norm_small ? down : 1.f){2};\n",
            inverse, number(norm_eps(node)), feeds_gelu(id) ? " * kGeluScale" : "");
      }
      std::string result = fmt::format("{} * z", d);
      if (node.in[1] != kNone) result = fmt::format("{} * {}", result, read(node.in[1], node.shape));
      if (node.in[2] != kNone) result = fmt::format("{} + {}", result, read(node.in[2], node.shape));
      return fmt::format(
          "float {}[PH][G::kN / 4];\n{}{{ {}{}{{ const At at = at_of(ph, i); (void)at; {}[ph][i] = {}; }} "
          "}}\n",
          y, kEach, text, kColumns, y, result);
    }
    if (is(node, "softmax")) {
      text = quad("m", "-kInf", masked(x, "-kInf"), "max_nan");
      text += fmt::format("{}{}[ph][i] = {};\n", kColumns, y, masked(fmt::format("f_exp({} - m)", x), "0.f"));
      text += quad("q", "0.f", fmt::format("{}[ph][i]", y), "add2");
      return fmt::format(
          "float {0}[PH][G::kN / 4];\n{1}{{ {2}const float z = 1.f / q;\n{3}{0}[ph][i] *= z; }}\n", y, kEach,
          text, kColumns);
    }
    std::string result = "m";
    if (is(node, "sum")) text = quad("m", "0.f", masked(x, "0.f"), "add2");
    if (is(node, "mean")) {
      text = quad("m", "0.f", masked(x, "0.f"), "add2");
      result = "m * " + inverse;
    }
    if (is(node, "max")) text = quad("m", "-kInf", masked(x, "-kInf"), "max_nan");
    if (is(node, "min")) text = quad("m", "kInf", masked(x, "kInf"), "min_nan");
    if (is(node, "logsumexp")) {
      text = quad("m", "-kInf", masked(x, "-kInf"), "max_nan") + "if (isinf(m)) m = 0.f;\n";
      text += quad("q", "0.f", masked(fmt::format("f_exp({} - m)", x), "0.f"), "add2");
      result = "m + logf(q)";
    }
    return fmt::format("float {}[PH];\n{}{{ {}{}[ph] = {}; }}\n", y, kEach, text, y, result);
  }

  // A channel whose sign is negative takes the other extreme: flip before and after.
  std::string flip(Id id) const {
    const Node& node = l_.graph[id];
    if (is(node, "avg_pool") || node.in[1] == kNone) return "";
    const std::string sign =
        fmt::format("{} < 0.f ? -1.f : 1.f", l_.source.operand(node.in[1], node.shape, "at"));
    if (one_a_column(node.in[1], node.shape)) return fmt::format("const float flip = {}; ", constant(sign));
    return fmt::format("const At at = at_of(0, i); (void)at; const float flip = {}; ", sign);
  }
  std::string pool_update(Id id) const {
    const Node& node = l_.graph[id];
    const char* join = is(node, "avg_pool") ? "add2" : is(node, "max_pool") ? "max_nan" : "min_nan";
    return fmt::format("{0}{1}{{ {2}pool[p][r][i] = {3}(pool[p][r][i], {4}y{5}[ph][i]); }}\n", kEach,
                       kColumns, flip(id), join, flip(id).empty() ? "" : "flip * ", node.in[0]);
  }
  // By line: a pool right behind the convolution, of sums with the scale still in.
  bool pools_sums(Id id) const { return t_.by_line && l_.graph[id].in[0] == f_.conv; }
  std::string pool_row(Id id) const {
    const Node& node = l_.graph[id];
    const char* join = is(node, "avg_pool") ? "add2" : is(node, "max_pool") ? "max_nan" : "min_nan";
    return fmt::format(
        "{}{{ {}_Pragma(\"unroll\") for (int s = 0; s < G::kSums; ++s) pool[0][r][i] = {}(pool[0][r][i], "
        "{}sum[0][s][i / 2 * 4 + r * 2 + i % 2]); }}\n",
        kColumns, flip(id), join, flip(id).empty() ? "" : "flip * ");
  }
  std::string pool_result(Id id) const {
    const auto& [d, h, w] = t_.axis;
    const std::string scale =
        (is(l_.graph[id], "avg_pool") ? fmt::format(" * {}", number(1.0 / (d.window * h.window * w.window)))
         : flip(id).empty()           ? ""
                                      : " * flip") +
        (pools_sums(id) ? " * down" : "");
    if (!t_.pool_in_memory) {
      return fmt::format("float y{0}[1][G::kN / 4];\n{1}{{ {2}y{0}[0][i] = pool[p][r][i]{3}; }}\n", id,
                         kColumns, flip(id), scale);
    }
    // What the classes before left is where the result will be; the last class takes the scale or the sign.
    const std::string join = is(l_.graph[id], "avg_pool")   ? "add2"
                             : is(l_.graph[id], "max_pool") ? "max_nan"
                                                            : "min_nan";
    return fmt::format(
        "if (ok && group > 0) {{ {1}{2}{{ {3}pool[p][r][i] = {4}(pool[p][r][i], "
        "load<{5}>({6}, {7})); }} }}\nif (group == {9}) {{ {2}{{ {8}pool[p][r][i] = "
        "pool[p][r][i]{10}; }} }}\nfloat y{0}[1][G::kN / 4];\n{2}y{0}[0][i] = pool[p][r][i];\n",
        id, store_base(id), kColumns, column_exists(), join, l_.source.type(id), l_.source.address(id),
        store_at(id), flip(id), t_.phases.size() - 1, scale);
  }

  int64_t voxels_of(Id id) const {
    const Shape& shape = l_.graph[id].shape;
    return count(shape) / (shape[0] * shape[1]);
  }
  // Where value `id` of the row lies: of column i, store_at from what store_base declares.
  std::string voxel_at(Id id) const {
    const Shape& shape = l_.graph[id].shape;
    const int64_t height = spatial_rank(shape) > 1 ? shape[shape.size() - 2] : 1;
    return fmt::format("((i64)od * {} + oh) * {} + ow0", height, shape.back());
  }
  bool blocked(Id id) const { return l_.source.places[id].blocked; }
  std::string store_base(Id id) const {
    if (blocked(id)) {
      return fmt::format(
          "const i64 base = (((i64)n * {0} + blockIdx.y * (G::kN / 16)) * {1}ll + {2}) * 16 + 2 * t;\n",
          t_.c_out / 16, voxels_of(id), voxel_at(id));
    }
    return fmt::format("const i64 base = ((i64)n * {} + column0) * {}ll + {};\n", t_.c_out, voxels_of(id),
                       voxel_at(id));
  }
  std::string store_at(Id id) const {
    if (blocked(id)) return fmt::format("base + i / 4 * {}ll + i / 2 % 2 * 8 + i % 2", voxels_of(id) * 16);
    return fmt::format("base + (8 * (i / 2) + i % 2) * {}ll", voxels_of(id));
  }
  std::string column_exists() const {
    return padded_ ? fmt::format("if ({} < {}) ", raw_column(), t_.c_out) : "";
  }

  std::string store(Id id) const {
    const int64_t width = l_.graph[id].shape.back(), voxels = voxels_of(id);
    const std::string type = l_.source.type(id), to = l_.source.address(id), place = voxel_at(id);
    const int ph = phases(id);
    if (f_.scalar[id]) {
      return fmt::format(
          "if (ok && t == 0) {{\n{}if (ph == 0 || ow0 + ph < {}) store<{}>({}, (i64)n * {} + {} + ph, "
          "y{}[ph]); }}\n",
          kEach, width, type, to, voxels, place, id);
    }
    const std::string check = column_exists(), base = store_base(id), at = store_at(id);
    if (blocked(id)) {
      return fmt::format(
          "if (ok) {{ {0}_Pragma(\"unroll\") for (int i = 0; i < G::kN / 4; i += 2) *(float2*)((float*){1} + "
          "{2}) = make_float2(y{3}[0][i], y{3}[0][i + 1]); }}\n",
          base, to, at, id);
    }
    if (ph > 1 && width % ph == 0) {  // all phases at once: whole sectors
      return fmt::format("if (ok) {{ {}{}{}store_row<{}>({}, {}, y{}, i); }}\n", base, kColumns, check, type,
                         to, at, id);
    }
    return fmt::format(
        "if (ok) {{ {}{}if (ph == 0 || ow0 + ph < {}) {{\n{}{}store<{}>({}, {} + ph, y{}[ph][i]); }} }}\n",
        base, kEach, width, kColumns, check, type, to, at, id);
  }

  // --- Reductions over space: each thread keeps its columns' partial results, the block joins them
  // --------------------
  std::string reduction_state(Id id) const {
    const Node& node = l_.graph[id];
    const bool two = is(node, "moments") || is(node, "softmax_stats");
    const char* start = is(node, "max") || is(node, "softmax_stats") ? "-kInf"
                        : is(node, "min")                            ? "kInf"
                                                                     : "0.f";
    return fmt::format(
               "float p{0}[G::kN / 4], q{0}[G::kN / 4], k{0} = 0.f;\n{1}{{ p{0}[i] = {2}; q{0}[i] = 0.f; "
               "}}\n",
               id, kColumns, start) +
           (two ? "" : fmt::format("(void)q{0}; (void)k{0};\n", id));
  }
  // Moments of the convolution itself are taken with its scale in; combine_reductions takes it out.
  bool moments_of_sums(Id id) const {
    return f_.reduction[id] && is(l_.graph[id], "moments") && l_.graph[id].in[0] == f_.conv;
  }
  std::string moments_update(Id id) const {
    if (t_.by_line) {
      return fmt::format(
          "{{ bool real[G::kSums][2];\n#pragma unroll\nfor (int s = 0; s < G::kSums; ++s)\n#pragma unroll\n"
          "for (int r = 0; r < 2; ++r) {{\nconst Row& row = rows[0][r]; const int ud = 0, uh = 0, uw = "
          "s;\n{}real[s][r] = ok; }}\nw{}.update(sum[0], real, scratch); }}\n",
          coordinates(false), id);
    }
    return fmt::format(
        "{{ float weight[{0}][G::kSums][2];\n#pragma unroll\nfor (int s = 0; s < G::kSums; ++s)\n#pragma "
        "unroll\n"
        "for (int r = 0; r < 2; ++r) {{\nconst int v = s / G::kPieces; const Row& row = rows[s % "
        "G::kPieces][r];\n"
        "const int ud = v / (G::kOnceH * G::kOnceW), uh = v / G::kOnceW % G::kOnceH, uw = v % "
        "G::kOnceW;\n{1}{2}{{ "
        "const bool real = ok && ow0 + ph < {3}; weight[ph][s][r] = real ? 1.f : 0.f;\nif (!real) {{ {4}{5} "
        "= 0.f; }} }} "
        "}}\nw{6}.update(sum, weight); }}\n",
        f_.store_phases, coordinates(false), kEach, l_.graph[f_.conv].shape.back(), kColumns, kSum, id);
  }
  std::string reduction_update(Id id) const {
    const Node& node = l_.graph[id];
    const Id in = node.in[0];
    const std::string x = fmt::format("y{}[ph][i]", in);
    const std::string p = fmt::format("p{}[i]", id), q = fmt::format("q{}[i]", id);
    const int64_t width = l_.graph[in].shape.back();
    std::string text;
    if (is(node, "moments")) {  // Welford's update: mean += (x - mean)/k, M2 += (x - old mean)(x - new mean)
      text = fmt::format(
          "k{0} += 1.f; const float z = 1.f / k{0};\n{1}{{ const float e = {2} - {3}; {3} = fmaf(e, z, {3}); "
          "{4} = fmaf(e, {2} - {3}, {4}); }}",
          id, kColumns, x, p, q);
    } else if (is(node, "softmax_stats")) {
      text = fmt::format(
          "{0}{{ const float m = max_nan({1}, {2}); {3} = ({1} == m ? {3} : {3} * f_exp({1} - m)) + "
          "f_exp({2} - m); {1} = m; }}",
          kColumns, p, x, q);
    } else {
      text = fmt::format("{}{} = {}({}, {});", kColumns, p,
                         is(node, "max")   ? "max_nan"
                         : is(node, "min") ? "min_nan"
                                           : "add2",
                         p, x);
    }
    return fmt::format("{}if (ok && ow0 + ph < {}) {{ {} }}\n", kEach, width, text);
  }
  std::string reduction_flush(Id id) {
    const Node& node = l_.graph[id];
    l_.keep(id);
    const int64_t at = l_.reserve(t_.partials() * t_.column_blocks * t_.n * 12);
    const char* tile = t_.by_line ? "blockIdx.x" : "tile";  // by line a block's tiles have one part together
    partial_at[id] = at;
    const char* kind = is(node, "moments")         ? "JoinMoments"
                       : is(node, "softmax_stats") ? "JoinExp"
                       : is(node, "max")           ? "JoinMax"
                       : is(node, "min")           ? "JoinMin"
                                                   : "JoinSum";
    if (moments_of_sums(id)) {
      return fmt::format(
          "w{0}.flush(scratch, partial<G>(a.ws + {1}ll, {2}, owner));\n"
          "if (fma) for (int o = 1; o < G::kOwners; ++o) no_part<G, JoinMoments>(partial<G>(a.ws + {1}ll, "
          "{2}, o));\n",
          id, at, tile);
    }
    return fmt::format(
        "flush<G, {1}>(p{0}, q{0}, k{0}, scratch, partial<G>(a.ws + {2}ll, {3}, owner));\n"
        "if (fma) for (int o = 1; o < G::kOwners; ++o) no_part<G, {1}>(partial<G>(a.ws + {2}ll, {3}, o));\n",
        id, kind, at, tile);
  }

  Lowering& l_;
  const Fusion& f_;
  const ConvTiles& t_;
  bool padded_;
  mutable std::string norm_state_;
  mutable std::vector<std::string> constants_;  // by their text, so that equal ones are one

 public:
  std::map<Id, int64_t> partial_at;
};

}  // namespace

EpilogueText epilogue(Lowering& l, const Fusion& f, const ConvTiles& t) {
  Writer writer(l, f, t);
  EpilogueText text = writer.write();
  for (const auto& [id, at] : writer.partial_at) l.partials[id] = at;
  return text;
}

}  // namespace upweave::cuda
